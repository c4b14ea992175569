"""Arrivals and lengths have the statistics the user wrote, and the same random numbers at every load."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from simulator.arrivals import offered_rps
from simulator.lengths import Lengths, LognormalLengths, UniformLengths, draw_lengths
from simulator.shared_prefix import Prefix, draw_documents, popularities
from simulator.slo import Slo
from simulator.traces import Trace
from simulator.traffic import Batch, ClosedTraffic, RateTraffic, TraceTraffic, Workload
from simulator.workload import RequestStream, StreamSource, make_stream

TARGETS = Slo(ttft_ms=500, tpot_ms=40)


def online(rate_rps: float, *, isl: Lengths = 100, osl: Lengths = 50, burstiness: float | None = None) -> Workload:
    arrivals = RateTraffic(
        rate_rps=rate_rps, arrivals="poisson" if burstiness is None else "gamma", burstiness=burstiness
    )
    return Workload(traffic=arrivals, isl=isl, osl=osl, slo=TARGETS)


def recording(scale: float = 1.0) -> Workload:
    return Workload(traffic=TraceTraffic(trace="t.csv", scale=scale), slo=TARGETS)


def trace_of(arrival_s: list[float], prompt_tokens: list[int], output_tokens: list[int]) -> Trace:
    return Trace(
        path=Path("t.csv"),
        format="csv",
        sha256="",
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.array(prompt_tokens),
        output_tokens=np.array(output_tokens),
        rows_read=len(arrival_s),
        dropped={},
        out_of_order=0,
    )


def long_trace(rows: int = 2_000, rate_rps: float = 5.0) -> Trace:
    generator = np.random.default_rng(11)
    arrival_s = np.cumsum(generator.exponential(1 / rate_rps, rows))
    # Each row's prompt length is its number, so that a replayed request can be recognised.
    return trace_of(list(arrival_s - arrival_s[0]), list(range(1, rows + 1)), [7] * rows)


def columns(stream: RequestStream) -> tuple[bytes, ...]:
    parts = (stream.arrival_s, stream.prompt_tokens, stream.output_tokens, stream.workload)
    return tuple(part.tobytes() for part in parts)


def one(workload: Workload, *, count: int = 40_000, multiplier: float = 1.0, seed: int = 3) -> RequestStream:
    return make_stream(
        {"w": workload}, multiplier=multiplier, requests={"w": count}, seed=seed, max_model_len=1_000_000
    )


def test_lognormal_lengths_have_the_written_mean_and_cv() -> None:
    for mean, cv in ((256, 0.6), (6000, 1.2), (512, 0.0)):
        seeds = np.random.SeedSequence(5).spawn(20)
        draws = [draw_lengths(LognormalLengths(mean=mean, cv=cv), 20_000, np.random.default_rng(s)) for s in seeds]
        means = np.array([draw.mean() for draw in draws])
        cvs = np.array([draw.std() / draw.mean() for draw in draws])
        assert abs(means.mean() - mean) <= 4 * means.std(ddof=1) / math.sqrt(20) + 1e-9
        assert abs(cvs.mean() - cv) <= 4 * cvs.std(ddof=1) / math.sqrt(20) + 0.002  # rounding adds 1/12 to the variance


def test_uniform_lengths_reach_both_bounds_and_nothing_else() -> None:
    draw = draw_lengths(UniformLengths(uniform=(8, 10)), 30_000, np.random.default_rng(1))
    values, counts = np.unique(draw, return_counts=True)
    assert values.tolist() == [8, 9, 10]
    assert np.abs(counts - 10_000).max() < 5 * math.sqrt(10_000 * 2 / 3)


def test_no_length_is_below_one_token() -> None:
    draw = draw_lengths(LognormalLengths(mean=1, cv=3), 10_000, np.random.default_rng(1))
    assert draw.min() == 1


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(one(online(8.0)).arrival_s)
    assert abs(gaps.mean() * 8 - 1) < 4 / math.sqrt(len(gaps))
    assert abs(gaps.std() / gaps.mean() - 1) < 0.03
    assert abs((gaps > 1 / 8).mean() - math.exp(-1)) < 4 * math.sqrt(0.37 * 0.63 / len(gaps))


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 4.0])
def test_burstiness_is_the_gamma_shape_so_the_cv_of_gaps_is_one_over_its_root(burstiness: float) -> None:
    gaps = np.diff(one(online(8.0, burstiness=burstiness), count=100_000).arrival_s)
    cv = 1 / math.sqrt(burstiness)
    assert abs(gaps.mean() * 8 - 1) < 4 * cv / math.sqrt(len(gaps))
    assert abs(gaps.std() / gaps.mean() / cv - 1) < 0.05


def test_another_multiplier_scales_the_same_gaps_and_keeps_every_length() -> None:
    workload = online(8.0, isl=LognormalLengths(mean=300, cv=1), osl=UniformLengths(uniform=(10, 90)), burstiness=0.5)
    low, high = one(workload, count=500, multiplier=0.5), one(workload, count=500, multiplier=4.0)
    np.testing.assert_allclose(low.arrival_s, high.arrival_s * 8, rtol=1e-12)
    assert low.prompt_tokens.tobytes() == high.prompt_tokens.tobytes()
    assert low.output_tokens.tobytes() == high.output_tokens.tobytes()


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    workload = online(8.0, isl=LognormalLengths(mean=300, cv=1), osl=UniformLengths(uniform=(10, 90)), burstiness=0.5)
    short, long = one(workload, count=300), one(workload, count=5_000)
    assert long.arrival_s[:300].tobytes() == short.arrival_s.tobytes()
    assert long.prompt_tokens[:300].tobytes() == short.prompt_tokens.tobytes()
    assert long.output_tokens[:300].tobytes() == short.output_tokens.tobytes()


def test_equal_seeds_give_equal_bytes_and_another_seed_does_not() -> None:
    mix = {
        "chat": online(8.0, isl=LognormalLengths(mean=300, cv=1)),
        "batch": Workload(batch=Batch(requests=1000, within_hours=1), isl=9, osl=2),
    }
    streams = [make_stream(mix, multiplier=1, duration_s=60, seed=seed, max_model_len=4096) for seed in (7, 7, 8)]
    assert columns(streams[0]) == columns(streams[1])
    assert columns(streams[0]) != columns(streams[2])


def test_a_seed_sequence_can_be_used_twice() -> None:
    seed = np.random.SeedSequence(7).spawn(2)[1]
    first, second = (
        make_stream({"chat": online(8.0)}, multiplier=1, duration_s=9, seed=seed, max_model_len=4096) for _ in range(2)
    )
    assert columns(first) == columns(second)


def test_a_workload_keeps_its_requests_when_others_come_go_or_move() -> None:
    chat, rag = online(8.0, isl=LognormalLengths(mean=300, cv=1)), online(5.0)
    alone = make_stream({"chat": chat}, multiplier=1, duration_s=30, seed=1, max_model_len=4096)
    mixed = make_stream({"rag": rag, "chat": chat}, multiplier=1, duration_s=30, seed=1, max_model_len=4096)
    of_chat = mixed.workload == mixed.workload_names.index("chat")
    assert mixed.arrival_s[of_chat].tobytes() == alone.arrival_s.tobytes()
    assert mixed.prompt_tokens[of_chat].tobytes() == alone.prompt_tokens.tobytes()


def test_two_workloads_with_equal_settings_are_independent() -> None:
    stream = make_stream(
        {"a": online(8.0), "b": online(8.0)}, multiplier=1, requests={"a": 5_000, "b": 5_000}, seed=1, max_model_len=999
    )
    gaps = [np.diff(stream.arrival_s[stream.workload == index]) for index in (0, 1)]
    assert abs(np.corrcoef(gaps[0], gaps[1])[0, 1]) < 4 / math.sqrt(5_000)


def test_streams_are_merged_in_order_of_time() -> None:
    mix = {"a": online(8.0), "b": online(3.0), "c": online(0.5)}
    stream = make_stream(mix, multiplier=2, duration_s=200, seed=1, max_model_len=999)
    assert np.all(np.diff(stream.arrival_s) >= 0)
    assert stream.arrival_s[-1] < stream.span_s == 200
    counts = np.bincount(stream.workload)
    for count, rate_rps in zip(counts, (8.0, 3.0, 0.5), strict=True):
        assert abs(count - rate_rps * 400) < 5 * math.sqrt(rate_rps * 400)


def test_a_batch_is_evenly_spaced_and_all_of_it_has_arrived_before_the_deadline_starts() -> None:
    batch = Batch(requests=3_600, within_hours=2)
    stream = one(Workload(batch=batch, isl=512, osl=4), count=3_600)
    spacing_s = 0.95 * 7200 / 3600
    np.testing.assert_allclose(np.diff(stream.arrival_s), spacing_s, rtol=1e-9)
    assert 0 <= stream.arrival_s[0] < spacing_s
    assert stream.arrival_s[-1] + batch.deadline_s <= 7200
    assert batch.deadline_s == pytest.approx(0.05 * 7200)


def test_lengths_are_cut_to_the_context_window_and_the_share_is_reported() -> None:
    workload = online(8.0, isl=LognormalLengths(mean=600, cv=1), osl=200)
    stream = make_stream({"w": workload}, multiplier=1, requests={"w": 20_000}, seed=1, max_model_len=1000)
    assert (stream.prompt_tokens + stream.output_tokens).max() == 1000
    assert stream.output_tokens.min() == 200  # the prompt gives way, not the answer
    free = one(workload, count=20_000, seed=1)
    assert stream.clipped_fraction == (float((free.prompt_tokens > 800).mean()),)
    assert 0.1 < stream.clipped_fraction[0] < 0.4
    assert free.clipped_fraction == (0.0,)


def test_a_closed_loop_starts_with_its_concurrency_and_leaves_the_rest_to_the_answers() -> None:
    workload = Workload(traffic=ClosedTraffic(concurrency=4), isl=UniformLengths(uniform=(8, 10)), osl=5)
    stream = one(workload, count=40)
    assert stream.concurrency == 4
    assert np.count_nonzero(stream.arrival_s == 0) == 4
    assert np.count_nonzero(np.isnan(stream.arrival_s)) == 36
    assert len(stream) == 40 and math.isnan(stream.span_s)


def test_a_closed_loop_has_no_rate_to_multiply() -> None:
    workload = Workload(traffic=ClosedTraffic(concurrency=4), isl=8, osl=5)
    with pytest.raises(ValueError, match="closed loop"):
        one(workload, count=40, multiplier=2.0)
    with pytest.raises(ValueError, match="closed loop"):
        StreamSource({"w": workload}, seed=1, requests=100, max_model_len=999)


def test_a_replayed_trace_keeps_its_times_lengths_and_order_around_the_circle() -> None:
    trace = long_trace()
    stream = make_stream(
        {"w": recording()},
        multiplier=1,
        duration_s=trace.period_s,
        seed=4,
        max_model_len=10_000,
        traces={"w": trace},
    )
    rows = stream.prompt_tokens - 1
    assert sorted(rows.tolist()) == list(range(2_000))  # once around: every request once
    start = int(rows[0])
    assert start != 0  # a random start
    assert rows.tolist() == [*range(start, 2_000), *range(start)]
    gaps = np.diff(trace.arrival_s)
    np.testing.assert_allclose(np.diff(stream.arrival_s)[: 2_000 - start - 1], gaps[start:], atol=1e-9)


def test_a_trace_starts_elsewhere_for_another_seed() -> None:
    trace = long_trace()
    starts = {
        int(
            make_stream(
                {"w": recording()}, multiplier=1, duration_s=50, seed=s, max_model_len=10_000, traces={"w": trace}
            ).prompt_tokens[0]
        )
        for s in range(10)
    }
    assert len(starts) == 10


def test_a_smaller_load_is_a_subset_of_a_larger_one() -> None:
    trace = long_trace()
    sets = []
    for multiplier in (0.1, 0.35, 0.9, 1.0, 1.4, 2.6, 3.0):
        stream = make_stream(
            {"w": recording()},
            multiplier=multiplier,
            duration_s=1.7 * trace.period_s,
            seed=4,
            max_model_len=10_000,
            traces={"w": trace},
        )
        sets.append(set(zip(stream.arrival_s.tolist(), stream.prompt_tokens.tolist(), strict=True)))
        expected = multiplier * 1.7 * 2_000
        assert abs(len(sets[-1]) - expected) < 5 * math.sqrt(expected) + 1
    for smaller, larger in itertools.pairwise(sets):
        assert smaller < larger


def test_superposed_copies_are_turned_against_each_other_and_never_squeezed() -> None:
    trace = long_trace()
    stream = make_stream(
        {"w": recording(scale=2.0)},
        multiplier=1.5,
        duration_s=trace.period_s,
        seed=4,
        max_model_len=10_000,
        traces={"w": trace},
    )
    rows = stream.prompt_tokens - 1
    assert np.bincount(rows).tolist() == [3] * 2_000  # load 3: three whole copies
    of_row = stream.arrival_s[rows == 1_000]
    later = stream.arrival_s[rows == 1_001]
    gap = trace.arrival_s[1_001] - trace.arrival_s[1_000]
    differences = (later[:, None] - of_row[None, :]) % trace.period_s
    assert np.isclose(differences, gap, atol=1e-6).sum() == 3  # in each copy the recorded gap
    assert np.diff(np.sort(of_row)).min() > 1.0  # at three different times
    assert offered_rps(recording(scale=2.0), trace) == pytest.approx(2 * trace.rate_rps)


def test_a_thinned_trace_does_not_repeat_the_same_requests_every_lap() -> None:
    trace = long_trace()
    stream = make_stream(
        {"w": recording()},
        multiplier=0.2,
        duration_s=2 * trace.period_s,
        seed=4,
        max_model_len=10_000,
        traces={"w": trace},
    )
    first = set(stream.prompt_tokens[stream.arrival_s < trace.period_s].tolist())
    second = set(stream.prompt_tokens[stream.arrival_s >= trace.period_s].tolist())
    assert len(first & second) < 0.1 * len(first)


def test_a_trace_can_be_cut_to_an_exact_number_of_requests() -> None:
    trace = long_trace(rows=50)
    for multiplier in (0.05, 1.0, 7.3):
        stream = make_stream(
            {"w": recording()},
            multiplier=multiplier,
            requests={"w": 777},
            seed=4,
            max_model_len=10_000,
            traces={"w": trace},
        )
        assert len(stream) == 777


def test_stream_source_shares_requests_in_proportion_to_rates_over_one_span() -> None:
    mix = {
        "a": online(80.0),
        "b": online(20.0),
        "c": Workload(batch=Batch(requests=34_200, within_hours=1), isl=9, osl=2),
    }
    source = StreamSource(mix, seed=1, requests=11_000, max_model_len=999)
    stream = source.stream(0.25)
    assert source.span_s == pytest.approx(11_000 / 110)
    assert stream.span_s == pytest.approx(4 * source.span_s)
    counts = np.bincount(stream.workload)
    assert np.abs(counts - np.array([8_000, 2_000, 1_000])).max() < 5 * math.sqrt(8_000)
    assert counts[2] in (999, 1_000, 1_001)
    assert stream.arrival_s[-1] <= stream.span_s


def test_stream_source_gives_the_same_requests_at_every_multiplier() -> None:
    mix = {"a": online(80.0, isl=LognormalLengths(mean=300, cv=1)), "b": online(20.0, burstiness=0.5)}
    source = StreamSource(mix, seed=1, requests=1_500, max_model_len=99_999)
    low, high = source.stream(0.1), source.stream(2.0)
    np.testing.assert_allclose(low.arrival_s, high.arrival_s * 20, rtol=1e-12)
    assert columns(low)[1:] == columns(high)[1:]
    direct = make_stream(mix, multiplier=2.0, duration_s=high.span_s, seed=1, max_model_len=99_999)
    np.testing.assert_allclose(direct.arrival_s, high.arrival_s, rtol=1e-9)
    assert columns(direct)[1:] == columns(high)[1:]


def test_a_rare_workload_stretches_the_span_until_it_has_enough_requests() -> None:
    trace = long_trace()
    mix = {"busy": online(99.0), "rare": online(0.5), "recorded": recording()}
    for seed in range(10):
        source = StreamSource(
            mix,
            seed=seed,
            requests=1_000,
            max_model_len=9_999,
            min_requests_per_workload=60,
            traces={"recorded": trace},
        )
        assert source.span_s > 1_000 / 104.5
        assert np.bincount(source.stream(1.0).workload).min() >= 60


def test_stream_source_mixes_a_trace_with_drawn_arrivals_at_the_right_rates() -> None:
    trace = long_trace()
    mix = {"chat": online(10.0), "recorded": recording(scale=3.0)}
    source = StreamSource(mix, seed=1, requests=2_500, max_model_len=9_999, traces={"recorded": trace})
    for multiplier in (0.3, 1.0, 4.0):
        stream = source.stream(multiplier)
        chat, recorded = np.bincount(stream.workload)
        assert abs(chat - 1_000) < 5 * math.sqrt(1_000)
        assert abs(recorded - 1_500) < 6 * math.sqrt(1_500)
        assert np.all(np.diff(stream.arrival_s) >= 0)
        assert stream.arrival_s[-1] <= stream.span_s
    assert columns(source.stream(0.3)) == columns(source.stream(0.3))


def test_a_multiplier_must_be_positive() -> None:
    source = StreamSource({"a": online(80.0)}, seed=1, requests=100, max_model_len=999)
    for multiplier in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="greater than zero"):
            source.stream(multiplier)
        with pytest.raises(ValueError, match="greater than zero"):
            make_stream({"a": online(80.0)}, multiplier=multiplier, duration_s=1, seed=1, max_model_len=999)


def with_prefix(workload: Workload, documents: int = 50, popularity: str = "zipf", priority: int = 0) -> Workload:
    prefix = Prefix.model_validate({"documents": documents, "tokens": 64, "popularity": popularity})
    return workload.model_copy(update={"prefix": prefix, "priority": priority})


def test_zipf_asks_for_the_kth_document_one_kth_as_often_as_for_the_first() -> None:
    drawn = draw_documents(Prefix(documents=50, tokens=9), 200_000, np.random.default_rng(1))
    shares = popularities(Prefix(documents=50, tokens=9))
    np.testing.assert_allclose(shares[0] / shares, np.arange(1, 51), rtol=1e-12)
    assert shares.sum() == pytest.approx(1)
    expected = 200_000 * shares
    assert np.all(np.abs(np.bincount(drawn, minlength=50) - expected) < 5 * np.sqrt(expected))


def test_uniform_popularity_asks_for_all_documents_alike() -> None:
    drawn = draw_documents(Prefix(documents=50, tokens=9, popularity="uniform"), 100_000, np.random.default_rng(1))
    assert np.all(np.abs(np.bincount(drawn, minlength=50) - 2_000) < 5 * math.sqrt(2_000))


def test_a_longer_draw_of_documents_begins_with_the_shorter_one_and_one_document_is_always_the_same() -> None:
    prefix = Prefix(documents=50, tokens=9)
    short, long = (draw_documents(prefix, count, np.random.default_rng(1)) for count in (30, 900))
    assert long[:30].tolist() == short.tolist()
    assert draw_documents(Prefix(documents=1, tokens=9), 5, np.random.default_rng(1)).tolist() == [0] * 5


def test_a_prefix_or_a_priority_changes_no_arrival_and_no_length() -> None:
    chat = online(8.0, isl=LognormalLengths(mean=300, cv=1), osl=UniformLengths(uniform=(10, 90)), burstiness=0.5)
    plain, shared = one(chat, count=500), one(with_prefix(chat, priority=3), count=500)
    assert columns(plain) == columns(shared)
    assert plain.document is None and plain.document_tokens is None and plain.priority is None
    assert shared.document is not None and shared.document_tokens is not None and shared.priority is not None
    assert shared.document_tokens.tolist() == np.minimum(64, shared.prompt_tokens).tolist()
    assert shared.priority.tolist() == [3] * 500


def test_documents_of_different_workloads_are_different_and_others_have_none() -> None:
    mix = {"a": with_prefix(online(8.0)), "b": online(8.0), "c": with_prefix(online(8.0), documents=7, priority=-2)}
    stream = make_stream(mix, multiplier=1, duration_s=300, seed=1, max_model_len=999)
    assert stream.document is not None and stream.document_tokens is not None and stream.priority is not None
    a, b, c = (stream.workload == i for i in range(3))
    assert set(stream.document[a].tolist()) == set(range(50))
    assert set(stream.document[b].tolist()) == {-1} and set(stream.document_tokens[b].tolist()) == {0}
    assert set(stream.document[c].tolist()) == set(range(50, 57))
    assert [set(stream.priority[rows].tolist()) for rows in (a, b, c)] == [{0}, {0}, {-2}]
    alone = make_stream({"c": mix["c"]}, multiplier=1, duration_s=300, seed=1, max_model_len=999)
    assert alone.document is not None
    assert (stream.document[c] - 50).tolist() == alone.document.tolist()


def test_every_way_to_a_stream_keeps_the_documents() -> None:
    trace = long_trace()
    shared = with_prefix(online(8.0), priority=1)
    source = StreamSource({"a": shared}, seed=1, requests=400, max_model_len=9_999)
    mixed = StreamSource(
        {"t": recording(), "a": shared}, seed=1, requests=700, max_model_len=9_999, traces={"t": trace}
    )
    low, high, beside = source.stream(0.5), source.stream(3.0), mixed.stream(0.5)
    assert low.document is not None and high.document is not None and beside.document is not None
    assert low.document.tolist() == high.document.tolist()
    of_a = beside.document[beside.workload == 1]
    both = min(len(of_a), len(low.document))
    assert both > 200 and of_a[:both].tolist() == low.document[:both].tolist()
    assert set(beside.document[beside.workload == 0].tolist()) == {-1}
    closed = with_prefix(Workload(traffic=ClosedTraffic(concurrency=4), isl=80, osl=5), priority=1)
    loop = one(closed, count=40)
    assert loop.document is not None and loop.document_tokens is not None and loop.priority is not None
    assert len(loop.document) == len(loop.priority) == 40 and set(loop.document_tokens.tolist()) == {64}


def _followers(after: list[int], think_s: list[float], arrival_s: list[float]) -> RequestStream:
    count = len(after)
    ones = np.ones(count, dtype=np.int64)
    return RequestStream(
        arrival_s=np.array(arrival_s),
        prompt_tokens=ones,
        output_tokens=ones,
        workload=np.zeros(count, dtype=np.int32),
        workload_names=("a",),
        span_s=1.0,
        clipped_fraction=(0.0,),
        after=np.array(after),
        think_s=np.array(think_s),
    )


def test_a_request_that_follows_another_has_no_arrival_of_its_own() -> None:
    _followers([-1, -1, 0, 2], [0, 0, 1.5, 0], [0.0, 0.5, math.nan, math.nan])
    with pytest.raises(ValueError, match="no arrival of its own"):
        _followers([-1, 0], [0, 1], [0.0, 0.5])
    with pytest.raises(ValueError, match="stands behind it"):
        _followers([-1, 1], [0, 1], [0.0, math.nan])
    with pytest.raises(ValueError, match="at most one follower"):
        _followers([-1, 0, 0], [0, 1, 1], [0.0, math.nan, math.nan])
