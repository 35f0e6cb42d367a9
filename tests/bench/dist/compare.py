"""Compares data-parallel training steps on the CPU: bin/dist_bench and DistributedDataParallel, both over Gloo.

    deploy/setup --oracle
    ninja -C build/cpu dist_bench engine_bench
    tests/bench/run dist [--case one_pass] [--case accumulated]

Each program runs two processes of one thread each, on the same random Qwen3 in float32 with the same sequences, loss
and optimizer; the first losses must agree. The programs take turns, so that other load of the machine affects both.

  one_pass      one micro-batch per rank: gradients are exchanged during its backward pass
  accumulated   four micro-batches: gradients are exchanged during the last one's backward pass (ours also with sharded
                gradients, during each)

Prints tables in Markdown: the seconds of a step (of the slower rank, the median over steps) and of its phases beside
the goal; the CPU time, which is the fairer figure on a shared machine; and for our collectives the bytes, the seconds
from call to end ("busy"), and the part of them during which no rank waited.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from machine import BINARIES, Load, add_python, check_program, make_model, parser_of, processor
SHAPE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "bos_token_id": 1,
         "eos_token_id": 2, "head_dim": 64, "hidden_act": "silu", "hidden_size": 512, "initializer_range": 0.02,
         "intermediate_size": 1536, "max_position_embeddings": 1024, "num_attention_heads": 8, "num_hidden_layers": 8,
         "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True,
         "torch_dtype": "float32", "vocab_size": 8192}
CASES = {"one_pass": {"sequences": 8, "micro_batches": 1}, "accumulated": {"sequences": 16, "micro_batches": 4}}
OPTIONS = {"prompt_tokens": 64, "response_tokens": 128, "top_k": 16, "lr": 1e-4, "threads": 1}
PHASES = ("passes", "rest of the exchange", "norm", "update and weights", "step")
GOAL = 1.0


def run_ranks(command_of, ranks, environment):
    """Runs one process per rank at the same time; returns the last output of each."""
    processes = []
    for rank in range(ranks):
        variables = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1", **environment)
        processes.append(subprocess.Popen(command_of(rank), env=variables, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    results = []
    for process in processes:
        out, error = process.communicate(timeout=1800)
        if process.returncode:
            for other in processes:
                other.kill()
            sys.exit(error[-3000:])
        results.append(json.loads(out.strip().splitlines()[-1]))
    return results


class Program:
    def __init__(self, name, settings):
        self.name, self.settings, self.rounds = name, settings, []

    def run(self, options, model, work, number):
        load = Load()
        path = work / f"options-{number}.json"
        path.write_text(json.dumps(self.settings))
        store = work / f"store-{number}"
        if self.name == "DDP":
            results = run_ranks(lambda _: [options.python, str(HERE / "peer.py"), str(model), str(path),
                                           str(store)], options.ranks, {"TOKENIZERS_PARALLELISM": "false"})
        else:
            results = run_ranks(lambda _: [options.bench, str(model), str(path)], options.ranks,
                                {"TAOPD_RENDEZVOUS_FILE": str(store), "GOMP_SPINCOUNT": "1000"})
        self.rounds.append({"ranks": results, "others": load.others()})

    def seconds(self, phase, of_ranks=max):
        """The median over the steps of the ranks' maximum or sum."""
        return statistics.median(of_ranks(steps[i].get(phase, 0.0) for steps in per_rank)
                                 for per_rank in ([rank["steps"] for rank in round_["ranks"]] for round_ in self.rounds)
                                 for i in range(len(per_rank[0])))

    def first_loss(self):
        return self.rounds[0]["ranks"][0]["first_loss"]

    def others(self):
        return statistics.mean(round_["others"] for round_ in self.rounds)


def print_times(name, programs):
    ddp = programs[-1]
    print(f"\n### {name}\n\n| | " + " | ".join(program.name for program in programs) + " | ratio | goal |")
    print("|---" * (len(programs) + 3) + "|")
    for phase in PHASES:
        values = [program.seconds(phase) for program in programs]
        is_step = phase == "step"
        ratio = f"{values[0] / values[-1]:.2f}x" if values[-1] > 0 and is_step else ""
        print(f"| {phase}, s | " + " | ".join(f"{value:.3f}" for value in values) +
              f" | {ratio} | {f'<= {GOAL}x' if is_step else ''} |")
    values = [program.seconds("processor", sum) for program in programs]
    print("| processor time of all ranks, s | " + " | ".join(f"{value:.3f}" for value in values) +
          f" | {values[0] / values[-1]:.2f}x | |")
    print("| first loss | " + " | ".join(f"{program.first_loss():.6f}" for program in programs) + " | | |")
    print("| cores that others took | " + " | ".join(f"{program.others():.1f}" for program in programs) + " | | |",
          flush=True)
    for program in programs:
        if abs(program.first_loss() / ddp.first_loss() - 1) > 1e-4:
            sys.exit(f"{program.name} and {ddp.name} do not compute the same")


def print_collectives(program):
    print(f"\n{program.name}, a step of rank 0:\n\n| collective | calls | MiB | busy, s | waited, s | hidden |"
          "\n|---|---|---|---|---|---|")
    ranks = [round_["ranks"][0] for round_ in program.rounds]
    num_steps = sum(len(rank["steps"]) for rank in ranks)
    for name in ranks[0]["collectives"]:
        calls, size, busy, waited = (sum(rank["collectives"][name][key] for rank in ranks) / num_steps
                                     for key in ("calls", "bytes", "busy_s", "waited_s"))
        hidden = f"{max(0.0, 1 - waited / busy):.0%}" if busy > 0 else ""
        print(f"| {name} | {calls:.0f} | {size / 2**20:.2f} | {busy:.4f} | {waited:.4f} | {hidden} |", flush=True)


def main():
    parser = parser_of("dist", __doc__)
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    add_python(parser, "PyTorch")
    parser.add_argument("--bench", default=str(BINARIES / "dist_bench"))
    parser.add_argument("--engine-bench", default=str(BINARIES / "engine_bench"), help="makes the weights")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="in each round, after two that warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    options = parser.parse_args()
    check_program(options.python, "deploy/setup --oracle, or --python")
    print(f"{processor()}, {options.ranks} processes of one thread", flush=True)
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            make_model(options.engine_bench, dict(SHAPE, num_hidden_layers=options.layers), work / "model")
            settings = dict(OPTIONS, **CASES[name], warm_up=2, steps=options.steps)
            programs = [Program("taopd", dict(settings, gradients="whole"))]
            if settings["micro_batches"] > 1:
                programs.append(Program("taopd, sharded", dict(settings, gradients="sharded")))
            programs.append(Program("DDP", settings))
            for number in range(options.rounds * len(programs)):
                programs[number % len(programs)].run(options, work / "model", work, number)
        print_times(name, programs)
        for program in programs[:-1]:
            print_collectives(program)


if __name__ == "__main__":
    main()
