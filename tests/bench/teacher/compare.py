"""Compares the teacher's protocols with the bare engine in a Markdown table.

    ninja -C build/cpu teacher_bench engine_bench score_cache_bench
    tests/bench/run teacher [--rounds 6] [--clients 1,8,64] [--tokens 1000] [--top-k 16] [--ways engine,grpc] ...

One process holds the engine, the server and the clients (teacher_bench.cc), so their CPU time is counted too, because
on a CPU the engine could have used it. The weights are random, of a small shape (small_qwen3.json; --config for
another): a call costs the same for every model of this vocabulary, and with a small model the cost shows. The ways
take turns, in every other round in the opposite order. The table has the medians of the rounds; ratios are taken
within a round. Every client, also that of the bare engine, sends its next sequence when it has the answer to the last
one. "In the engine" is the ratio of the time in forward passes to that of the bare engine: above 1, the other threads
took the processor and its caches. The rest of the time lies between an answer and the next step.

  engine        InferenceEngine::Submit, no server
  metered       the engine behind its metrics
  gRPC          taopd.v1.Teacher/Score, a connection per client
  HTTP, base64  POST /v1/completions with prompt_logprobs_format, which also generates one token
  HTTP, JSON    the same with vLLM's objects, without a tokenizer
"""

import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from machine import BINARIES, make_model, output_of, parser_of, processor
NAMES = {"engine": "engine", "metered": "metered", "grpc": "gRPC", "http_compact": "HTTP, base64",
         "http_json": "HTTP, JSON"}
# The limits: more time than the bare engine, bytes of an answer per token, milliseconds of a cache hit.
MAX_MORE_TIME, MAX_BYTES, MAX_HIT_MS = 0.03, 140, 0.1
HIT_TOKENS = 1000


def parse_arguments():
    parser = parser_of("teacher", __doc__)
    parser.add_argument("--bin-dir", default=str(BINARIES))
    parser.add_argument("--config", default=str(HERE / "small_qwen3.json"))
    parser.add_argument("--model-dir", help="reuse these weights; made, and kept, when absent")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=24, help="of a case; at least four for each client")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ways", default=",".join(NAMES), help="engine,grpc: only these, which is faster")
    parser.add_argument("--clients", default="1,8,64")
    return parser.parse_args()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def cache_hit_ms(bin_dir):
    out = output_of([f"{bin_dir}/score_cache_bench", f"--benchmark_filter=Hit/{HIT_TOKENS}$", "--benchmark_format=json"])
    result = json.loads(out[out.index("{"):])["benchmarks"][0]
    return result["real_time"] / 1e3


def print_cases(cases, options):
    print("| clients | way | time (s) | to the engine | lowest, highest | in the engine | CPU (s) | to the engine | "
          "p50 (ms) | p99 (ms) | tokens/s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    more = {}
    for clients in options.clients.split(","):
        of_clients = [case for case in cases if case["clients"] == int(clients)]
        for way in options.ways.split(","):
            of_way = [case for case in of_clients if case["way"] == way]

            def ratios(key):
                # Compares within a round, because the machine's other load changes between rounds.
                return [case[key] / other[key] for case in of_way for other in of_clients
                        if other["way"] == "engine" and other["round"] == case["round"]]

            def ratio(key):
                return statistics.median(ratios(key))

            latencies = [ms for case in of_way for ms in case["latency_ms"]]
            wall_s = statistics.median(case["wall_s"] for case in of_way)
            cpu_s = statistics.median(case["cpu_s"] for case in of_way)
            rate = of_way[0]["sequences"] * options.tokens / wall_s
            more[clients, way] = ratio("wall_s") - 1
            print(f"| {clients} | {NAMES[way]} | {wall_s:.2f} | {ratio('wall_s'):.3f} | "
                  f"{min(ratios('wall_s')):.3f}, {max(ratios('wall_s')):.3f} | {ratio('engine_s'):.3f} | "
                  f"{cpu_s:.2f} | {ratio('cpu_s'):.3f} | {percentile(latencies, 0.5):.1f} | {percentile(latencies, 0.99):.1f} | "
                  f"{rate:.0f} |")
    return more


def print_sizes(facts, options):
    rows = options.tokens - 1
    print("\n| | bytes of an answer | per token | on the wire, per token | of a request on the wire, per token |")
    print("|---|---|---|---|---|")
    for way, size in facts["answer_bytes"].items():
        print(f"| {NAMES[way]} | {size} | {size / rows:.1f} | {facts['wire_bytes_per_answer'][way] / rows:.1f} | "
              f"{facts['wire_bytes_per_request'][way] / options.tokens:.1f} |")
    return facts["wire_bytes_per_answer"]["grpc"] / rows


def print_calls(facts, engine_ms):
    print(f"\n| a call to an engine that answers at once | time (ms) | CPU (ms) | of the engine's {engine_ms:.1f} ms |")
    print("|---|---|---|---|")
    for way, ms in facts["call_ms"].items():
        print(f"| {NAMES[way]} | {ms:.3f} | {facts['call_cpu_ms'][way]:.3f} | {ms / engine_ms:.2%} |")


def main():
    options = parse_arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        model_dir = pathlib.Path(options.model_dir or f"{scratch}/model")
        make_model(f"{options.bin_dir}/engine_bench", options.config, model_dir)
        load = os.getloadavg()[0]
        lines = output_of([f"{options.bin_dir}/teacher_bench", model_dir, options.threads, options.tokens, options.top_k,
                           options.sequences, options.rounds, options.clients, options.ways]).splitlines()
    # Logs go to standard error.
    facts, *cases = [json.loads(line) for line in lines if line.startswith("{")]
    hit_ms = cache_hit_ms(options.bin_dir)

    print(f"{processor()}, {os.cpu_count()} cores, {options.threads} threads; load before the start {load:.1f}. "
          f"{pathlib.Path(options.config).name}: {facts['num_parameters'] / 1e6:.1f} M parameters, "
          f"{facts['dtype']}; sequences of {options.tokens} tokens, top {options.top_k}; {options.rounds} rounds.\n")
    more = print_cases(cases, options)
    bytes_per_token = print_sizes(facts, options)
    worst = max(more[clients, "grpc"] for clients in options.clients.split(","))
    # The engine's time per sequence with several at once, from the least disturbed round.
    engine_ms = min(1e3 * case["wall_s"] / case["sequences"] for case in cases if case["way"] == "engine")
    print_calls(facts, engine_ms)
    call_share = (facts["call_ms"]["grpc"] - facts["call_ms"]["engine"]) / engine_ms
    print("\n| | limit | measured | |\n|---|---|---|---|")
    for what, limit, value, form in (
            ("gRPC, time of a call without the engine to the engine's", MAX_MORE_TIME, call_share, ".2%"),
            ("gRPC, more time than the bare engine, the worst of the numbers of clients", MAX_MORE_TIME, worst, ".1%"),
            (f"gRPC, bytes of an answer on the wire per token, k = {options.top_k}", MAX_BYTES, bytes_per_token, ".1f"),
            (f"hit of the score cache, {HIT_TOKENS} tokens, ms", MAX_HIT_MS, hit_ms, ".3f")):
        print(f"| {what} | {limit:{form}} | {value:{form}} | {'met' if value <= limit else 'missed'} |")
    free_rate = options.tokens / ((facts["call_ms"]["grpc"] - facts["call_ms"]["engine"]) / 1e3) * MAX_MORE_TIME
    print(f"| tokens/s of a teacher for which a gRPC call is {MAX_MORE_TIME:.0%} | | {free_rate:.0f} | |")
    print(f"| metrics, ns per score | | {facts['metrics_ns_per_score']:.0f} | |")
    print(f"| metrics, ns per generated token | | {facts['metrics_ns_per_token']:.0f} | |")
    print(f"\nTook {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
