"""The targets of one machine keep the contract of all targets, with a stand-in for vLLM."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.target_contract import FLAGS, TargetContract
from validator.targets.local import AttachedTarget, LocalTarget
from validator.targets.target import Target

STUB = (sys.executable, str(Path(__file__).parents[1] / "stub_vllm.py"))


class TestLocalTarget(TargetContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return LocalTarget(model="m", folder=tmp_path, command=STUB)

    @pytest.fixture
    def broken_target(self, tmp_path: Path) -> Target:
        return LocalTarget(model="m", folder=tmp_path, command=STUB, environment={"STUB_VLLM": "refuses"})


class TestAttachedTarget(TargetContract):
    owns_server = False

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        with LocalTarget(model="m", folder=tmp_path, command=STUB).running(FLAGS) as server:
            yield AttachedTarget(url=server.url)

    @pytest.fixture
    def broken_target(self) -> Target:
        return AttachedTarget(url="http://127.0.0.1:9")
