"""A calibration finds what made the rows, marks the row that lies, and says the same twice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.fit_evidence import load_covariance, load_held_out, load_residuals
from hardware_profiles.model import load_model_card
from hardware_profiles.node import load_node
from hardware_profiles.profile import load_profile
from simulator.all_reduce_curve import all_reduce_curves, link_bytes_per_s
from simulator.benchmark_rows import BenchmarkRow, RowFile
from simulator.calibration import FittedProfile, fit_profile, write_profile
from simulator.closed_loop import predict, predict_rows, row_blocks
from simulator.coefficients import Layout, build_model, layout_for
from simulator.engine import EngineConfig
from simulator.held_out import NORMAL_80
from simulator.run import simulate
from simulator.steptime import StepTimeModel
from simulator.workload import RequestStream

NODE = load_node("mi355x")
CARD = load_model_card("gpt-oss-120b")
CURVES = all_reduce_curves(NODE, (1, 4))
LAYOUT = layout_for(CARD, (1, 4), all_reduce_bits=16.0, with_ttft=True)
FILE = RowFile(path="rows.csv", source=("a test",), caveat=("made up",), as_of="2026-01-01")


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Coefficients half a standard deviation off the typical ones, and degrees that differ."""
    generator = np.random.default_rng(5)
    return 0.5 * generator.standard_normal(LAYOUT.size)


def true_model(degree: int) -> StepTimeModel:
    return build_model(
        LAYOUT.values(truth(), degree),
        degree,
        node=NODE,
        card=CARD,
        precision="mxfp4",
        curves=CURVES,
        max_tokens=8192,
        kv_cache_dtype="auto",
    )


def made_rows() -> tuple[BenchmarkRow, ...]:
    """What the simulator itself measures under the true coefficients."""
    rows = [
        BenchmarkRow(
            gpu="mi355x",
            model="gptoss120b",
            precision="fp4",
            framework="vllm",
            tensor_parallel_size=degree,
            isl=isl,
            osl=osl,
            concurrency=concurrency,
            tpot_s=1.0,
            tokens_per_s=1.0,
            file=FILE,
        )
        for degree in (1, 4)
        for isl, osl in ((256, 256), (2048, 128), (128, 1024))
        for concurrency in (2, 8, 32)
    ]
    models = {(degree, "auto"): true_model(degree) for degree in (1, 4)}
    gap_s = LAYOUT.values(truth(), None)["client_gap_s"]
    measured = predict(rows, models, [400_000] * len(rows), gap_s=gap_s, seed=1)
    return tuple(
        replace(row, tpot_s=float(tpot_s), tokens_per_s=float(rate), ttft_s=float(ttft_s))
        for row, (tpot_s, rate, ttft_s) in zip(rows, measured, strict=True)
    )


@pytest.fixture(scope="module")
def rows() -> tuple[BenchmarkRow, ...]:
    return made_rows()


def fitted_to(rows: tuple[BenchmarkRow, ...], *, leave_out: bool = False, seed: int = 1) -> FittedProfile:
    return fit_profile(
        rows, node=NODE, card=CARD, precision="fp4", engine="vllm", seed=seed, leave_out=leave_out, starts=1
    )


@pytest.fixture(scope="module")
def fitted(rows: tuple[BenchmarkRow, ...]) -> FittedProfile:
    return fitted_to(rows, leave_out=True)


def test_rows_made_by_the_simulator_are_predicted_to_a_few_tenths_of_a_percent(fitted: FittedProfile) -> None:
    assert list(fitted.file.errors["in sample"]) == ["tpot", "throughput", "ttft"]
    for metric, figures in fitted.file.errors["in sample"].items():
        noise = 5.0 if metric == "ttft" else 1.0  # as the fit assumes
        assert figures.rows == 18
        assert figures.median < 0.005 * noise
        assert figures.worst < 0.015 * noise


def test_the_coefficients_that_matter_are_found_again(fitted: FittedProfile) -> None:
    for degree, terms in fitted.file.tensor_parallel.items():
        true = LAYOUT.values(truth(), degree)
        assert terms.step_floor_s == pytest.approx(true["step_floor_s"], rel=0.05)
        assert terms.prefill_floor_s == pytest.approx(true["prefill_floor_s"], rel=0.25)
    shared = LAYOUT.values(truth(), None)
    assert fitted.file.shared.client_gap_s == pytest.approx(shared["client_gap_s"], rel=0.1)
    assert fitted.file.shared.request_overhead_s == pytest.approx(shared["request_overhead_s"], rel=0.1)


def test_every_group_of_rows_is_left_out_once(fitted: FittedProfile) -> None:
    for name in ("leave one concurrency out", "leave one shape out", "leave one TP out"):
        assert fitted.file.errors[name]["tpot"].rows == 18
        assert fitted.file.errors[name]["tpot"].worst >= fitted.file.errors["in sample"]["tpot"].worst


def test_the_profile_says_what_it_is(fitted: FittedProfile) -> None:
    file = fitted.file
    assert file.name == "mi355x/gpt-oss-120b-mxfp4-vllm"
    assert file.measured.tensor_parallel_size == (1, 4)
    assert (file.measured.concurrency, file.measured.isl, file.measured.osl) == ((2, 32), (128, 2048), (128, 1024))
    assert file.sources == ("a test",)
    assert file.caveats[0] == "made up"
    assert file.as_of == "2026-01-01"
    assert file.command.startswith("goodfleet profile fit rows.csv --node mi355x --model gpt-oss-120b")
    assert "0.00%" in file.kv_sensitivity


def test_equal_rows_and_seed_give_equal_bytes_and_another_order_of_rows_does_not_matter(
    rows: tuple[BenchmarkRow, ...], tmp_path: Path
) -> None:
    for folder, order in (("a", rows), ("b", rows[::-1])):
        write_profile(fitted_to(order[:]), tmp_path / folder / "profile.yaml")
    for name in ("profile.yaml", "profile.residuals.csv", "profile.covariance.csv"):
        assert not (tmp_path / "a" / "profile.held-out.csv").exists()
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_written_profile_predicts_what_its_residuals_say(
    fitted: FittedProfile, rows: tuple[BenchmarkRow, ...], tmp_path: Path
) -> None:
    path = tmp_path / "profile.yaml"
    write_profile(fitted, path)
    profile = load_profile(path)
    held = load_residuals(profile)
    order = [(row.tensor_parallel_size, row.isl, row.osl, row.concurrency) for row in held]
    sorted_rows = sorted(rows, key=lambda r: order.index((r.tensor_parallel_size, r.isl, r.osl, r.concurrency)))
    predicted = predict_rows(profile, sorted_rows, node=NODE, card=CARD)
    assert predicted[:, 0] == pytest.approx([row.predicted_tpot_s for row in held], rel=1e-5)
    assert predicted[:, 1] == pytest.approx([row.predicted_tokens_per_s for row in held], rel=1e-5)
    assert predicted[:, 2] == pytest.approx([row.predicted_ttft_s for row in held], rel=1e-5)
    assert "--out profile.yaml" in profile.command
    covariance = load_covariance(profile)
    assert covariance is not None and "tensor_parallel.4.kv_efficiency" in covariance.terms


def test_predictions_of_rows_left_out_stand_beside_the_profile_and_give_its_figures(
    fitted: FittedProfile, tmp_path: Path
) -> None:
    write_profile(fitted, tmp_path / "profile.yaml")
    profile = load_profile(tmp_path / "profile.yaml")
    held_out = load_held_out(profile)
    for name, metrics in profile.errors.items():
        if name == "in sample":
            continue
        for metric, figures in metrics.items():
            rows = [row for row in held_out if (row.evaluation, row.metric) == (name, metric)]
            errors = np.array([row.predicted / row.measured - 1.0 for row in rows])
            assert len(rows) == figures.rows
            assert np.median(np.abs(errors)) == pytest.approx(figures.median, rel=0.01, abs=1e-5)
            assert all(row.stated_sd > 0 for row in rows)


def test_the_factor_on_intervals_makes_eighty_percent_cover_eighty_percent(fitted: FittedProfile) -> None:
    scales = {True: fitted.file.degree_interval_scale, False: fitted.file.interval_scale}
    for of_degree, scale in scales.items():
        pairs = [
            row
            for row in fitted.held_out
            if row.metric != "ttft" and (row.evaluation == "leave one TP out") == of_degree
        ]
        width = NORMAL_80 * scale
        inside = [abs(math.log(row.predicted / row.measured)) <= width * row.stated_sd for row in pairs]
        assert np.mean(inside) == pytest.approx(0.8, abs=0.03)
    assert scales[True] != scales[False]
    assert all(0.0 <= share <= 1.0 for shares in fitted.file.coverage.values() for share in shares.values())


def test_an_open_loop_with_mean_figures_is_fitted_under_its_own_protocol() -> None:
    model = true_model(1)
    rows = [
        BenchmarkRow(
            gpu="mi355x",
            model="gptoss120b",
            precision="fp4",
            framework="vllm",
            file=FILE,
            tensor_parallel_size=1,
            isl=512,
            osl=128,
            concurrency=None,
            request_rate_rps=rate,
            requests=300,
            length_low=0.5,
            length_high=1.5,
            tpot_s=1.0,
            tokens_per_s=None,
            tpot_statistic="mean",
            ttft_statistic="mean",
            max_num_seqs=64,
        )
        for rate in (2.0, 8.0, 20.0)
    ]
    measured = predict(rows, {(1, "auto"): model}, [400_000] * 3, gap_s=0.0, seed=1)
    assert (np.diff(measured[:, 0]) > 0).all()  # more load, slower tokens
    medians = [replace(row, tpot_statistic="median", ttft_statistic="median") for row in rows]
    assert (predict(medians, {(1, "auto"): model}, [400_000] * 3, gap_s=0.0, seed=1) != measured)[:, [0, 2]].all()
    told = tuple(
        replace(row, tpot_s=float(tpot_s), ttft_s=float(ttft_s))
        for row, (tpot_s, _, ttft_s) in zip(rows, measured, strict=True)
    )
    found = fitted_to(told)
    assert set(found.file.errors["in sample"]) == {"tpot", "ttft"}
    assert found.file.errors["in sample"]["tpot"].worst < 0.02
    assert found.residuals[0].measured_tokens_per_s is None
    assert found.residuals[0].request_rate_rps == 2.0
    assert found.file.measured.concurrency[1] > found.file.measured.concurrency[0]


def test_synchronous_scheduling_adds_the_hosts_time() -> None:
    model = replace(true_model(1), host_s=0.004)
    row = made_rows()[0]
    overlapped, added = (
        predict([replace(row, async_scheduling=a)], {(1, "auto"): model}, [400_000], gap_s=0.0, seed=1)[0, 0]
        for a in (True, False)
    )
    assert added > overlapped


def test_what_the_server_printed_replaces_the_memory_formula() -> None:
    row = made_rows()[0]
    assert row_blocks(replace(row, kv_cache_tokens=1600), node=NODE, card=CARD, precision="mxfp4") == 100
    assert row_blocks(row, node=NODE, card=CARD, precision="mxfp4") > 100_000


def test_a_variant_is_a_profile_of_its_own(rows: tuple[BenchmarkRow, ...]) -> None:
    spread = tuple(replace(row, variant="ep8", tensor_parallel_size=1) for row in rows if row.tensor_parallel_size == 1)
    file = fit_profile(
        (*rows, *spread), node=NODE, card=CARD, precision="fp4", variant="ep8", leave_out=False, starts=1
    ).file
    assert (file.name, file.variant) == ("mi355x/gpt-oss-120b-mxfp4-vllm-ep8", "ep8")
    assert "--variant ep8" in file.command
    assert any("18 rows left out: variant plain" in caveat for caveat in file.caveats)


def test_a_row_that_lies_loses_its_weight_visibly_and_does_not_bend_the_rest(rows: tuple[BenchmarkRow, ...]) -> None:
    liar = replace(rows[4], tpot_s=rows[4].tpot_s * 1.25, tokens_per_s=(rows[4].tokens_per_s or 0.0) / 1.25)
    found = fitted_to((*rows[:4], liar, *rows[5:]))
    marked = [row for row in found.residuals if row.weight < 1]
    assert [(row.isl, row.osl, row.concurrency) for row in marked] == [(liar.isl, liar.osl, liar.concurrency)]
    assert "robust loss" in marked[0].note
    assert found.file.errors["in sample"]["tpot"].median < 0.01


def test_a_row_down_weighted_by_hand_keeps_its_note_and_is_counted_apart(rows: tuple[BenchmarkRow, ...]) -> None:
    odd = replace(rows[0], tpot_s=rows[0].tpot_s * 1.5, weight=0.1, note="other kernel")
    found = fitted_to((odd, *rows[1:]))
    assert next(row for row in found.residuals if row.weight < 1).note.startswith("other kernel")
    assert found.file.errors["in sample"]["tpot"].rows == 17
    assert found.file.errors["in sample, all rows"]["tpot"].rows == 18


def test_missing_shapes_and_a_single_degree_are_named(rows: tuple[BenchmarkRow, ...]) -> None:
    square = tuple(row for row in rows if row.isl == row.osl and row.tensor_parallel_size == 1)
    caveats = " ".join(fitted_to(square).file.caveats)
    assert "No prefill-heavy shape" in caveats
    assert "No decode-heavy shape" in caveats
    assert "One tensor-parallel degree only" in caveats


def test_fewer_rows_leave_the_prefill_less_well_known(fitted: FittedProfile, rows: tuple[BenchmarkRow, ...]) -> None:
    def sd(found: FittedProfile, term: str) -> float:
        i = found.covariance.terms.index(term)
        return math.sqrt(found.covariance.matrix[i][i])

    decode_only = fitted_to(tuple(row for row in rows if row.osl == 1024))
    assert sd(decode_only, "typical.flop_efficiency") > 1.5 * sd(fitted, "typical.flop_efficiency")


def test_a_degree_never_measured_gets_the_shared_values() -> None:
    layout = Layout(terms=LAYOUT.terms, degrees=(1, 4))
    z = np.zeros(layout.size)
    z[layout.columns(4)] = 1.0
    assert layout.values(z, None) == layout.values(z, 1)
    raised = layout.values(z, 4)
    assert raised["step_floor_s"] == pytest.approx(layout.values(z, None)["step_floor_s"] * np.exp(0.1))


def test_efficiencies_stay_below_one_however_far_the_search_goes() -> None:
    values = LAYOUT.values(np.full(LAYOUT.size, 5.0), 4)
    assert all(0.99 < value < 1.0 for name, value in values.items() if name.endswith("_efficiency"))
    assert values["large_share"] < 1.0
    assert link_bytes_per_s(NODE, 8) == pytest.approx(4 * 76.8e9)


@pytest.mark.parametrize("room", [100.0, 0.93])
def test_the_closed_loop_is_the_one_that_simulate_runs(rows: tuple[BenchmarkRow, ...], room: float) -> None:
    row = rows[4]
    model = true_model(row.tensor_parallel_size)
    concurrency = row.concurrency or 0
    requests = 10 * concurrency
    generator = np.random.default_rng([1, 0, row.isl, row.osl, requests])
    stream = RequestStream(
        arrival_s=np.where(np.arange(requests) < concurrency, 0.0, np.nan),
        prompt_tokens=generator.integers(int(0.8 * row.isl), row.isl + 1, requests),
        output_tokens=generator.integers(int(0.8 * row.osl), row.osl + 1, requests),
        workload=np.zeros(requests, dtype=np.int32),
        workload_names=("rows",),
        span_s=float("nan"),
        clipped_fraction=(0.0,),
        concurrency=row.concurrency,
    )
    engine = EngineConfig(tensor_parallel_size=1, max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192)
    blocks = int(room * concurrency * row.isl / engine.block_size)
    log = simulate(stream, engine=engine, model=model, num_blocks=blocks, replicas=1)
    assert (log.preemptions.sum() > 0) == (room < 2)
    tpot_s = np.median((log.finish_s - log.first_token_s) / (log.output_tokens - 1))
    key = (row.tensor_parallel_size, "auto")
    ((found_tpot_s, found_rate, found_ttft_s),) = predict([row], {key: model}, [blocks], gap_s=0.0, seed=1, streams=1)
    assert found_tpot_s == pytest.approx(tpot_s)
    waited_s = log.first_token_s - log.arrival_s
    assert found_ttft_s == pytest.approx(np.median(waited_s))
    tokens = stream.prompt_tokens.sum() + stream.output_tokens.sum()
    shift_s = model.request_overhead_s  # simulate delays the first wave too; the benchmark's clock starts at its send
    assert found_rate == pytest.approx(tokens / (log.finish_s.max() - shift_s))


def test_where_nobody_measured_the_all_reduce_it_is_assumed_and_says_so() -> None:
    node = replace(load_node("h200"), name="nobody-measured")
    curve = all_reduce_curves(node, (2, 8))[8]
    assert curve.how_known.startswith("assumed")
    assert curve.bytes_per_s == pytest.approx(0.75 * 8 / 14 * node.scaleup_bytes_per_s)
    assert CURVES[4].bytes_per_s == 120.7e9


CURVE_HEADER = "gpu,world_size,latency_floor_us,effective_gb_per_s,valid_to_bytes,source"
CURVE = "MI355X,4,10,120,3000000,a bench"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "curves.csv: cannot be read: No such file or directory"),
        ("", "curves.csv: the file is empty; it needs a header with world_size, latency_floor_us"),
        (f"# words\n{CURVE_HEADER}\n", "curves.csv: holds no curve; write one line per"),
        (f"{CURVE_HEADER.replace('source', 'from')}\n{CURVE}\n", "curves.csv: has no column source; it needs"),
        (f"# a\n{CURVE_HEADER}\n# b\n{CURVE.replace(',4,', ',four,')}\n", "curves.csv:4: world_size: 'four' is not"),
        (f"{CURVE_HEADER}\n{CURVE.replace(',10,', ',-1,')}\n", "curves.csv:2: latency_floor_us: '-1' is not allowed"),
        (f"{CURVE_HEADER}\n{CURVE.replace(',120,', ',nan,')}\n", "curves.csv:2: effective_gb_per_s: 'nan' is not"),
        (f"{CURVE_HEADER}\n{CURVE.replace('3000000', '9e6')}\n", "it must be a number from 1 to 7.992e+06"),
        (f"{CURVE_HEADER}\n{CURVE}\n{CURVE}\n", "curves.csv:3: world_size: 4 stands twice; keep one"),
        (f"{CURVE_HEADER}\n{CURVE},1\n", "curves.csv:2: has 7 fields where the header has 6"),
    ],
)
def test_a_broken_file_of_all_reduce_curves_is_refused_with_its_place(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "curves.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as raised:
        all_reduce_curves(NODE, (1, 4), path)
    assert words in str(raised.value)


def test_a_curve_of_another_gpu_says_so(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(f"{CURVE_HEADER}\n{CURVE}\n{CURVE.replace('MI355X,4', 'H100,2')}\n")
    curves = all_reduce_curves(NODE, (1, 2, 4), path)
    assert (curves[2].other_gpu, curves[4].other_gpu) == ("H100", None)
    assert "on H100, another GPU than AMD Instinct MI355X" in curves[2].how_known
    for node in ("b200", "h100", "h200", "mi300x", "mi325x", "mi355x"):
        shipped = all_reduce_curves(load_node(node), (2, 4, 8))
        assert not any(curve.other_gpu for curve in shipped.values())
