"""full kernel = reference, whatever is asked of a scheduler: both write the same log, to the last bit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import scheduler_settings
from tests.differential.random_runs import MAX_TOKENS, RandomRun, assert_equal_logs


def seldom(values: st.SearchStrategy[Any], otherwise: Any) -> st.SearchStrategy[Any]:
    """A feature in a third of the runs, and without it the simplest example."""
    return st.one_of(st.just(otherwise), st.just(otherwise), values)


ALL_FEATURES = st.builds(
    RandomRun,
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    rate_rps=st.sampled_from([2.0, 8.0, 30.0, 200.0]),
    concurrency=st.sampled_from([None, None, 1, 5]),
    overhead_s=st.sampled_from([0.0, 0.05]),
    judged=st.booleans(),
    drain=st.booleans(),
    replicas=st.integers(1, 3),
    routing=st.sampled_from(["round_robin", "least_outstanding"]),
    data_parallel_size=seldom(st.integers(2, 3), 1),
    in_lockstep=st.booleans(),
    max_num_seqs=st.integers(1, 12),
    budget=st.integers(12, MAX_TOKENS),
    block_size=st.sampled_from([1, 4, 16]),
    cache_tokens=st.integers(120, 500),
    step_window_tokens=st.sampled_from([0, 8, 64]),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.booleans(),
    documents=st.booleans(),
    warm=st.booleans(),
    chunked_prefill=seldom(st.just(False), True),
    threshold=seldom(st.integers(6, 30), 0),
    adaptive=st.booleans(),
    watermark=seldom(st.sampled_from([0.05, 0.2, 0.6]), 0.0),
    free_seats=seldom(st.integers(0, 11), None),
    max_num_queued_reqs=seldom(st.integers(1, 12), None),
    max_num_queued_tokens=seldom(st.integers(50, 400), None),
    priorities=seldom(st.just(True), False),
    drafts=seldom(st.integers(1, 4), 0),
    drafter=st.sampled_from(["ngram", "eagle"]),
    windows=seldom(st.lists(st.sampled_from([0, 3, 17, 40]), min_size=1, max_size=3).map(tuple), (0,)),
    open_end=seldom(st.just(True), False),
)


@settings(max_examples=1000, deadline=None)
@given(run=ALL_FEATURES)
def test_equal_logs_on_random_runs_with_every_feature(run: RandomRun) -> None:
    full = run.play("full-kernel")  # first: it stops where nothing can ever be scheduled, the reference would not
    assert_equal_logs(full, run.play("reference"))


@dataclass(slots=True)
class Watcher:
    """Counts what the steps of the reference do."""

    seen: Counter[str] = field(default_factory=Counter)

    def step(self, *, work: Sequence[Any], preempted: Sequence[Any], **_: Any) -> bool:
        for entry in work:
            drafts = entry.drafts if entry.samples and not entry.padded else 0
            accepted = max(0, entry.given - 1)
            self.seen["drafts accepted"] += accepted
            self.seen["drafts refused"] += drafts - accepted if not entry.last else 0
            self.seen["tokens given"] += entry.given
            self.seen["tokens for nothing"] += bool(entry.samples and not entry.given)
        self.seen["preemptions"] += len(preempted)
        self.seen["several preempted at once"] += len(preempted) > 1
        return True


PRESSED = RandomRun(seed=0, count=60, rate_rps=200.0, max_num_seqs=8, budget=60, block_size=4, cache_tokens=180)
"""Eight seats, and a cache for one or two long requests."""
PLAIN = {"preemptions": 50}
REACHED: dict[str, tuple[RandomRun, dict[str, int]]] = {
    "a small cache": (PRESSED, PLAIN),
    "async": (replace(PRESSED, async_scheduling=True), PLAIN),
    "async, ends unknown": (
        replace(PRESSED, async_scheduling=True, open_end=True),
        PLAIN | {"tokens for nothing": 100},
    ),
    "documents": (replace(PRESSED, enable_prefix_caching=True, documents=True), PLAIN | {"hits": 70}),
    "documents, async": (
        replace(PRESSED, enable_prefix_caching=True, documents=True, async_scheduling=True),
        PLAIN | {"hits": 70},
    ),
    "documents, windows": (
        replace(PRESSED, enable_prefix_caching=True, documents=True, windows=(0, 17), cache_tokens=150),
        {"preemptions": 15, "hits": 20},
    ),
    "priorities": (replace(PRESSED, priorities=True), PLAIN),
    "priorities, async": (replace(PRESSED, priorities=True, async_scheduling=True), PLAIN),
    "n-gram": (replace(PRESSED, drafts=3), PLAIN | {"drafts accepted": 2000, "drafts refused": 2000}),
    "EAGLE, async": (
        replace(PRESSED, drafts=3, drafter="eagle", async_scheduling=True),
        PLAIN | {"drafts accepted": 2000, "drafts refused": 2000},
    ),
    "queue limits": (replace(PRESSED, max_num_queued_reqs=12, max_num_queued_tokens=300), {"answered 503": 50}),
    "too long": (replace(PRESSED, cache_tokens=100), {"rejected": 50}),
    "ranks": (replace(PRESSED, data_parallel_size=2), PLAIN),
    "ranks in lockstep": (replace(PRESSED, data_parallel_size=2, in_lockstep=True), PLAIN),
}


@pytest.mark.parametrize("name", REACHED)
def test_the_random_runs_reach_what_they_are_for(name: str) -> None:
    run, least = REACHED[name]
    total: Counter[str] = Counter()
    for seed in range(5):
        seeded, watcher = replace(run, seed=seed), Watcher()
        reference = seeded.play("reference", watcher)
        assert_equal_logs(seeded.play("full-kernel"), reference)
        total.update(watcher.seen)
        settings_ = scheduler_settings(seeded.engine, num_blocks=seeded.num_blocks, sliding_windows=seeded.groups)
        total["hits"] += int((reference.cached_tokens > 0).sum())
        for q in range(len(reference)):
            if reference.status[q] == 2:
                fits = settings_.fits_alone(
                    prompt_tokens=int(reference.prompt_tokens[q]),
                    output_tokens=int(seeded.stream.output_tokens[q]),
                    open_end=seeded.open_end,
                )
                total["answered 503" if fits else "rejected"] += 1
    assert all(total[what] >= count for what, count in least.items()), total
