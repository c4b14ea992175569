"""Times vLLM's own tensor-parallel all-reduce. A script: the python of the vLLM environment runs it, alone.

    python all_reduce_probe.py DEGREE BYTES[,BYTES…] PORT OUT.csv

The call is the one that the layers make (vllm/distributed/communication_op.py `tensor_model_parallel_all_reduce`), so
vLLM chooses the algorithm as it does in a server: its custom kernel up to a few MB and NCCL or RCCL above on GPUs, its
shared-memory exchange on CPUs. OUT.csv has one line per message size: bytes, median and tenths in microseconds.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
import time
from pathlib import Path

WARM_UPS, LEAST_CALLS, MOST_CALLS = 10, 30, 300
BYTES_IN_ALL = 4e8
"""So many message bytes are exchanged per size, within the limits above."""


def rank_main(rank: int, degree: int, sizes: list[int], port: int, out: str) -> None:
    """One rank; the first writes the file."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(degree),
        LOCAL_RANK=str(rank),
        VLLM_DIST_IDENT=f"goodfleet{port}",
    )
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment,
        initialize_model_parallel,
        tensor_model_parallel_all_reduce,
    )
    from vllm.platforms import current_platform

    on_cpu = current_platform.device_type == "cpu"
    if on_cpu:
        share = max(1, len(cores) // degree)
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share] or cores)
        torch.set_num_threads(share)
        import vllm._custom_ops  # noqa: F401, loads the operators
    else:
        torch.accelerator.set_device_index(rank)
    device = torch.device("cpu" if on_cpu else f"{current_platform.device_type}:{rank}")
    with set_current_vllm_config(VllmConfig()):
        backend = "gloo" if on_cpu else "nccl"
        init_distributed_environment(degree, rank, f"tcp://127.0.0.1:{port}", rank, backend)
        initialize_model_parallel(degree)
        lines = []
        for size in sizes:
            message = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
            calls = int(min(MOST_CALLS, max(LEAST_CALLS, BYTES_IN_ALL / size)))
            times_s = []
            for call in range(WARM_UPS + calls):
                started_s = time.perf_counter()
                tensor_model_parallel_all_reduce(message)
                if not on_cpu:
                    torch.accelerator.synchronize()
                if call >= WARM_UPS:
                    times_s.append(time.perf_counter() - started_s)
            tenths = statistics.quantiles(times_s, n=10)
            lines.append([size, *(round(t * 1e6, 3) for t in (statistics.median(times_s), tenths[0], tenths[-1]))])
    if rank == 0:
        with Path(out).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["bytes", "median_us", "p10_us", "p90_us"])
            table.writerows(lines)


def main() -> None:
    import torch.multiprocessing

    degree, sizes, port, out = sys.argv[1:5]
    arguments = (int(degree), [int(size) for size in sizes.split(",")], int(port), out)
    torch.multiprocessing.spawn(rank_main, arguments, nprocs=int(degree))


if __name__ == "__main__":
    main()
