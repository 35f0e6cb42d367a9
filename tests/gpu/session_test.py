"""tests/gpu/session.py: a part that fails, hangs or breaks stops only those that need it, and every line has a verdict. With
--rehearsal BUILD_DIR, the whole script runs on this machine's CPU."""

import argparse
import contextlib
import datetime
import io
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/gpu"), str(ROOT / "tests/deploy")]
import session  # noqa: E402
import session_parts  # noqa: E402
import environment  # noqa: E402
import results_table  # noqa: E402
from session_parts import Failed, Part, Skipped  # noqa: E402

BUILD_DIR = None


def run_parts(parts, *arguments):
    """Runs the session with these parts; returns its exit code, {part: (verdict, text)} and the results file."""
    with tempfile.TemporaryDirectory() as out:
        known, session_parts.PARTS = session_parts.PARTS, parts
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                code = session.main(["--rehearse", "--out", out, *arguments])
        finally:
            session_parts.PARTS = known
        (results,) = pathlib.Path(out).glob("*.md")
        text = results.read_text(encoding="utf-8")
        logs = {path.stem: path.read_text(encoding="utf-8") for path in pathlib.Path(out).glob("*.log")}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return code, {row[0]: (row[1], row[3]) for row in rows[1:]}, text, logs


def fail(_):
    raise Failed("wrong number")


def skip(_):
    raise Skipped("one GPU")


def sleep(a_session):
    return a_session.run(["sleep", "60"])


class DayTest(unittest.TestCase):
    def test_parts_do_not_stop_each_other(self):
        parts = [Part("good", lambda _: "42 | tokens/s", 9), Part("bad", fail, 9), Part("none", skip, 9),
                 Part("broken", lambda _: {}["x"], 9), Part("slow", sleep, 0.3),
                 Part("after bad", lambda _: "", 9, ("good", "bad")), Part("after none", lambda _: "", 9, ("none",)),
                 Part("after after", lambda _: "", 9, ("after bad",)), Part("last", lambda _: "ok", 9, ("good",))]
        code, rows, text, logs = run_parts(parts)
        self.assertEqual(code, 1)
        self.assertEqual({name: verdict for name, (verdict, _) in rows.items()},
                         {"good": "passed", "bad": "failed", "none": "skipped", "broken": "failed", "slow": "failed",
                          "after bad": "not reached", "after none": "not reached", "after after": "not reached",
                          "last": "passed"})
        self.assertEqual(rows["good"][1], "42 / tokens/s")  # a bar would end the cell
        self.assertEqual(rows["bad"][1], "wrong number")
        self.assertIn("KeyError", rows["broken"][1])
        self.assertEqual(rows["slow"][1], "sleep did not end in time")
        self.assertEqual(rows["after bad"][1], "bad: failed")
        self.assertIn("$ sleep 60", logs["slow"])
        for head in ("# Rehearsal on a CPU", "- date: 20", "- commit: ", "- command: tests/gpu/run --rehearse"):
            self.assertIn(head, text)

    def test_skipped_parts_alone_are_no_failure(self):
        code, rows, _, _ = run_parts([Part("none", skip, 9), Part("good", lambda _: "", 9)])
        self.assertEqual((code, rows["none"][0]), (0, "skipped"))

    def test_what_no_time_is_left_for_is_not_reached(self):
        parts = [Part("build", sleep, 0.2, is_preparation=True), Part("slow", sleep, 60), Part("late", lambda _: "", 9),
                 Part("facts", lambda _: "", 9, is_preparation=True)]
        code, rows, _, _ = run_parts(parts, "--limit", "0.3")
        self.assertEqual(code, 1)
        self.assertEqual(rows["late"], ("not reached", "the time is up (--limit)"))
        self.assertEqual((rows["slow"][0], rows["facts"][0]), ("failed", "passed"))

    def test_only_runs_a_part_and_what_it_needs(self):
        parts = [Part("a", lambda _: "", 9), Part("b", lambda _: "", 9, ("a",)), Part("c", lambda _: "", 9, ("b",)),
                 Part("d", lambda _: "", 9)]
        _, rows, _, _ = run_parts(parts, "--only", "c")
        self.assertEqual(list(rows), ["a", "b", "c"])
        with self.assertRaisesRegex(SystemExit, "no part e; the parts are a, b, c, d"):
            run_parts(parts, "--only", "e")

    def test_a_command_with_another_exit_code_fails_with_its_last_line(self):
        parts = [Part("a", lambda a_session: a_session.run(["sh", "-c", "echo first; echo last; exit 3"]), 9),
                 Part("b", lambda a_session: a_session.run(["/no/such/program"]), 9)]
        _, rows, _, _ = run_parts(parts)
        self.assertEqual(rows["a"][1], "sh ended with 3, not 0: last")
        self.assertEqual(rows["b"], ("failed", "/no/such/program: No such file or directory"))

    def test_architectures(self):
        self.assertEqual([session_parts.architecture(x) for x in ("8.0", "8.9", "9.0", "10.0", "12.0")],
                         ["80-real", "89-real", "90a-real", "100-real", "120-real"])

    def test_a_build_that_exists_is_brought_up_to_date(self):
        with tempfile.TemporaryDirectory() as folder:
            build_dir, commands = pathlib.Path(folder), []
            (build_dir / "bin").mkdir()
            for name in ("taopd-teacher", "taopd-trainer"):
                (build_dir / "bin" / name).touch()
            (build_dir / "CMakeCache.txt").touch()
            # nvcc, which is not in PATH here, is needed only if a file has changed.
            a_session = types.SimpleNamespace(rehearse=False, build_dir=build_dir, facts={"nvcc": "none"}, run=commands.append)
            self.assertEqual(session_parts.build(a_session), f"{build_dir} is up to date")
            self.assertEqual(commands, [["cmake", "--build", build_dir]])
            (build_dir / "CMakeCache.txt").unlink()
            self.assertEqual(session_parts.build(a_session), f"the programs of {build_dir}, built elsewhere")
            self.assertEqual(len(commands), 1)

    def test_the_commit_says_if_files_differ(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(session, "ROOT", folder):
            path = pathlib.Path(folder, "file")
            path.touch()
            for arguments in (["init"], ["add", "file"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "--message=a"]):
                subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)
            self.assertRegex(session.commit_of_tree(), r"^[0-9a-f]{4,}$")
            path.write_text("changed", encoding="ascii")
            self.assertRegex(session.commit_of_tree(), r"^[0-9a-f]{4,}-dirty$")

    def test_a_sanitizer_that_is_cut_off_tells_what_it_found(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "compute-sanitizer")
            printed = "========= COMPUTE-SANITIZER\\n[       OK ] a\\n"
            for found, expected in (("", "found nothing in 1 tests; no time was left for the others"),
                                    ("========= Invalid __global__ read\\n", "compute-sanitizer did not end in time"),):
                write_script(tool, f"printf '{printed}{found}'; sleep 60 & wait")
                part = Part("memcheck", session_parts.sanitizer("memcheck"), 0.5)
                with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), \
                        mock.patch.object(session.Session, "test_program", lambda *_: "program"):
                    _, rows, _, _ = run_parts([part])
                self.assertEqual(rows["memcheck"], ("failed" if found else "passed", expected))

    def test_a_kernel_that_was_not_checked_is_not_trusted(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"{name}: custom, 2.0x, error 1.0e-03 of 2.0e-02 allowed (y)" for name in session_parts.CHECKED_KERNELS]
            lines[3] = "paged attention: custom, not checked, because the composition failed: out of memory"
            lines[4] = "prefill attention: composed, because the kernel is slower: 0.2x"
            pathlib.Path(folder, "self_check.txt").write_text("\n".join(lines), encoding="utf-8")
            a_session = types.SimpleNamespace(rehearse=False, out=pathlib.Path(folder))
            self.assertEqual(session_parts.self_check(a_session), "; ".join(lines[3:5]))


class RanTest(unittest.TestCase):
    def test_the_page_says_what_ran(self):
        page = results_table.PAGE.read_text(encoding="utf-8")
        self.assertEqual(results_table.with_text(page, results_table.describe(results_table.RESULTS)), page, "run tests/gpu/results_table.py --write")

    def test_a_results_file_becomes_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(results_table.describe(pathlib.Path(folder)), results_table.NOTHING)
            a_session = session.Session(types.SimpleNamespace(rehearse=False, small=False, build_dir=None, commit=None, out=folder), folder)
            a_session.facts = {"device": "NVIDIA H100", "driver": "580.1"}
            rows = [("build", "passed", 1.0, "ok"), ("heads", "failed", 1.0, "x"), ("vllm", "skipped", 0, "none")]
            path = pathlib.Path(folder, "2026-01-02-0304.md")
            session.write_results(path, a_session, "tests/gpu/run", datetime.datetime(2026, 1, 2, 3, 4), rows)
            row = results_table.describe(pathlib.Path(folder)).splitlines()[-1]
            self.assertRegex(row, r"^\| \[2026-01-02 03:04 UTC\]\(\.\./tests/bench/results/gpu/2026-01-02-0304\.md\) \| "
                                  r"NVIDIA H100 \| 580\.1 \| [\w-]+ \| build \| heads \| vllm \|$")
            # A rehearsal is not a result of a GPU.
            a_session.rehearse = True
            session.write_results(path, a_session, "tests/gpu/run --rehearse", datetime.datetime(2026, 1, 2), rows)
            with self.assertRaisesRegex(ValueError, "not a results file of a GPU"):
                results_table.describe(pathlib.Path(folder))


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


def write_script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n", encoding="ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


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


@unittest.skipIf("--rehearsal" not in sys.argv, "no --rehearsal BUILD_DIR")
class RehearsalTest(unittest.TestCase):
    """The whole script with the real programs, on this machine's CPU."""

    @classmethod
    def setUpClass(cls):
        """A build whose programs are loaded once."""
        cls.build = environment.temporary_path(cls)
        (cls.build / "bin").symlink_to(environment.loaded_bin_dir())
        (cls.build / "tests-bin").symlink_to(pathlib.Path(BUILD_DIR, "tests-bin"))

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rehearsal")
    known, rest = parser.parse_known_args()
    BUILD_DIR = known.rehearsal
    unittest.main(argv=[sys.argv[0], *rest])
