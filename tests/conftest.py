"""Plans are slow to make (seconds), so tests that only read one share it."""

from pathlib import Path

import pytest

from planner.plan_file import Plan
from planner.write_up import make_plan
from simulator.scenario import load_scenario

SMALL_SCENARIO = """\
name: small
model: gpt-oss-120b
hardware: [mi355x]
workloads:
  chat:
    traffic: {rate_rps: 40}
    isl: {mean: 400, cv: 0.5}
    osl: {mean: 120, cv: 0.5}
    slo: {ttft_ms: 400, tpot_ms: 20, attainment: 0.95}
  labels:
    batch: {requests: 1_000_000, within_hours: 8}
    isl: 300
    osl: 2
baseline: {tensor_parallel_size: 8}
engine: {max_model_len: 8192}
search:
  tensor_parallel_size: [1, 8]
  max_num_seqs: [8, 256]
  max_num_batched_tokens: [128, 2048, 16384]
fleet: {spare_servers: 1, headroom: 0.2, max_servers: 16}
cost: {prices: example.yaml, start: 2027-01, horizon_months: 2}
seed: 1
as_of: 2026-12-01
"""


@pytest.fixture(scope="session")
def small_scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(SMALL_SCENARIO)
    return path


@pytest.fixture(scope="session")
def small_plan(small_scenario: Path) -> Plan:
    return make_plan(load_scenario(small_scenario))
