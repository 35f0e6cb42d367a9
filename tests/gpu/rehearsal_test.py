"""The whole of tests/gpu/run with the real programs, on this machine's CPU."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import session_parts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/deploy"))
from environment import BIN_DIR, loaded_bin_dir, temporary_path, write_script

# Stand-ins for the tools of a machine with two GPUs. cmake "builds" by copying the programs of STAND_INS.
TOOLS = {
    "nvidia-smi": '''case "$*" in
  --list-gpus) echo "GPU 0: Stand-in"; echo "GPU 1: Stand-in" ;;
  *) echo "Stand-in GPU, 580.1, 9.0, 80000 MiB"; echo "Stand-in GPU, 580.1, 9.0, 80000 MiB" ;;
esac''',
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "cmake": '''case $1 in
  --build) mkdir -p "$2"; cp -r "$STAND_INS/bin" "$STAND_INS/tests-bin" "$2" ;;
  *) case "$*" in *-DCMAKE_CUDA_ARCHITECTURES=90a-real*) ;; *) exit 1 ;; esac ;;
esac''',
    "compute-sanitizer": '[ "$1 $3 $4" = "--tool --error-exitcode 9" ] || exit 1; shift 4; exec "$@"',
    # This project's teacher answers vLLM's requests.
    "vllm": '''[ "$1 $3 $5 $7 $9" = "serve --host --port --tokenizer --max-model-len" ] || exit 1
exec "$REAL/bin/taopd-teacher" --model "$2" --device cpu --host "$4" --port "$6" --grpc-port 0''',
}
TESTS = ("gpu_kernels_test", "gpu_attention_test", "gpu_heads_test", "gpu_engine_test")
# The programs without what only a GPU has; the trainer logs the lines of the check at the start.
TEACHER = '''for argument; do
  shift
  case $argument in --cuda-graphs | true | false) continue ;; cuda) argument=cpu ;; esac
  set -- "$@" "$argument"
done
exec "$REAL/bin/taopd-teacher" "$@"'''
TRAINER = '''case " $* " in
  *" trainer.kernels=auto "*)
    for kernel in norms rotation "SiLU gates" "paged attention" "prefill attention" "student head" "scoring head" sampling AdamW; do
      echo "2026-01-01T00:00:00.000 I $kernel: custom, 2.0x, error 1.0e-03 of 2.0e-02 allowed (y)"
    done ;;
esac
for argument; do
  shift
  case $argument in trainer.device=cuda) argument=trainer.device=cpu ;; optimizer.offload=true) argument=optimizer.offload=false ;; esac
  set -- "$@" "$argument"
done
exec "$REAL/bin/taopd-trainer" "$@"'''


def run_script(build, arguments, wrong=None):
    """tests/gpu/run with the stand-ins in PATH, which use the programs of `build`. `wrong` is a program of the build that
    fails. Returns exit code, {part: (verdict, text)}, the results file and what the failed parts have logged."""
    with tempfile.TemporaryDirectory() as folder:
        tools, stand_ins, out = (pathlib.Path(folder, name) for name in ("tools", "stand_ins", "out"))
        for name, text in TOOLS.items():
            write_script(tools / name, text)
        write_script(stand_ins / "bin/taopd-teacher", TEACHER)
        write_script(stand_ins / "bin/taopd-trainer", TRAINER)
        for name in ("gpu_heads_bench", "gpu_attention_bench"):
            write_script(stand_ins / "bin" / name, "echo '| head | 1.0 ms |'")
        for name in TESTS:
            write_script(stand_ins / "tests-bin" / name, "echo '[  PASSED  ] 3 tests.'")
        if wrong is not None:
            write_script(stand_ins / wrong, "echo 'planted fault'; exit 3")
        arguments = [*arguments, "--limit", "1500"]
        if "--rehearse" not in arguments:
            arguments = [*arguments, "--build-dir", pathlib.Path(folder, "build")]
        environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", STAND_INS=str(stand_ins), REAL=str(build))
        result = subprocess.run([ROOT / "tests/gpu/run", *arguments, "--out", out], env=environment, capture_output=True,
                                text=True, timeout=1700, check=False)
        files = list(out.glob("*.md"))
        text = files[0].read_text(encoding="utf-8") if files else result.stderr
        logs = "".join(path.read_text(encoding="utf-8", errors="replace")[-3000:] for path in sorted(out.glob("*.log"))
                       if f"| {path.stem.replace('_', ' ')} | failed" in text)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return result.returncode, {row[0]: (row[1], row[3]) for row in rows[1:]}, text, logs


class RehearsalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A build whose programs are loaded once."""
        cls.build = temporary_path(cls)
        (cls.build / "bin").symlink_to(loaded_bin_dir())
        (cls.build / "tests-bin").symlink_to(BIN_DIR.parent / "tests-bin")

    def check_passed(self, verdicts, skipped, text, logs):
        self.assertEqual(list(verdicts), [part.name for part in session_parts.PARTS])
        for name, (verdict, found) in verdicts.items():
            if name == "transformers" and verdict == "skipped":
                continue  # it is where the tests with the label oracle run
            self.assertEqual(verdict, "skipped" if name in skipped else "passed", f"{name}: {found}\n{text}{logs}")
        for head in ("- date: 20", "- commit: ", "- device: ", "- driver: ", "- command: tests/gpu/run "):
            self.assertIn(head, text)

    def test_rehearse(self):
        code, verdicts, text, logs = run_script(self.build, ["--rehearse", "--build-dir", self.build])
        self.check_passed(verdicts, ("heads", "attention"), text, logs)  # the benchmarks are programs for GPUs
        self.assertEqual(code, 0)
        self.assertTrue(text.startswith("# Rehearsal on a CPU: "))

    def test_the_branches_for_a_gpu(self):
        """The commands that a GPU gets, which the stand-ins pass on to the CPU."""
        code, verdicts, text, logs = run_script(self.build, ["--small"])
        self.check_passed(verdicts, (), text, logs)
        self.assertEqual(code, 0)
        self.assertTrue(text.startswith("# GPU: Stand-in GPU\n"))
        self.assertIn("- driver: 580.1\n", text)
        self.assertEqual(verdicts["build"][1], "built for 90a-real")
        self.assertIn("every kernel is trusted: norms: custom", verdicts["self check"][1])

    def test_a_fault_in_one_part_leaves_the_others(self):
        code, verdicts, text, _ = run_script(self.build, ["--small", "--only", "memcheck", "--only", "heads", "--only", "graphs"],
                                             wrong="tests-bin/gpu_attention_test")
        self.assertEqual(code, 1)
        self.assertEqual(verdicts["kernel tests"],
                         ("failed", "gpu_attention_test ended with 3, not 0: planted fault; gpu_kernels_test 3 passed; "
                          "gpu_heads_test 3 passed; gpu_engine_test 3 passed"), text)
        self.assertEqual(verdicts["memcheck"], ("not reached", "kernel tests: failed"))
        for name in ("device", "build", "shape", "graphs", "heads"):
            self.assertEqual(verdicts[name][0], "passed", text)
