"""Does the profile predict traffic that was not used to fit it? Predicted first, then replayed on the real server.

The profile's capacity for a mix of lengths is simulated; at shares of it, Poisson streams of that mix are drawn and
their latencies predicted with the product's own simulator. Only then the same arrivals and lengths are sent to the real
server, in several sessions, and both logs go through the same figures. The capacity itself is measured by a burst: all
requests at once, several times more than the server seats, and the rate of finishes in the middle of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hardware_profiles.errors import InputError
from hardware_profiles.model import ModelCard
from hardware_profiles.node import Node
from hardware_profiles.profile import load_profile
from simulator.engine import ENGINE_FLAGS, EngineConfig
from simulator.lengths import LognormalLengths, clip_lengths, draw_lengths
from simulator.log import RequestLog
from simulator.run import simulate
from simulator.steptime import StepTimeModel, step_time_model
from simulator.workload import RequestStream
from validator.bench_run import Played, play, replay_arguments
from validator.replay_log import Figures, figures_of, lateness_p99_s, log_of, rate_error
from validator.run_records import ServerRecord, read_record, starts, write_whole
from validator.sweep import Progress, TargetOf, check_server, now, server_differences, server_flags, warm
from validator.sweep_plan import Shape, SweepPlan, shapes_of
from validator.targets.target import TargetError

__all__ = [
    "BURST",
    "OpenLoopPlan",
    "Prediction",
    "Replay",
    "Stream",
    "make_prediction",
    "open_loop_of",
    "read_prediction",
    "replay_streams",
]

BURST = "burst"
SEATS_FILLED = 4
"""Requests of the burst per request that the server can hold."""
MOST_BURST, LEAST_BURST = 4000, 60
LEAST_REQUESTS = 20
"""Of a stream: percentiles of fewer say nothing."""
LATE_S, LATE_SHARE = 0.005, 0.02
"""A client may be so late (p99): the greater of a time and a share of the median TTFT, which counts its lateness."""
RATE_OFF = 0.01
"""A client's rate may be so far from the intended one."""
SESSIONS = 2
"""Server sessions that replay the streams where nothing else was asked for."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class OpenLoopPlan(_Frozen):
    """Which traffic is predicted and replayed."""

    shares: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)]
    """Of the predicted capacity."""
    mix: Shape
    """Mean lengths; prompts and answers are lognormal around them."""
    cv: Annotated[float, Field(gt=0, le=3)] = 0.5
    """Standard deviation of lengths over their mean."""
    seconds: Annotated[float, Field(ge=5)]
    """Length of each Poisson stream."""
    sessions: Annotated[int, Field(ge=1, le=20)]
    """Server sessions that replay the same streams: how far they differ is the machine's own variation.

    A server that was running is one session, and tells nothing of it.
    """
    degree: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]


class Stream(_Frozen):
    """One stream of requests and what was predicted for it."""

    name: str
    rate_rps: float | None
    """None = all at once."""
    arrival_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    predicted: Figures


class Prediction(_Frozen):
    """Written before anything is replayed; a replay names the file by its digest."""

    plan: OpenLoopPlan
    written: str
    profile: str
    """The profile's file, beside this one."""
    server: ServerRecord
    """The server that it is for."""
    capacity_rps: float
    streams: tuple[Stream, ...]


class Replay(_Frozen):
    """One stream, sent to a real server."""

    prediction_sha256: str
    """Of the `prediction.json` whose stream was sent."""
    stream: str
    session: int
    server: ServerRecord
    played: Played
    measured: Figures | None
    """None = too few requests were answered."""
    lateness_p99_s: float
    """Of the client behind the intended arrivals."""
    date: str
    invalid: tuple[str, ...]


def open_loop_of(text: str, *, mix: str, seconds: float, sessions: int | None, plan: SweepPlan) -> OpenLoopPlan | None:
    """What the command line asks for; None where `--open-loop` names no share."""
    if not text:
        return None
    if plan.server and sessions not in (None, 1):
        raise InputError(
            f"{sessions} is not allowed: a server that is running gives one session; leave it at 1, or leave --server "
            "out",
            key="--open-loop-sessions",
        )
    rule = "give shares of capacity between 0 and 1, each once, e.g. 0.5,0.7,0.9"
    try:
        shares = sorted(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} is not allowed; {rule}", key="--open-loop") from None
    if not 0 < shares[0] <= shares[-1] < 1 or len(set(map(_share_name, shares))) < len(shares):
        raise InputError(f"{text!r} is not allowed; {rule}", key="--open-loop")
    if mix:
        (shape, *others) = shapes_of(mix, "--mix")
        if others:
            raise InputError(f"{mix!r} names several shapes; name one", key="--mix")
    else:
        isl, osl = (np.mean([getattr(s, name) for s in plan.shapes]) for name in ("isl", "osl"))
        shape = Shape(isl=round(isl), osl=round(osl))
    return OpenLoopPlan(
        shares=tuple(shares),
        mix=shape,
        seconds=seconds,
        sessions=sessions or (1 if plan.server else SESSIONS),
        degree=plan.degrees[0],
        seed=plan.seed,
    )


def make_prediction(
    wanted: OpenLoopPlan, *, profile: Path, node: Node, card: ModelCard, server: ServerRecord
) -> Prediction:
    """Capacity and latencies that a profile predicts for a server with these flags."""
    if server.kv_cache_tokens is None:
        raise TargetError("the server did not tell its KV cache's tokens, so nothing can be predicted for it")
    engine = EngineConfig(**{n: v for n, v in server.flags.items() if n in ENGINE_FLAGS})  # type: ignore[arg-type]
    model = step_time_model(
        load_profile(profile),
        node=node,
        card=card,
        tensor_parallel_size=wanted.degree,
        max_tokens=engine.max_num_batched_tokens,
        kv_cache_dtype=engine.kv_cache_dtype,
    )
    blocks = server.kv_cache_tokens // engine.block_size - 1  # vLLM keeps one
    longest = wanted.mix.isl + wanted.mix.osl
    if longest > engine.max_model_len:
        raise InputError(f"--mix {wanted.mix} is longer than the server's max_model_len {engine.max_model_len}")
    seats = min(engine.max_num_seqs, max(1, blocks * engine.block_size // longest))
    count = int(np.clip(SEATS_FILLED * seats, LEAST_BURST, MOST_BURST))
    burst = _stream(wanted, 0, BURST, None, np.zeros(count), engine, model, blocks)
    streams = [burst]
    capacity_rps = burst.predicted.finished_rps
    if capacity_rps is None:
        raise InputError(f"all requests of --mix {wanted.mix} finish at once, so it has no capacity; give longer ones")
    for number, share in enumerate(wanted.shares, start=1):
        rate_rps = share * capacity_rps
        count = round(rate_rps * wanted.seconds)
        if count < LEAST_REQUESTS:
            raise InputError(
                f"at {_share_name(share)} of a capacity of {capacity_rps:.3g} requests/s, {wanted.seconds:g} s hold "
                f"{count} requests, fewer than the {LEAST_REQUESTS} that percentiles need; give "
                f"--open-loop-seconds {np.ceil(LEAST_REQUESTS / rate_rps):.0f} or more"
            )
        gaps = np.random.default_rng([wanted.seed, 1, number]).standard_exponential(count)
        arrival_s = np.cumsum(gaps) / rate_rps
        arrival_s -= arrival_s[0]
        streams.append(_stream(wanted, number, _share_name(share), rate_rps, arrival_s, engine, model, blocks))
    return Prediction(
        plan=wanted,
        written=now(),
        profile=profile.name,
        server=server,
        capacity_rps=capacity_rps,
        streams=tuple(streams),
    )


def _stream(
    wanted: OpenLoopPlan,
    number: int,
    name: str,
    rate_rps: float | None,
    arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    engine: EngineConfig,
    model: StepTimeModel,
    blocks: int,
) -> Stream:
    """Draw lengths of their own for every stream, and predict it."""
    generator = np.random.default_rng([wanted.seed, 2, number])
    prompt, output, _ = clip_lengths(
        draw_lengths(LognormalLengths(mean=wanted.mix.isl, cv=wanted.cv), len(arrival_s), generator),
        np.maximum(draw_lengths(LognormalLengths(mean=wanted.mix.osl, cv=wanted.cv), len(arrival_s), generator), 2),
        max_model_len=engine.max_model_len,
    )
    stream = RequestStream(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        workload=np.zeros(len(arrival_s), dtype=np.int32),
        workload_names=("mix",),
        span_s=float(arrival_s[-1]),
        clipped_fraction=(0.0,),
    )
    predicted = figures_of(_simulated(stream, engine, model, blocks))
    if predicted is None:
        raise InputError(f"too few requests of --mix {wanted.mix} finish on this server ({name}); give shorter ones")
    return Stream(
        name=name,
        rate_rps=rate_rps,
        arrival_s=tuple(arrival_s.tolist()),
        prompt_tokens=tuple(prompt.tolist()),
        output_tokens=tuple(output.tolist()),
        predicted=predicted,
    )


def _simulated(stream: RequestStream, engine: EngineConfig, model: StepTimeModel, blocks: int) -> RequestLog:
    return simulate(stream, engine=engine, model=model, num_blocks=blocks, replicas=1)


def read_prediction(path: Path) -> Prediction | None:
    """None where nothing was predicted yet; a file that is there and cannot be read is never replaced."""
    prediction = read_record(path, Prediction)
    if prediction is None and path.exists():
        raise InputError(
            "is no whole prediction, or one of another version of goodfleet; remove it, and everything is predicted "
            "and replayed again",
            file=str(path),
        )
    return prediction


def replay_streams(
    prediction: Prediction,
    sweep_plan: SweepPlan,
    *,
    folder: Path,
    target_of: TargetOf,
    client: Sequence[str],
    tell: Progress,
) -> tuple[Replay, ...]:
    """Send every stream to a fresh server of each session; what the folder holds and counts is not sent again.

    `folder` holds the prediction's file; replays of another prediction are not those of this one.
    """
    wanted = prediction.plan
    digest = hashlib.sha256((folder / "prediction.json").read_bytes()).hexdigest()
    found: list[Replay] = []
    total = wanted.sessions * len(prediction.streams)
    for session in range(1, wanted.sessions + 1):
        place = folder / f"session-{session}"
        place.mkdir(parents=True, exist_ok=True)
        read = ((s.name, read_record(_path(place, s), Replay)) for s in prediction.streams)
        held = {name: r for name, r in read if r is not None and r.prediction_sha256 == digest}
        missing = [s for s in prediction.streams if s.name not in held or held[s.name].invalid]
        if missing:
            where = f"open loop, session {session} of {wanted.sessions}"
            tell(f"{where}, starting the server", len(found), total)
            with target_of(place).running(server_flags(sweep_plan, wanted.degree)) as server:
                said = check_server(server, sweep_plan, wanted.degree, place)
                _same_server(prediction, said)
                warm(sweep_plan, wanted.degree, 90 + session % 10, server, client, place)
                for stream in missing:
                    tell(f"{where}, {stream.name}", len(found), total)
                    trace = _write_trace(stream, place, starts(place))
                    longest = max(map(sum, zip(stream.prompt_tokens, stream.output_tokens, strict=True)))
                    arguments = replay_arguments(trace, requests=len(stream.arrival_s), longest_tokens=longest)
                    saved = place / f"{_file_name(stream)}.json"
                    played = play(client, server, arguments, saved, within_s=_at_most_s(stream))
                    replay = _replay(stream, session, said, played, digest)
                    write_whole(_path(place, stream), replay)
                    held[stream.name] = replay
        found += held.values()
    return tuple(found)


def _same_server(prediction: Prediction, record: ServerRecord) -> None:
    if differences := server_differences(prediction.server, record):
        raise TargetError(f"the server is not the one of the prediction: {', '.join(differences)}")


def _replay(stream: Stream, session: int, server: ServerRecord, played: Played, digest: str) -> Replay:
    invalid, result = [], played.result
    if result.failed or result.completed != len(stream.arrival_s):
        invalid.append(f"{result.completed} of {len(stream.arrival_s)} requests were answered")
    if result.input_lens != stream.prompt_tokens or result.output_lens != stream.output_tokens:
        invalid.append("the client sent or received other lengths than were predicted")
    invalid += played.invalid
    late_s = lateness_p99_s(result, stream.arrival_s)
    if stream.rate_rps is not None and late_s > max(LATE_S, LATE_SHARE * result.median_ttft_ms * 1e-3):
        invalid.append(f"the client was {late_s * 1e3:.1f} ms late (p99)")
    off = rate_error(result, stream.arrival_s) if stream.rate_rps is not None else 0.0
    if abs(off) > RATE_OFF:
        invalid.append(f"the client sent at a rate {off:+.1%} off the intended one (limit {RATE_OFF:.0%})")
    measured = figures_of(log_of(result, stream.arrival_s))
    if measured is None and not invalid:
        invalid.append("too few requests were answered for its figures")
    return Replay(
        prediction_sha256=digest,
        stream=stream.name,
        session=session,
        server=server,
        played=played,
        measured=measured,
        lateness_p99_s=late_s,
        date=now(),
        invalid=tuple(invalid),
    )


def _at_most_s(stream: Stream) -> float:
    """No server that works takes so long: 10 min, and ten times the arrivals' span and the predicted throughput's."""
    tokens = sum(stream.prompt_tokens) + sum(stream.output_tokens)
    return 600.0 + 10.0 * (stream.arrival_s[-1] + tokens / stream.predicted.tokens_per_s)


def _write_trace(stream: Stream, place: Path, attempt: int) -> Path:
    """As `vllm bench serve --dataset-name timed_trace` reads it; a hash of its own keeps prompts apart, retried too."""
    mark = f"{place.resolve()}/{stream.name}/{attempt}"
    path = place / f"{_file_name(stream)}.trace.jsonl"
    rows = zip(stream.arrival_s, stream.prompt_tokens, stream.output_tokens, strict=True)
    lines = [
        json.dumps({"timestamp": at_s, "input_length": prompt, "output_length": output, "hash_ids": [f"{mark}/{i}"]})
        for i, (at_s, prompt, output) in enumerate(rows)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _share_name(share: float) -> str:
    return f"{100 * share:g}%"


def _file_name(stream: Stream) -> str:
    return stream.name.replace("%", "-percent")


def _path(place: Path, stream: Stream) -> Path:
    return place / f"{_file_name(stream)}.replay.json"
