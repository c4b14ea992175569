"""The request log's columns are a contract, and what is written is what was there."""

from dataclasses import fields, replace
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulator.engine import EngineConfig
from simulator.log import LOG_COLUMNS, PHASES, STATUSES, RequestLog, write_log
from simulator.run import Window, simulate
from simulator.workload import RequestStream
from tests.step_times import NO_TIME

CONTRACT = [
    "request_id",
    "workload",
    "phase",
    "arrival_s",
    "sent_s",
    "scheduled_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "status",
    "replica",
    "preemptions",
    "itl_max_s",
]

TEXT = ("workload", "phase", "status")
SECONDS = ("arrival_s", "sent_s", "scheduled_s", "first_token_s", "finish_s", "itl_max_s")


def simulated_log() -> RequestLog:
    """Six requests on a small replica, and one too late: all phases; finished, rejected and unfinished ones."""
    steps_s = np.full(65, 0.1) + np.arange(65) / 3000  # thirds, so that text must carry every digit
    model = replace(NO_TIME, decode_s=steps_s, mixed_s=steps_s, request_overhead_s=0.01)
    stream = RequestStream(
        arrival_s=np.array([0.1, 0.2, 0.7, 0.8, 0.9, 1.3, 1.9]),
        prompt_tokens=np.array([8, 16, 8, 500, 1, 8, 8]),
        output_tokens=np.array([4, 2, 9, 6, 1, 30, 1]),
        workload=np.array([0, 1, 0, 1, 1, 0, 0], dtype=np.int32),
        workload_names=("chat", 'déjà vu, quoted "so"'),
        span_s=2.0,
        clipped_fraction=(0.0, 0.0),
    )
    engine = EngineConfig(tensor_parallel_size=1, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024)
    window = Window(start_s=0.15, end_s=1.0)
    return simulate(stream, engine=engine, model=model, num_blocks=8, replicas=1, window=window, drain=False)


def test_the_columns_are_those_of_the_contract_in_this_order() -> None:
    assert list(LOG_COLUMNS) == CONTRACT
    assert list(simulated_log().frame().columns) == CONTRACT


def test_phases_and_statuses_are_words() -> None:
    assert PHASES == ("warmup", "window", "runout")
    assert STATUSES == ("finished", "failed", "rejected", "unfinished")
    frame = simulated_log().frame()
    assert frame["phase"].tolist() == ["warmup", "window", "window", "window", "window", "runout"]
    assert frame["status"].tolist() == ["finished", "finished", "finished", "rejected", "finished", "unfinished"]
    assert set(frame["workload"]) == {"chat", 'déjà vu, quoted "so"'}


def test_requests_are_numbered_in_order_of_arrival() -> None:
    frame = simulated_log().frame()
    assert frame["request_id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["arrival_s"].is_monotonic_increasing


def test_what_never_happened_is_nan_and_never_zero() -> None:
    frame = simulated_log().frame().set_index("status")
    rejected = frame.loc["rejected"]
    assert rejected[["scheduled_s", "first_token_s", "finish_s", "itl_max_s"]].isna().all()
    assert rejected["output_tokens"] == 0 and rejected["replica"] == -1
    assert frame["finish_s"].isna().loc["unfinished"]
    one_token = simulated_log().frame().iloc[4]
    assert one_token["output_tokens"] == 1 and np.isnan(one_token["itl_max_s"])


def test_arrival_is_the_intended_one_and_the_front_end_is_inside_the_latency() -> None:
    frame = simulated_log().frame()
    assert frame["arrival_s"].tolist() == [0.1, 0.2, 0.7, 0.8, 0.9, 1.3]
    assert frame["sent_s"].tolist() == frame["arrival_s"].tolist()
    assert frame["scheduled_s"][0] == 0.1 + 0.01


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        # Python's own float() reads the shortest text back exactly; pandas' default reader does not in every version.
        return pd.read_csv(path, converters=dict.fromkeys(SECONDS, lambda text: float(text or "nan")))
    return pd.read_parquet(path)


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_written_log_reads_back_to_the_last_bit(tmp_path: Path, name: str) -> None:
    log = simulated_log()
    write_log(log, tmp_path / name)
    back = read(tmp_path / name)
    assert list(back.columns) == CONTRACT
    pd.testing.assert_frame_equal(back, log.frame(), check_exact=True, check_dtype=False)
    for column in SECONDS:
        assert back[column].dtype == np.float64
    for column in set(CONTRACT) - set(SECONDS) - set(TEXT):
        assert back[column].dtype == np.int64


@pytest.mark.parametrize("name", ["log.json", "log", "log.parquet.gz", "log.CSV"])
def test_any_other_suffix_is_refused_with_the_two_that_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: the log is written as \.csv or \.parquet$"):
        write_log(simulated_log(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_equal_runs_write_equal_bytes(tmp_path: Path) -> None:
    for name in ("log.csv", "log.parquet"):
        write_log(simulated_log(), tmp_path / f"first-{name}")
        write_log(simulated_log(), tmp_path / f"second-{name}")
        assert (tmp_path / f"first-{name}").read_bytes() == (tmp_path / f"second-{name}").read_bytes()


def test_a_measured_log_needs_no_replica_times() -> None:
    log = simulated_log()
    values = {field.name: getattr(log, field.name) for field in fields(log)}
    measured = RequestLog(**values | {"replica_times": None, "scheduled_s": np.full(len(log), nan)})
    frame = measured.frame()
    assert frame["scheduled_s"].isna().all()
    assert len(frame) == len(log) == 6
