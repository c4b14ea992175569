"""What vLLM's own front end does: which rank it chooses, and whom it answers 503.

Run by the python of a vLLM environment (`tests/vllm`):

    python vllm_front_end_oracle.py asked.json answered.json

`asked.json` is `{"ranks": [fleet, ...], "queues": [front end, ...]}`. A fleet is a list of the states that its ranks
are in when a request comes, a state `[[waiting, running, free fraction of the cache], ...]`. A front end is
`[max_num_queued_reqs, max_num_queued_tokens, [[prompt tokens, has no token yet], ...]]`, its unfinished requests last.
`answered.json` has the rank of each request, and whether each front end refuses one more.

The methods are vLLM's; the objects that they are called on hold what they read and nothing else. Queue lengths are
those of the moment, where a real front end has a snapshot.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.engine.output_processor import OutputProcessor


def chosen_ranks(states: list[list[tuple[int, int, float]]]) -> list[int]:
    """The rank of each request that one client sends on."""
    engines = [bytes([rank]) for rank in range(len(states[0]))]
    client: Any = SimpleNamespace(reqs_in_flight={}, core_engines=engines, eng_start_index=0, client_count=1)
    chosen = []
    for number, state in enumerate(states):
        client.lb_engines = [[waiting, running, 1 - free] for waiting, running, free in state]
        client.engine_inflight = Counter({engines[i]: row[0] + row[1] for i, row in enumerate(state)})
        request: Any = SimpleNamespace(request_id=str(number), data_parallel_rank=None, pooling_params=None)
        chosen.append(engines.index(DPLBAsyncMPClient.get_core_engine_for_request(client, request)))
    return chosen


def refuses(max_reqs: int | None, max_tokens: int | None, requests: list[tuple[int, bool]]) -> bool:
    """Whether a front end with these unfinished requests answers 503 to one more."""
    states = {str(i): SimpleNamespace(prompt_len=row[0], is_prefilling=row[1]) for i, row in enumerate(requests)}
    processor: Any = SimpleNamespace(request_states=states)
    front_end: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_queued_reqs=max_reqs, max_num_queued_tokens=max_tokens),
        admission_stats=None,
        get_num_unfinished_requests=lambda: len(states),
        get_num_queued_tokens=lambda: OutputProcessor.get_num_queued_tokens(processor),
        _record_admission_rejection=lambda reason: None,
    )
    try:
        AsyncLLM.check_admission(front_end)
    except (MaxQueuedTokensError, QueueOverflowError):
        return True
    return False


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    answer = {
        "ranks": [chosen_ranks(states) for states in asked["ranks"]],
        "queues": [refuses(*queue) for queue in asked["queues"]],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
