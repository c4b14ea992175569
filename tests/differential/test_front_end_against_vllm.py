"""reference = vLLM's front end: the same rank for every request, the same 503s. It needs a vLLM environment."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.reference import Rank, ReferenceFleet
from simulator.scheduler import Scheduler
from simulator.scheduler_settings import SchedulerSettings
from simulator.sequence import Sequence
from simulator.tables import IN_WINDOW
from tests.differential.vllm_traces import FOLDER, vllm_python
from tests.step_times import NO_TIME

NUM_BLOCKS = 10
SETTINGS = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, block_size=16, num_blocks=NUM_BLOCKS)


def request(index: int, prompt_tokens: int) -> Sequence:
    return Sequence(
        index=index, arrival_s=0.0, prompt_tokens=prompt_tokens, output_tokens=1, workload=0, phase=IN_WINDOW
    )


def fleet_of(ranks: int, **limits: int | None) -> ReferenceFleet:
    return ReferenceFleet(
        model=NO_TIME,
        settings=SETTINGS,
        replicas=1,
        least_outstanding=True,
        sequences=[],
        workloads=1,
        released=0,
        closed_loop=False,
        data_parallel_size=ranks,
        **limits,  # type: ignore[arg-type]
    )


def put_in_state(rank: Rank, waiting: int, running: int, free_blocks: int) -> None:
    rank.scheduler = Scheduler(SETTINGS)
    rank.unfinished = waiting + running
    for index in range(waiting):
        rank.scheduler.add(request(index, 16))
    for _ in range(NUM_BLOCKS - free_blocks):
        rank.scheduler.blocks.take()


def random_states(rng: np.random.Generator, ranks: int) -> list[tuple[int, int, int]]:
    """Waiting, running, free blocks; half of the ranks have nobody waiting, and many are alike."""
    return [
        (
            int(rng.integers(0, 7)) * int(rng.random() < 0.5),
            int(rng.integers(0, 4)),
            int(rng.integers(0, NUM_BLOCKS + 1)),
        )
        for _ in range(ranks)
    ]


def random_queue(rng: np.random.Generator) -> tuple[int | None, int | None, list[tuple[int, bool]]]:
    requests = [(int(rng.integers(1, 50)), bool(rng.random() < 0.5)) for _ in range(int(rng.integers(0, 9)))]
    max_reqs = int(rng.integers(1, 9)) if rng.random() < 0.5 else None
    return max_reqs, int(rng.integers(1, 150)) if rng.random() < 0.5 else None, requests


def ask(python: Path, folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps(question))
    command = [str(python), str(FOLDER / "vllm_front_end_oracle.py"), str(asked), str(answered)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, env=environment, cwd=folder, timeout=300)
    answer: dict[str, Any] = json.loads(answered.read_text())
    return answer


@pytest.mark.hardware
def test_ranks_and_503s_are_those_of_vllms_own_front_end(tmp_path: Path) -> None:
    python = vllm_python()
    if python is None:
        how = "make .venv-vllm as tests/vllm/README.md says, or set GOODFLEET_VLLM_PYTHON"
        if "GOODFLEET_VLLM_REQUIRED" in os.environ:
            pytest.fail(f"no vLLM environment: {how}")
        pytest.skip(f"no vLLM environment: {how}")
    seed = int(os.environ.get("GOODFLEET_VLLM_SEED", np.random.SeedSequence().generate_state(1)[0]))
    print(f"\nGOODFLEET_VLLM_SEED={seed}")
    rng = np.random.default_rng(seed)
    fleets = [[random_states(rng, ranks) for _ in range(20)] for ranks in rng.integers(2, 6, 500)]
    queues = [random_queue(rng) for _ in range(5000)]
    shares = [[[(w, r, free / NUM_BLOCKS) for w, r, free in state] for state in states] for states in fleets]
    answer = ask(python, tmp_path, {"ranks": shares, "queues": queues})

    for states, chosen in zip(fleets, answer["ranks"], strict=True):
        fleet = fleet_of(len(states[0]))
        for state, number in zip(states, chosen, strict=True):
            for rank, row in zip(fleet.replicas[0], state, strict=True):
                put_in_state(rank, *row)
            assert fleet.choose_rank(0).number == number, (seed, states)
    for (max_reqs, max_tokens, requests), refused in zip(queues, answer["queues"], strict=True):
        fleet = fleet_of(1, max_num_queued_reqs=max_reqs, max_num_queued_tokens=max_tokens)
        (rank,) = fleet.replicas[0]
        rank.unfinished = len(requests)
        rank.prefill_tokens = sum(tokens for tokens, prefilling in requests if prefilling)
        assert fleet.queue_is_full([rank]) == refused, (seed, max_reqs, max_tokens, requests)
    print(f"{20 * len(fleets)} requests to ranks, {len(queues)} front ends, {sum(answer['queues'])} of them refuse")
