"""Compares whole steps of on-policy distillation on the CPU: our trainer with our teacher, and loops in PyTorch.

    deploy/setup --oracle
    ninja -C build/cpu taopd-trainer taopd-teacher engine_bench
    tests/bench/run step [--case quickstart] [--case qwen3]

  quickstart   deploy/recipes/addition: 0.21 M parameters, float32, 36 prompts x 4 rollouts, 2 mini-batches; the peer is
               a plain PyTorch loop (peers.py) on the same models and prompts, which reports no metrics; and, if
               there is a peers/tiny_opd beside TAOPD_SHARED_DATA or ../shared/data, that loop: a model and a task of
               the same sizes in plain PyTorch, which reports entropy, tails, overlap and accuracy as the trainer does
  qwen3        random weights of Qwen3-0.6B's shape, bfloat16, 4 prompts x 4 rollouts of 64 + 128 tokens, one update;
               the peer is the same loop with transformers. The peer's weights, gradients and moments are bfloat16, so
               ours have optimizer.master none and optimizer.moments bfloat16; our sums of gradients are always
               float32. Micro-batches have 1,024 tokens; the teacher only scores, so it has no KV pool

The programs run one after another on both cores, each in a fresh process. Prints a table in Markdown: wall-clock
seconds by phase, CPU time and peak memory (trainer and teacher together) beside the goals, and the number of cores
that other processes used meanwhile. On a shared machine the CPU time is the fairer figure.
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
from machine import (BINARIES, QWEN3, ROOT, Load, Teacher, add_python, check_program, dependencies, make_model, output_of,
                     parser_of, processor)
RECIPE = ROOT / "deploy/recipes/addition/train.yaml"
PHASES = ("rollout", "teacher", "forward", "head", "backward", "optimizer")
# The trainer's metrics by phase. The teacher's phase is the trainer's wait for it after the
# rollouts.
METRICS = {"rollout": ("time/rollout_wait_s", "time/pack_s"), "teacher": ("time/teacher_wait_s",),
           "forward": ("time/forward_s",), "head": ("time/head_s",), "backward": ("time/backward_s",),
           "optimizer": ("time/optimizer_s",)}
GOALS = {"quickstart": {"time": 2.0}, "qwen3": {"time": 2.0, "peak": 0.6}}


def run_ours(options, case, work):
    """Starts the teacher, trains, and reads the metrics of the steps after the warm-up."""
    teacher = Teacher(options.teacher, case["teacher"], work, "--num-threads", case["teacher_threads"], *case["teacher_flags"])
    load = Load()
    try:
        command = [options.trainer, "train", "--config", str(case["config"]), "--overwrite"]
        for setting in (*case["settings"], f"run.dir={work / 'run'}", f"student.model={case['student']}",
                        f'teacher.endpoints=["grpc://127.0.0.1:{teacher.ports["grpc_port"]}"]',
                        f"trainer.total_steps={case['warm_up'] + case['steps']}"):
            command += ["--set", setting]
        with open(work / "trainer.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit((work / "trainer.log").read_text()[-3000:])
        teacher_cpu, teacher_peak = teacher.cpu_seconds(), teacher.peak_bytes()
    finally:
        teacher.stop()
    rows = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/step_s" in row][case["warm_up"]:]
    steps = [{phase: sum(row.get(key, 0.0) for key in keys) for phase, keys in METRICS.items()} for row in rows]
    for step, row in zip(steps, rows):
        step["step"] = row["time/step_s"]
    # The CPU time of both processes, including start-up; peers count only their steps.
    cpu = (usage.ru_utime + usage.ru_stime + teacher_cpu) / (case["warm_up"] + case["steps"])
    return {"steps": steps, "tokens": [row["rollout/tokens"] for row in rows], "cpu_s": cpu,
            "peak_mib": usage.ru_maxrss / 1024 + teacher_peak / 2**20, "others": load.others()}


def run_python(options, *command, **variables):
    """Runs a Python program on options.threads threads, which must succeed. Returns its standard output."""
    return output_of([options.python, *command], env=dict(os.environ, OMP_NUM_THREADS=str(options.threads), **variables))


def run_peer(options, case, work):
    prompts, settings = work / "prompts.json", work / "options.json"
    prompts.write_text(json.dumps(case["prompts"]))
    settings.write_text(json.dumps(dict(case["peer_options"], threads=options.threads, steps=case["peer_warm_up"] +
                                        case["peer_steps"], warm_up_steps=case["peer_warm_up"])))
    load = Load()
    output = run_python(options, HERE / "peers.py", case["peer"], case["student"], case["teacher"], prompts, settings,
                        TOKENIZERS_PARALLELISM="false")
    result = json.loads(output.strip().splitlines()[-1])
    for step in result["steps"]:
        step["step"] = sum(step.values())
    return dict(result, cpu_s=result["cpu_s"] / case["peer_steps"], others=load.others())


def run_tiny_opd(options, work):
    """Runs peers/tiny_opd of the shared data as its README says. Returns the seconds of a step, or None without it."""
    data = pathlib.Path(os.environ.get("TAOPD_SHARED_DATA") or ROOT.parent / "shared/data")
    loop = data.resolve().parent / "peers/tiny_opd"
    if not (loop / "op.py").exists():
        return None
    model, result = work / "tiny_opd.pt", work / "tiny_opd.json"
    if not model.exists():  # not made by an earlier round
        run_python(options, loop / "mk.py", model, 4, 48, 1.2, "-", 0, 60, 4e-3, 96, 2, 64, 1)
    run_python(options, loop / "op.py", "--teacher", model, "--student", model, "--objs", "ta_opd", "--ks", 8, "--steps",
               options.steps, "--lr", 5e-4, "--mini", 2, "--evals", 1000, "--neval", 4, "--out", result,
               TH=str(options.threads))
    history = json.loads(result.read_text())[0]["hist"]
    # The time runs from the end of the first step to the end of the last, which evaluates 4 prompts
    # twice and updates nothing.
    return {"step_s": (history[-1]["time"] - history[0]["time"]) / options.steps,
            "tokens": 36 * 4 * statistics.median(step["length"] for step in history)}


def print_tiny_opd(ours, tiny):
    step = statistics.median(step["step"] for step in ours["steps"])
    print(f"\npeers/tiny_opd: {tiny['step_s']:.3f} s a step of {tiny['tokens']:.0f} response tokens, "
          f"{tiny['step_s'] / step:.2f}x (goal: >= {GOALS['quickstart']['time']}x)", flush=True)


def run_round(options, name, case, work):
    return (run_ours(options, case, work), run_peer(options, case, work),
            run_tiny_opd(options, work) if name == "quickstart" else None)


def pooled(results):
    """Merges the results of all rounds: all their steps, the maximum of the peak, and means of the rest."""
    if results[0] is None:
        return None
    one = dict(results[0])
    for key, value in one.items():
        values = [result[key] for result in results]
        if isinstance(value, list):
            one[key] = sum(values, [])
        elif key == "peak_mib":
            one[key] = max(values)
        elif isinstance(value, float):
            one[key] = statistics.mean(values)
    return one


def quickstart(options, _):
    output_of(["deploy/quickstart", "--prepare-only"], cwd=ROOT, env=dict(os.environ, QUICKSTART_IS_BUILT="1"))
    models = max((dependencies() / "examples/addition").glob("*/.complete"), key=os.path.getmtime).parent
    lines = [json.loads(line)["prompt"] for line in (models / "data/train.jsonl").read_text().splitlines()]
    script = ("import json,sys;from tokenizers import Tokenizer;t=Tokenizer.from_file(sys.argv[1]);"
              "print(json.dumps([t.encode(p,add_special_tokens=False).ids for p in json.load(sys.stdin)]))")
    encoded = output_of([options.python, "-c", script, models / "data/tokenizer/tokenizer.json"],
                        input=json.dumps(lines[:36 * 40]))
    settings = [f'data.train=["{models}/data/train.jsonl"]', "data.val=[]", "trainer.eval_every=0",
                "trainer.save_every=0"]
    return {"teacher": models / "teacher/model", "student": models / "student/model", "config": RECIPE,
            "settings": settings, "teacher_flags": ["--kv-cache-memory-bytes", "67108864"],
            "teacher_threads": 1, "warm_up": 3, "steps": options.steps, "peer": "plain", "peer_warm_up": 3,
            "peer_steps": options.steps, "prompts": json.loads(encoded),
            "peer_options": {"max_new_tokens": 49, "top_k": 8, "mini_batches": 2, "lr": 5e-4, "prompts_per_step": 36,
                             "rollouts": 4}}


def qwen3(options, work):
    model = pathlib.Path(options.model_dir) if options.model_dir else work / "model"
    make_model(options.engine_bench, dict(json.loads(QWEN3.read_text()), num_hidden_layers=options.layers), model)
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    prompts = [[(7919 * (64 * i + t) + 11) % (vocabulary - 1000) for t in range(64)] for i in range(4)]
    data, config = work / "prompts.jsonl", work / "train.yaml"
    data.write_text("".join(json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts))
    config.write_text("run: {name: step}\n")
    settings = [f'data.train=["{data}"]', "student.dtype=bfloat16", "teacher.top_k=16", "data.train_batch_size=4",
                "data.max_prompt_length=64", "data.max_response_length=128", "rollout.n=4", "rollout.temperature=1.0",
                "rollout.kv_cache_gb=1.0", "trainer.mini_batch_size=4", "trainer.save_every=0", "trainer.eval_every=0",
                "optimizer.lr=1e-6", "optimizer.master=none", "optimizer.moments=bfloat16",
                "trainer.micro_batch_tokens=1024", f"trainer.num_threads={options.threads}"]
    return {"teacher": model, "student": model, "config": config, "settings": settings,
            "teacher_flags": ["--kv-cache-memory-bytes", "0", "--max-model-len", "256"],
            "teacher_threads": options.threads, "warm_up": 0, "steps": 1, "peer": "transformers", "peer_warm_up": 0,
            "peer_steps": 1, "prompts": prompts,
            "peer_options": {"max_new_tokens": 128, "top_k": 16, "mini_batches": 1, "lr": 1e-6, "prompts_per_step": 4,
                             "rollouts": 4}}


def print_table(name, ours, peer, peer_name):
    def median(result, phase):
        return statistics.median(step[phase] for step in result["steps"])

    def digits(value):
        return f"{value:.3f}" if value < 10 else f"{value:.1f}"

    tokens = [statistics.median(result["tokens"]) for result in (ours, peer)]
    print(f"\n### {name}\n\n| | taopd | {peer_name} | ratio | goal |\n|---|---|---|---|---|")
    for phase in (*PHASES, "step"):
        a, b = median(ours, phase), median(peer, phase)
        goal = f">= {GOALS[name]['time']}x" if phase == "step" else ""
        ratio = f"{b / a:.2f}x" if a > 0 else ""
        print(f"| {phase}, s | {digits(a)} | {digits(b)} | {ratio} | {goal} |")
    print(f"| processor time of a step, s | {digits(ours['cpu_s'])} | {digits(peer['cpu_s'])} | "
          f"{peer['cpu_s'] / ours['cpu_s']:.2f}x | |")
    goal = f"<= {GOALS[name]['peak']}x" if "peak" in GOALS[name] else ""
    print(f"| peak memory, MiB | {ours['peak_mib']:.0f} | {peer['peak_mib']:.0f} | "
          f"{ours['peak_mib'] / peer['peak_mib']:.2f}x | {goal} |")
    print(f"| response tokens of a step | {tokens[0]:.0f} | {tokens[1]:.0f} | | |")
    print(f"| cores that others took | {ours['others']:.1f} | {peer['others']:.1f} | | |", flush=True)


def main():
    parser = parser_of("step", __doc__)
    parser.add_argument("--case", action="append", choices=list(GOALS), help="default: both")
    add_python(parser, "PyTorch and transformers")
    parser.add_argument("--trainer", default=str(BINARIES / "taopd-trainer"))
    parser.add_argument("--teacher", default=str(BINARIES / "taopd-teacher"))
    parser.add_argument("--engine-bench", default=str(BINARIES / "engine_bench"))
    parser.add_argument("--steps", type=int, default=30, help="of quickstart, after three that warm up")
    parser.add_argument("--rounds", type=int, help="the programs in turn, so often; steps are pooled (default: 3 of "
                        "quickstart, whose steps are short beside the changes of a machine's speed; 1 of qwen3)")
    parser.add_argument("--layers", type=int, default=28, help="of the Qwen3 model, for a quick try")
    parser.add_argument("--model-dir", help="weights of the Qwen3 model to use again; made, and kept, when absent")
    parser.add_argument("--set", action="append", default=[], help="another setting of the trainer, for all cases")
    parser.add_argument("--teacher-threads", type=int, help="instead of the case's own")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    check_program(options.python, "deploy/setup --oracle, or --python")
    print(f"{processor()}, {options.threads} threads", flush=True)
    for name in options.case or GOALS:
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            case = {"quickstart": quickstart, "qwen3": qwen3}[name](options, work)
            case["settings"] = [*case["settings"], *options.set]
            case["teacher_threads"] = options.teacher_threads or case["teacher_threads"]
            num_rounds = options.rounds or (3 if name == "quickstart" else 1)
            rounds = [run_round(options, name, case, work) for _ in range(num_rounds)]
        ours, peer, tiny = (pooled(results) for results in zip(*rounds))
        print_table(name, ours, peer, {"plain": "plain PyTorch"}.get(case["peer"], case["peer"]))
        if tiny:
            print_tiny_opd(ours, tiny)


if __name__ == "__main__":
    main()
