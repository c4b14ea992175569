"""What a plan cost: compilation is taken out of the CPU time on the CPU's own clock."""

import time
from pathlib import Path
from typing import Any

import pytest

from planner.answer import find_answer
from planner.question import make_question
from planner.screen import Screen
from simulator.scenario import load_scenario
from tests.conftest import SMALL_SCENARIO


def test_waiting_while_kernels_compile_is_no_cpu_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of 3 s is longer than all the CPU time that this search takes."""
    compile_kernels = Screen.compile

    def slowly(screen: Screen, configuration: Any) -> None:
        monkeypatch.setattr("planner.screen.simulate", lambda *arguments, **named: time.sleep(1.5))
        compile_kernels(screen, configuration)
        monkeypatch.undo()

    text = SMALL_SCENARIO.replace("[8, 256]", "[256]").replace("[128, 2048, 16384]", "[2048]")
    path = tmp_path / "small.yaml"
    path.write_text(text.replace("tensor_parallel_size: [1, 8]", "tensor_parallel_size: [8]"))
    question = make_question(load_scenario(path))
    monkeypatch.setattr(Screen, "compile", slowly)
    began_cpu_s = time.process_time()
    findings = find_answer(question)
    spent = question.screen.spent
    assert spent.compile_s > 3 > 1 > spent.compile_cpu_s
    assert 0 < findings.cpu_s <= time.process_time() - began_cpu_s
    assert findings.cpu_s == pytest.approx(time.process_time() - began_cpu_s - spent.compile_cpu_s, abs=0.5)
