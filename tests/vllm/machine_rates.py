"""What one core of this machine reaches: bytes read per second and BF16 matrix FLOP per second.

    python machine_rates.py OUT.json

The rates that a profile's efficiencies refer to, as a worker of vLLM on one core meets them: a matrix-vector product
streams weights of the model's size in all (158 MB, so a large cache counts), a product of large matrices multiplies.
The best of several tries each, since a bound is wanted and others may use the machine.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

WEIGHT_BYTES = 158_000_000
TRIES = 60


def best_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several tries."""
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    layers = [torch.ones(2048, 768, dtype=torch.bfloat16) for _ in range(WEIGHT_BYTES // (2048 * 768 * 2))]
    vector = torch.ones(768, dtype=torch.bfloat16)
    floats = torch.ones(WEIGHT_BYTES // 4)
    copy = torch.empty_like(floats)
    text = b"y" * WEIGHT_BYTES
    left, right = torch.ones(1024, 2048, dtype=torch.bfloat16), torch.ones(2048, 2048, dtype=torch.bfloat16)
    read = len(layers) * 2048 * 768 * 2
    rates = {
        "matrix times vector": read / best_s(lambda: [layer @ vector for layer in layers]),
        "sum": WEIGHT_BYTES / best_s(floats.sum),
        "search": WEIGHT_BYTES / best_s(lambda: text.find(b"x")),
        "copy": 2 * WEIGHT_BYTES / best_s(lambda: copy.copy_(floats)),
    }
    flops = 2 * 1024 * 2048 * 2048 / best_s(lambda: left @ right)
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    found = {"bytes_per_s": max(rates.values()), "rates": rates, "bf16_flops": flops, "memory_bytes": pages * size}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
