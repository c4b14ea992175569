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


def speculation(method: str, drafts: int) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": drafts}


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
        (workload(request(), num_speculative_tokens=2), "flags.num_speculative_tokens: unknown key"),
        (
            workload(request(), max_num_seqs=65),
            "flags.max_num_batched_tokens: 64 is less than max_num_seqs 65; make it at least that",
        ),
        (workload(request() | {"deadline": 1}), "requests[0].deadline: unknown key `deadline`"),
        (
            workload(request(), enable_chunked_prefill=False),
            "flags.max_num_batched_tokens: 64 is less than max_model_len 4096, and without chunked prefill",
        ),
        (
            workload(request(), max_num_seqs=8, max_num_active_seqs=9),
            "flags.max_num_active_seqs: 9 is more than max_num_seqs 8; make it at most that",
        ),
        (
            workload(request(), max_model_len=32, long_prefill_token_threshold=33),
            "flags.long_prefill_token_threshold: 33 is more than max_model_len 32; make it at most that",
        ),
        (
            workload(request(), long_prefill_token_threshold=3, speculative_config=speculation("ngram", 3)),
            "flags.long_prefill_token_threshold: 3 would cut a token and its 3 drafts apart",
        ),
        (
            workload(request(), max_num_seqs=2, max_num_batched_tokens=3, speculative_config=speculation("ngram", 3)),
            "flags.max_num_batched_tokens: 3 does not hold a token and its 3 drafts",
        ),
        (
            workload(request(), speculative_config=speculation("eagle", 3)) | {"sliding_windows": [None, 20]},
            "flags.speculative_config: eagle is not followed with sliding windows; use ngram, or full attention only",
        ),
        (
            workload(request(), enable_prefix_caching=True, speculative_config=speculation("eagle", 3))
            | {"sliding_windows": [None, None]},
            "flags.speculative_config: eagle is not followed with prefix caching and several KV cache groups",
        ),
        (
            workload(request(), speculative_config=speculation("medusa", 3)),
            "flags.speculative_config.method: 'medusa' is not known; allowed: 'ngram' or 'eagle'",
        ),
        (
            workload(request(), speculative_config=speculation("ngram", 0)),
            "flags.speculative_config.num_speculative_tokens: 0 is not allowed; it must be at least 1",
        ),
        (workload(request(), watermark=1.0), "flags.watermark: 1.0 is not allowed; it must be less than 1"),
        (
            workload(request(), scheduling_policy="lifo"),
            "flags.scheduling_policy: 'lifo' is not known; allowed: 'fcfs' or 'priority'",
        ),
        (workload(request()) | {"sliding_windows": []}, "sliding_windows: [] is too short; at least 1 entry is needed"),
        (
            workload(request()) | {"sliding_windows": [None, 1]},
            "sliding_windows[1]: 1 is not allowed; it must be at least 2",
        ),
        (
            workload(request(max_tokens=4) | {"eos_after": 5}),
            "requests[0].eos_after: 5 is more than max_tokens 4; leave it out or make it less",
        ),
        (
            workload(request() | {"accepted": [1]}),
            "requests[0].accepted: there are no drafts without flags.speculative_config; leave it out or write that",
        ),
        (
            workload(request() | {"accepted": [-1]}, speculative_config=speculation("ngram", 3)),
            "requests[0].accepted[0]: -1 is not allowed; it must be at least 0",
        ),
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
        (
            workload(request(prompt_len=61), num_blocks=5, speculative_config=speculation("eagle", 1)),
            "requests[0]: 66 tokens (slots of drafts included) never fit the 4 usable blocks of 16",
        ),
        (
            workload(request(prompt_len=61), num_blocks=8) | {"sliding_windows": [None, None]},
            "requests[0]: 64 tokens may need 8 blocks in 2 KV cache group(s), which never fit the 7 usable blocks",
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
