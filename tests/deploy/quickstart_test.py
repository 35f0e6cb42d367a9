"""The flow of deploy/quickstart and deploy/sweep, with stubs for the programs: what it prepares, keeps, starts, ends and reports."""

import json
import os
import pathlib
import shutil
import signal

from environment import expect
from programs import is_alive, wait_for
from stub_tree import ROOT, WAIT_S, StubTree


class QuickstartTest(StubTree):
    def test_whole_run(self):
        output = self.expect(0)
        self.assertEqual([event["command"] for event in self.events()],
                         ["sft", "sft", "teacher", "train", "eval", "eval", "eval", "teacher ended"])
        settings = self.events("train")[0]["settings"]
        self.assertEqual(settings["run.dir"], "runs/quickstart")
        self.assertEqual(settings["teacher.endpoints"], '["grpc://127.0.0.1:4242"]')
        self.assertTrue(settings["student.model"].endswith("/student/model"))
        summary = json.loads((self.root / "runs/quickstart/summary.json").read_text())
        seconds = summary.pop("seconds")
        self.assertGreaterEqual(seconds, 0)
        expected = {"steps": 7}
        for key, value in (("teacher_accuracy", 0.9), ("student_accuracy_before", 0.25), ("student_accuracy_after", 0.8)):
            expected |= {key: value, key + "_low": value - 0.05, key + "_high": value + 0.05, key + "_n": 400}
        self.assertEqual(summary, expected)
        for part in ("student after", "80.0%", "75.0% to 85.0%", "n = 400", "set-up", "evaluation"):
            self.assertIn(part, output)
        self.assertTrue((self.root / "runs/quickstart/report.html").exists())
        evaluations = self.events("eval")
        self.assertEqual([e["settings"]["eval.num_prompts"] for e in evaluations], ["0"] * 3)
        self.assertEqual(evaluations[2]["model"], "runs/quickstart/model")

    def test_second_run_keeps_models_until_the_recipe_changes(self):
        self.expect(0)
        output = self.expect(0)
        self.assertIn("(kept)", output)
        self.assertEqual(len(self.events("sft")), 2)
        with open(self.root / "deploy/recipes/addition/student_sft.yaml", "a", encoding="utf-8") as file:
            file.write("# changed\n")
        self.expect(0)
        self.assertEqual(len(self.events("sft")), 4)

    def test_in_a_package(self):
        """Where the programs are in bin/ nothing is built, and the run is below the caller's directory."""
        package, caller = self.root / "site-packages/taopd", self.root / "home"
        caller.mkdir()
        package.parent.mkdir()
        shutil.move(self.root / "build/cpu/bin", package / "bin")
        shutil.move(self.root / "deploy", package / "deploy")
        (package / "deploy/setup").unlink()
        (package / "VERSION").write_text("0.1.0\n")
        for path in (package, *package.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
        self.addCleanup(lambda: [path.chmod(0o755) for path in (package, *package.rglob("*")) if path.is_dir()])
        before = sorted(package.rglob("*"))
        done = expect(0, ["bash", package / "deploy/quickstart"], cwd=caller, env=self.environment)
        self.assertNotIn("build", done.stdout)
        self.assertEqual(json.loads((caller / "runs/quickstart/summary.json").read_text())["student_accuracy_after"], 0.8)
        self.assertEqual(sorted(package.rglob("*")), before)
        done = expect(0, ["bash", package / "deploy/quickstart", "--run-dir", "mine"], cwd=caller, env=self.environment)
        self.assertIn("(kept)", done.stdout)
        self.assertTrue((caller / "mine/report.html").exists())

    def test_failed_preparation_is_not_kept(self):
        output = self.expect(65, STUB_SFT="65")
        self.assertIn("supervised training", output)
        self.assertEqual(self.events("train"), [])
        self.expect(0)

    def test_teacher_that_dies(self):
        output = self.expect(65, STUB_TEACHER="65")
        self.assertIn("the weights are damaged", output)
        self.assertIn("before it was ready", output)
        self.assertEqual(self.events("train"), [])

    def test_training_that_fails_ends_the_teacher(self):
        self.expect(76, STUB_TRAIN="76")
        self.assertEqual(len(self.events("teacher ended")), 1)
        self.assertFalse((self.root / "runs/quickstart/summary.json").exists())

    def files(self, directory):
        return {str(path.relative_to(self.root)): path.read_bytes()
                for path in sorted((self.root / directory).rglob("*")) if path.is_file()}

    def test_a_start_that_fails_keeps_the_old_run(self):
        self.expect(0)
        before = self.files("runs/quickstart")
        self.assertIn("runs/quickstart/summary.json", before)
        self.assertIn("runs/quickstart/teacher.log", before)
        for code, environment in ((65, {"STUB_TEACHER": "65"}), (69, {"STUB_REFUSE": "69"})):
            self.expect(code, "--seed", "1", **environment)
            self.assertEqual(self.files("runs/quickstart"), before)
        # The run is the same one: with --keep there is nothing to do.
        trains = len(self.events("train"))
        output = self.expect(0, "--keep")
        self.assertIn("run: runs/quickstart (kept)", output)
        self.assertEqual(len(self.events("train")), trains)

    def test_a_run_with_other_flags_or_evaluations_is_another_one(self):
        (self.root / "own.yaml").write_text("student:\n  model: /models/student\n")
        arguments = ("--keep", "--config", "own.yaml", "--teacher", "/models/teacher")
        for recipe in ("", "teacher_flags=(--num-threads 1)\n", "eval_overrides=(eval.n=2)\n"):
            (self.root / "own.env").write_text(recipe)
            for is_kept in (False, True):
                output = self.expect(0, *arguments)
                self.assertEqual("run: runs/own (kept)" in output, is_kept, recipe)

    def test_a_repeated_run_leaves_nothing_of_the_old_one(self):
        self.expect(0, "--greedy")
        self.assertTrue((self.root / "runs/quickstart/evaluation/student_after_greedy.json").exists())
        self.expect(76, STUB_TRAIN="76")
        for name in ("evaluation", "summary.json", "report.html"):
            self.assertFalse((self.root / "runs/quickstart" / name).exists(), name)
        self.assertFalse((self.root / "runs/quickstart.starting").exists())

    def test_a_quickstart_that_was_killed_goes_on(self):
        process = self.start("--keep", STUB_TRAIN="wait")
        programs = [self.wait_for_event("teacher"), self.wait_for_event("train")]
        wait_for((self.root / "runs/quickstart/config.yaml").exists, "the run's settings")
        process.kill()
        for program in programs:  # in sessions of their own
            os.kill(program["pid"], signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
        self.expect(0, "--keep")
        self.assertEqual([train["resume"] for train in self.events("train")], [False, True])

    def test_comparison(self):
        arguments = ("--compare", "ta_opd,full", "--seeds", "2", "--set", "trainer.total_steps=3",
                     "--set", "eval.temperature=0.6")
        output = self.expect(0, *arguments)
        trains = self.events("train")
        self.assertEqual([(t["settings"]["run.dir"], t["settings"]["objective.name"], t["settings"]["run.seed"])
                          for t in trains],
                         [(f"runs/compare/seed-{s}/{o}", o, str(s)) for s in (0, 1) for o in ("ta_opd", "full")])
        self.assertEqual({t["settings"]["trainer.total_steps"] for t in trains}, {"3"})
        # The same student for each objective of a seed, another one for the next seed.
        students = [t["settings"]["student.model"] for t in trains]
        self.assertEqual(students[0], students[1])
        self.assertNotEqual(students[1], students[2])
        seeds = {e["settings"]["run.dir"].rsplit("/", 1)[1] + e["settings"].get("run.seed", "") for e in self.events("sft")}
        self.assertEqual(seeds, {"teacher", "student", "teacher10", "student11"})
        self.assertEqual(len(self.events("teacher ended")), 4)
        # Three evaluations and the greedy one.
        greedy = [e for e in self.events("eval") if e["settings"].get("eval.temperature") == "0"]
        self.assertEqual((len(self.events("eval")), len(greedy)), (16, 4))
        report = (self.root / "runs/compare/compare.html").read_text()
        self.assertEqual(report.split(), [f"runs/compare/seed-{s}/{o}" for o in ("ta_opd", "full") for s in (0, 1)])
        self.assertIn("| `full` | 80.0% [80.0%, 80.0%] | 80.0% [80.0%, 80.0%] | 0.250 [0.250, 0.250] | "
                      "0.750 [0.750, 0.750] | 0.125 [0.125, 0.125] | 0.500 [0.500, 0.500] | - |", output)
        self.assertIn("Teacher 90.0%", output)
        self.assertIn("| run | accuracy, T = 0.6 | greedy |", output)
        self.draw_result("runs/compare/seed-0/ta_opd", "sampled at temperature 0.6")

        # Started again: what has finished is kept, what was interrupted continues, what differs is made again.
        (self.root / "runs/compare/seed-1/full/report.html").unlink()
        output = self.expect(0, *arguments)
        self.assertEqual(output.count("run: runs/compare"), 3)
        self.assertEqual([t["resume"] for t in self.events("train")], [False] * 4 + [True])
        output = self.expect(0, "--compare", "full")
        self.assertIn("| run | accuracy, T = 1 | greedy |", output)
        self.assertEqual([t["resume"] for t in self.events("train")], [False] * 4 + [True, False])

    def draw_result(self, run_dir, title):
        picture = self.root / "pictures/result.svg"
        expect(0, [self.root / "deploy/tools/draw_result", "-o", picture, f"Run={run_dir}"], cwd=self.root, env=self.environment)
        self.assertIn(title, picture.read_text(encoding="ascii"))

    def test_comparison_that_fails(self):
        output = self.expect(1, "--compare", "ta_opd,ful")
        self.assertIn('there is no objective "ful"', output)
        self.assertIn('there is no objective "ta.opd"', self.expect(1, "--compare", "ta.opd"))
        self.expect(1, "--compare", "ta_opd", "--seeds", "0")
        self.assertEqual(self.events(), [])
        # A run that fails does not stop the others.
        output = self.expect(76, "--compare", "ta_opd,full", STUB_TRAIN="76")
        self.assertIn("failed: seed-0/ta_opd seed-0/full", output)
        self.assertEqual(len(self.events("train")), 2)
        for arguments, part in ((("--sweep", "optimizer.lr"), "the form is KEY=A,B"), (("--seeds", "2"), "need --sweep"),
                                (("--sweep", "optimizer.lr=1,1"), "given twice"), (("--jobs", "0"), "whole number"),
                                (("--compare", "full", "--seed", "1"), "use --seeds"),
                                (("--compare", "full", "--prepare-only"), "--prepare-only excludes --sweep")):
            self.assertIn(part, self.expect(1, *arguments))

    def test_sweep_that_is_interrupted_twice(self):
        arguments = ("--sweep", "teacher.top_k=4,8", "--sweep", "optimizer.betas=[0.9, 0.98],[0.9, 0.999]")
        dirs = [f"runs/sweep/seed-0/top_k={k}_betas=0.9-{b}" for k in (4, 8) for b in ("0.98", "0.999")]
        for num_trains, sent in ((1, signal.SIGINT), (4, signal.SIGTERM)):
            process = self.start(*arguments, STUB_WAIT_AFTER=str(num_trains))
            self.wait_for_events("train", num_trains + 1)
            os.killpg(process.pid, sent)
            self.finish(process, 128 + sent)
            # The trainer that saved, and all before it.
            self.assertEqual(self.events("train")[-1].get("signals"), 1)
        output = self.expect(0, *arguments)
        trains = [t for t in self.events("train") if "signals" not in t]
        # The second and the third run were interrupted. Each interrupted trainer is in the log twice.
        self.assertEqual([(t["settings"]["run.dir"], t["resume"]) for t in trains],
                         [(dirs[i], is_resumed) for i, is_resumed in
                          ((0, False), (1, False), (1, True), (2, False), (2, True), (3, False))])
        self.assertEqual([t["settings"]["optimizer.betas"] for t in trains][:2], ["[0.9, 0.98]", "[0.9, 0.999]"])
        report = (self.root / "runs/sweep/compare.html").read_text().split()
        self.assertEqual(sorted(report), sorted(dirs))
        for run_dir in dirs:
            self.assertTrue((self.root / run_dir / "summary.json").exists(), run_dir)
            self.assertIn(f"| `{run_dir.rpartition('/')[2]}` | 80.0%", output)

    def test_runs_of_a_file(self):
        (self.root / "runs.tsv").write_text("one\ttrainer.total_steps=3\n\n \t\n"
                                            "two\tstudent.model=seed-{seed}/one/model\t--teacher=/models/t-{seed}\t"
                                            "--protocol=grpc\n")
        output = self.expect(0, "--runs", "runs.tsv", "--seeds", "2", "--set", "trainer.total_steps=5", "--protocol", "vllm+http")
        trains = [t["settings"] for t in self.events("train")]
        self.assertEqual([t["run.dir"] for t in trains], [f"runs/sweep/seed-{s}/{n}" for s in (0, 1) for n in ("one", "two")])
        self.assertEqual([t["trainer.total_steps"] for t in trains], ["3", "5", "3", "5"])
        self.assertEqual([t["student.model"] for t in trains][1::2], ["seed-0/one/model", "seed-1/one/model"])
        self.assertEqual([t["teacher.endpoints"] for t in trains][:2], ['["vllm+http://127.0.0.1:1"]', '["grpc://127.0.0.1:4242"]'])
        self.assertEqual([e["model"] for e in self.events("teacher")][1::2], ["/models/t-0", "/models/t-1"])
        self.assertIn("| `two` | 80.0%", output)
        (self.root / "empty.tsv").write_text("\n")
        for arguments, part in ((("--runs", "no.tsv"), "no.tsv does not exist"), (("--protocol", "http"), "--protocol http"),
                                (("--runs", "empty.tsv"), "empty.tsv has no runs"),
                                (("--runs", "runs.tsv", "--compare", "full"), "--runs excludes")):
            self.assertIn(part, self.expect(1, *arguments))

    def test_jobs_of_a_sweep_run_at_once(self):
        process = self.start("--compare", "ta_opd,full", "--sweep", "teacher.top_k=4,8", "--jobs", "3", STUB_TRAIN="wait")
        self.wait_for_events("train", 3)
        running = [t["pid"] for t in self.events("train")]
        self.assertTrue(all(is_alive(pid) for pid in running))
        os.killpg(process.pid, signal.SIGTERM)
        self.assertIn("Seed 0, full_top_k=4", self.finish(process, 143))
        self.assertFalse(any(is_alive(pid) for pid in running))
        self.expect(0, "--compare", "ta_opd,full", "--sweep", "teacher.top_k=4,8", "--jobs", "3")
        self.assertIn("teacher", (self.root / "runs/compare/seed-0/full_top_k=8.log").read_text())
        self.assertEqual(sum(t["resume"] for t in self.events("train")), 3)

    def interrupt(self, number):
        process = self.start(STUB_TRAIN="wait")
        teacher, trainer = self.wait_for_event("teacher"), self.wait_for_event("train")
        os.killpg(process.pid, number)  # as a terminal does
        output = self.finish(process, 128 + number)
        self.assertEqual(self.events("train")[-1].get("signals"), 1)  # asked once: it saves
        self.assertEqual(len(self.events("teacher ended")), 1)
        self.assertFalse(is_alive(teacher["pid"]))
        self.assertFalse(is_alive(trainer["pid"]))
        return output

    def test_interrupt(self):
        self.assertIn("interrupted", self.interrupt(signal.SIGINT))

    def test_terminate(self):
        self.interrupt(signal.SIGTERM)

    def test_other_configuration(self):
        shutil.copytree(ROOT / "deploy/examples/stories", self.root / "deploy/examples/stories", dirs_exist_ok=True)
        output = self.expect(0, "--config", "deploy/recipes/stories.yaml", "--set", "trainer.total_steps=3",
                             STUB_MEASURE="kl")
        self.assertEqual(self.events("teacher")[0]["model"], "deploy/examples/stories260K")
        settings = self.events("train")[0]["settings"]
        self.assertEqual(settings["trainer.total_steps"], "3")
        self.assertEqual(settings["run.dir"], "runs/stories")
        self.assertNotIn("data.train", settings)
        self.assertTrue(pathlib.Path(settings["student.model"], "model.safetensors").exists())
        summary = json.loads((self.root / "runs/stories/summary.json").read_text())
        self.assertEqual(summary["student_kl_to_teacher_before"], 0.25)
        self.assertEqual(summary["student_kl_to_teacher_after"], 0.8)
        self.assertIn("KL to the teacher", output)

    def test_own_configuration_and_teacher(self):
        own = self.root / "own.yaml"
        own.write_text("student:\n  model: /models/student\n")
        self.expect(0, "--config", "own.yaml", "--teacher", "/models/teacher", "--run-dir", "out")
        self.assertEqual(self.events("teacher")[0]["model"], "/models/teacher")
        self.assertNotIn("student.model", self.events("train")[0]["settings"])
        self.assertEqual([event["model"] for event in self.events("eval")], ["/models/teacher", None, "out/model"])

    def test_a_run_without_an_evaluation(self):
        for setting in ("eval.measure=none", "data.val=[]"):
            arguments = ("--sweep", "teacher.top_k=4,8", "--set", setting)
            output = self.expect(0, *arguments)
            self.assertIn("| `top_k=4` | - | - | 0.250 | 0.750 |", output)
            self.assertEqual(self.expect(0, *arguments).count("run: runs/sweep"), 2)
        self.assertEqual((len(self.events("train")), self.events("eval")), (4, []))

    def test_servers_that_run_already(self):
        (self.root / "own.yaml").write_text("student:\n  model: /models/student\n")
        self.expect(0, "--config", "own.yaml")
        self.assertEqual(self.events("teacher"), [])
        self.assertNotIn("teacher.endpoints", self.events("train")[0]["settings"])
        self.assertEqual(len(self.events("eval")), 2)

    def test_bad_arguments(self):
        for arguments, part in ((("--confg", "x"), "unknown argument --confg"), (("--config",), "needs a value"),
                                (("--config", "absent.yaml"), "absent.yaml does not exist"),
                                (("--seed", "08"), "without leading zeros")):
            self.assertIn(part, self.expect(1, *arguments))
        self.assertEqual(self.events(), [])
