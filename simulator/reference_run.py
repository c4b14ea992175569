"""A run in SimPy and plain Python, from the inputs of a run to its log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.log import RequestLog
from simulator.reference import ReferenceFleet
from simulator.rows import Rows
from simulator.run_inputs import RunInputs
from simulator.sequence import Sequence
from simulator.step_observer import StepObserver
from simulator.tables import ITL_EDGES_S

__all__ = ["play_reference"]


def play_reference(inputs: RunInputs, observer: StepObserver | None = None) -> RequestLog:
    """Play the run with `ReferenceFleet`; the log has no `ReplicaTimes`."""
    stream, model = inputs.stream, inputs.model
    sequences = _sequences(inputs)
    fleet = ReferenceFleet(
        model=model,
        settings=inputs.settings,
        replicas=inputs.replicas,
        least_outstanding=inputs.least_outstanding,
        sequences=sequences,
        workloads=len(stream.workload_names),
        released=inputs.released,
        closed_loop=inputs.closed,
        data_parallel_size=inputs.engine.data_parallel_size,
        in_lockstep=inputs.in_lockstep,
        max_num_queued_reqs=inputs.engine.max_num_queued_reqs,
        max_num_queued_tokens=inputs.engine.max_num_queued_tokens,
        drain=inputs.drain,
        observer=observer,
    )
    shared = inputs.shared_blocks()
    if shared is not None and inputs.starts_warm:
        documents = shared.warm(int(_full_blocks(inputs).sum())).lists()
        for rank in (rank for replica in fleet.replicas for rank in replica):
            rank.scheduler.blocks.load(documents)
    fleet.run()
    arrived = sequences[: fleet.arrived]
    finish_s = np.array([s.finish_s for s in arrived])
    ended_s = finish_s[~np.isnan(finish_s)]
    worked_off = (inputs.drain or inputs.closed) and len(ended_s) > 0
    last_s = float(ended_s.max()) if worked_off else arrived[-1].arrival_s
    end_s = sequences[fleet.arrived].arrival_s if fleet.stopped else last_s
    engine_arrival_s = np.array([s.arrival_s for s in arrived])
    sent_s = engine_arrival_s - model.request_overhead_s if inputs.closed else stream.arrival_s[: len(arrived)]
    return RequestLog(
        workload_names=stream.workload_names,
        workload=np.array([s.workload for s in arrived]),
        phase=np.array([s.phase for s in arrived]),
        arrival_s=sent_s,
        sent_s=sent_s,
        scheduled_s=np.array([s.scheduled_s if s.scheduled_s < end_s else np.nan for s in arrived]),
        first_token_s=np.array([s.first_token_s for s in arrived]),
        finish_s=finish_s,
        prompt_tokens=np.array([s.prompt_tokens for s in arrived]),
        cached_tokens=np.array([s.cached_tokens if s.scheduled_s < end_s else 0 for s in arrived]),
        output_tokens=np.array([s.emitted_tokens for s in arrived]),
        status=np.array([2 if s.rejected else 3 if np.isnan(s.finish_s) else 0 for s in arrived]),
        replica=np.array([s.replica for s in arrived]),
        preemptions=np.array([s.preemptions for s in arrived]),
        itl_max_s=np.array([s.itl_max_s for s in arrived]),
        itl_edges_s=ITL_EDGES_S,
        itl_counts=fleet.itl_counts,
        end_s=end_s,
        window_s=inputs.window_span(end_s),
        window_complete=fleet.window_left == 0,
    )


def _sequences(inputs: RunInputs) -> list[Sequence]:
    stream, count = inputs.stream, len(inputs.stream)
    arrival_s = inputs.engine_arrival_s
    contents: list[tuple[int, ...]] = [()] * count
    if inputs.settings.enable_prefix_caching:
        full, shared = _full_blocks(inputs), inputs.shared_blocks()
        size = int(full.sum())
        line = np.arange(size) if shared is None else shared.spread(np.cumsum(full) - full, size)
        contents = Rows(values=line, count=full).lists()
    accepted = stream.accepted.lists() if stream.accepted is not None else [()] * count
    return [
        Sequence(
            index=i,
            arrival_s=float(arrival_s[i]),
            prompt_tokens=int(stream.prompt_tokens[i]),
            output_tokens=int(stream.output_tokens[i]),
            max_tokens=None if stream.max_tokens is None else int(stream.max_tokens[i]),
            workload=int(stream.workload[i]),
            phase=int(inputs.phase[i]),
            priority=0 if stream.priority is None else int(stream.priority[i]),
            contents=contents[i],
            accepted=accepted[i],
        )
        for i in range(count)
    ]


def _full_blocks(inputs: RunInputs) -> NDArray[np.int64]:
    """Full blocks of each request, prompt and answer."""
    return np.asarray((inputs.stream.prompt_tokens + inputs.stream.output_tokens) // inputs.settings.block_size)
