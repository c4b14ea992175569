"""`python -m simulator.schedule_trace`: what it prints, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.schedule_trace import main

CASES = Path(__file__).parent / "cases"


def workload(*requests: dict[str, Any], num_blocks: int = 100, **flags: Any) -> dict[str, Any]:
    return {"flags": flags, "num_blocks": num_blocks, "requests": list(requests)}


def request(id: str = "a", arrival_step: int = 0, prompt_len: int = 16, max_tokens: int = 4) -> dict[str, Any]:
    return {"id": id, "arrival_step": arrival_step, "prompt_len": prompt_len, "max_tokens": max_tokens}


def play(data: dict[str, Any] | str, folder: Path, engine: str = "reference") -> int:
    path = folder / "workload.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return main([str(path), "--engine", engine])


@pytest.mark.parametrize("engine", ["reference", "kernel"])
@pytest.mark.parametrize("name", ["S01", "S07"])
def test_it_prints_vllms_own_lines_byte_for_byte(name: str, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CASES / f"{name}.workload.json"), "--engine", engine]) == 0
    assert capsys.readouterr().out == (CASES / f"{name}.steps.jsonl").read_text()


@pytest.mark.parametrize("engine", ["reference", "kernel"])
def test_steps_without_a_request_are_counted_and_not_printed(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"id": "late", "arrival_step": 50, "prompt_tokens": [5, 6, 7], "max_tokens": 1}
    assert play(workload(later, request(arrival_step=3, max_tokens=2)), tmp_path, engine) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["step"], line["scheduled"]) for line in lines] == [
        (3, [["a", 16]]),
        (4, [["a", 1]]),
        (50, [["late", 3]]),
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (workload(request(), enable_prefix_caching=True), "flags.enable_prefix_caching: true is not built yet"),
        (workload(request(), enable_chunked_prefill=False), "flags.enable_chunked_prefill: false is not built yet"),
        (
            workload(request(), long_prefill_token_threshold=8),
            "flags.long_prefill_token_threshold: 8 is not built yet; leave it out or write 0",
        ),
        (workload(request(), num_speculative_tokens=2), "flags.num_speculative_tokens: unknown key"),
        (
            workload(request(), max_num_seqs=65),
            "flags.max_num_batched_tokens: 64 is less than max_num_seqs 65; make it at least that",
        ),
        (workload(request() | {"priority": 1}), "requests[0].priority: unknown key `priority`"),
        (workload(request(), request()), "requests[1].id: 'a' is the id of two requests"),
        (workload(request(max_tokens=0)), "requests[0].max_tokens: 0 is not allowed; it must be at least 1"),
        (
            workload({"id": "a", "arrival_step": 0, "max_tokens": 1}),
            "requests[0]: needs prompt_len or prompt_tokens",
        ),
        (
            workload(request(prompt_len=2) | {"prompt_tokens": [1, 2, 3]}),
            "requests[0].prompt_len: 2 differs from the 3 prompt_tokens",
        ),
        (
            workload(request(prompt_len=32), max_model_len=32),
            "requests[0]: a prompt of 32 tokens leaves no room for an answer; vLLM refuses it",
        ),
        (
            workload(request(prompt_len=62), num_blocks=5),
            "requests[0]: 65 tokens never fit the 4 usable blocks of 16 (num_blocks less the null block)",
        ),
        ('{"num_blocks": 4,}', ":1: is not JSON"),
        ("[]", "is not a workload"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    data: dict[str, Any] | str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(data, tmp_path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert problem in printed.err


@pytest.mark.parametrize("engine", ["reference", "kernel"])
def test_a_sequence_that_fills_the_cache_to_its_last_token_is_served(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(workload(request(prompt_len=61), num_blocks=5), tmp_path, engine) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
