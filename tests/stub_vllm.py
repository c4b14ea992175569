"""Stands in for vLLM's command line: `serve` answers what a server answers, `bench serve` saves what a client saves.

    python stub_vllm.py serve MODEL --host H --port P …
    python stub_vllm.py bench serve --base-url URL …

Nothing is computed: every request has TTFT 20 ms + 0.3 ms per prompt token and TPOT 10 ms + 0.3 ms per request in
flight. STUB_VLLM names what goes wrong: `refuses` ends at the start with a reason, `deaf` never gets ready, `deaf to
SIGTERM` must be killed, `fails` ends the client with an error, `half` writes half a result, `cached` finds prompts in
the prefix cache, `shared` counts tokens that others sent, `uncounted` has no counters, `smaller` has half the KV cache,
`newer` is another version, `hangs` never ends the client, `late` sends every other request late. STUB_VLLM_CONFIG
(part.flag=value) adds to the configuration that it tells.
"""

import argparse
import json
import os
import signal
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

WRONG = os.environ.get("STUB_VLLM", "")
KV_TOKENS, BLOCK = 87_296 // (2 if WRONG == "smaller" else 1), 128


class Server(BaseHTTPRequestHandler):
    """The addresses that are read of a vLLM server."""

    counted: ClassVar[dict[str, int]] = {"prompt_tokens": 0, "prefix_cache_hits": 0}
    given: argparse.Namespace

    def do_GET(self) -> None:
        address = self.path.partition("?")[0]
        if address == "/server_info" and os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
            self.send_error(404)
            return
        answers = {
            "/health": "",
            "/version": json.dumps({"version": "0.33.0" if WRONG == "newer" else "0.32.0"}),
            "/v1/models": json.dumps({"data": [{"id": "m", "root": self.given.model, "max_model_len": 2048}]}),
            "/metrics": self.metrics(),
            "/server_info": json.dumps({"vllm_config": self.resolved()}),
        }
        if address not in answers:
            self.send_error(404)
            return
        body = answers[address].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """The client says what it sent; a real one would have sent it."""
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for name, tokens in said.items():
            self.counted[name] += tokens
        self.send_response(204)
        self.end_headers()

    def metrics(self) -> str:
        labels = {
            "block_size": BLOCK,
            "cache_dtype": "auto",
            "enable_prefix_caching": not self.given.no_enable_prefix_caching,
            "gpu_memory_utilization": 0.92,
            "kv_cache_size_tokens": KV_TOKENS,
            "num_gpu_blocks": KV_TOKENS // BLOCK,
            "num_gpu_blocks_override": None,
        }
        held = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines = [f"vllm:cache_config_info{{{held}}} 1.0"]
        if WRONG == "uncounted":
            return lines[0]
        lines += [f'vllm:{name}_total{{engine="0",model_name="m"}} {n}.0' for name, n in self.counted.items()]
        return "\n".join(lines)

    def resolved(self) -> dict[str, dict[str, object]]:
        config = self.config()
        if said := os.environ.get("STUB_VLLM_CONFIG"):
            place, _, value = said.partition("=")
            part, _, flag = place.partition(".")
            config.setdefault(part, {})[flag] = json.loads(value)
        return config

    def config(self) -> dict[str, dict[str, object]]:
        return {
            "parallel_config": {"tensor_parallel_size": self.given.tensor_parallel_size},
            "scheduler_config": {
                "max_num_seqs": self.given.max_num_seqs,
                "max_num_batched_tokens": 512,
                "enable_chunked_prefill": True,
                "policy": "fcfs",
                "async_scheduling": False,
            },
            "cache_config": {
                "block_size": BLOCK,
                "gpu_memory_utilization": 0.92,
                "cache_dtype": "auto",
                "num_gpu_blocks_override": None,
                "enable_prefix_caching": not self.given.no_enable_prefix_caching,
            },
            "model_config": {"max_model_len": 2048, "dtype": "torch.bfloat16"},
        }

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


def serve(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--no-enable-prefix-caching", action="store_true")
    given = parser.parse_args(arguments)
    print(f"non-default args: {vars(given)}", flush=True)
    print(f"CPU KV cache size: {KV_TOKENS:,} tokens, Maximum concurrency …", flush=True)
    if WRONG == "refuses":
        sys.exit("ValueError: no room for the weights")
    if WRONG == "deaf to SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if WRONG == "deaf":
        time.sleep(600)
    Server.given = given
    ThreadingHTTPServer((given.host, given.port), Server).serve_forever()


def bench(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for name in ("base-url", "result-dir", "result-filename", "dataset-name", "dataset-path", "model"):
        parser.add_argument(f"--{name}")
    for name in ("random-input-len", "random-output-len", "num-prompts", "max-concurrency", "seed"):
        parser.add_argument(f"--{name}", type=int)
    given, _ = parser.parse_known_args(arguments)
    if WRONG == "fails":
        sys.exit("aiohttp.ClientError: connection refused")
    if WRONG == "hangs":
        time.sleep(60)
    started = time.perf_counter() - 3600
    if given.dataset_name == "timed_trace":
        with open(given.dataset_path) as lines:
            rows = [json.loads(line) for line in lines]
        sent = [started + row["timestamp"] for row in rows]
        if WRONG == "late":
            sent = [at_s + 0.05 * (i % 2) for i, at_s in enumerate(sent)]
        lengths = [(row["input_length"], row["output_length"]) for row in rows]
        in_flight = 4
    else:
        lengths = [(given.random_input_len, given.random_output_len)] * given.num_prompts
        in_flight = given.max_concurrency
        whole_s = answer_s(*lengths[0], in_flight)
        sent = [started + i // in_flight * whole_s for i in range(given.num_prompts)]
    ttfts = [0.020 + 0.0003 * isl for isl, _ in lengths]
    tpot_s = 0.010 + 0.0003 * in_flight
    ends = [at + answer_s(isl, osl, in_flight) for at, (isl, osl) in zip(sent, lengths, strict=True)]
    duration = max(ends) - started
    inputs, outputs = sum(isl for isl, _ in lengths), sum(osl for _, osl in lengths)
    median_ttft_ms = sorted(ttfts)[len(ttfts) // 2] * 1e3
    result = {
        "duration": duration,
        "completed": len(lengths),
        "failed": 0,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_token_throughput": (inputs + outputs) / duration,
        **{f"{name}_ttft_ms": median_ttft_ms for name in ("median", "mean", "p99")},
        **{f"{name}_tpot_ms": tpot_s * 1e3 for name in ("median", "mean", "p99")},
        "p99_itl_ms": tpot_s * 1e3,
        "input_lens": [isl for isl, _ in lengths],
        "output_lens": [osl for _, osl in lengths],
        "start_times": sent,
        "ttfts": ttfts,
        "itls": [[tpot_s] * (osl - 1) for _, osl in lengths],
    }
    counted = inputs * 102 // 100 if WRONG == "shared" else inputs
    said = json.dumps({"prompt_tokens": counted, "prefix_cache_hits": inputs // 2 if WRONG == "cached" else 0})
    with urllib.request.urlopen(urllib.request.Request(given.base_url, data=said.encode(), method="POST")):
        pass
    text = json.dumps(result)
    with open(os.path.join(given.result_dir, given.result_filename), "w") as file:
        file.write(text[: len(text) // 2] if WRONG == "half" else text)


def answer_s(isl: int, osl: int, in_flight: int) -> float:
    return 0.020 + 0.0003 * isl + (osl - 1) * (0.010 + 0.0003 * in_flight)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    else:
        bench(sys.argv[3:])
