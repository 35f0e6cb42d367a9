"""deploy/reproduce: its claims are well formed, its measures and verdicts right, and its flow resumable (with stubs)."""

import ast
import json
import os
import pathlib
import re
import signal
import sys
import unittest

from environment import BIN_DIR, temporary_path  # noqa: E402
from stub_tree import ROOT, StubTree  # noqa: E402

sys.path[:0] = [str(ROOT / "deploy/reproduction"), str(ROOT / "deploy/tools")]

import enumeration  # noqa: E402
import measures  # noqa: E402
import page  # noqa: E402
from claims import CLAIMS, Claim, objective  # noqa: E402
from runs import frozen, turn  # noqa: E402
from verdict import FAILS, HOLDS, NOT_RUN, UNCLEAR, identifier, judge, noise  # noqa: E402


def write_run(directory, run, rows, **summary):
    (directory / run.name).mkdir(parents=True, exist_ok=True)
    (directory / run.name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / run.name / "summary.json").write_text(json.dumps(summary))


class ClaimsTest(unittest.TestCase):
    def test_rules_use_figures_alone(self):
        for claim in CLAIMS:
            known = {identifier(name) for name in claim.figures} | {"NOISE", "abs", "max", "min"}
            self.assertEqual(len(known), len(claim.figures) + 4, claim.name)
            for rule in (claim.rule, claim.unclear):
                used = {node.id for node in ast.walk(ast.parse(rule, mode="eval")) if isinstance(node, ast.Name)}
                self.assertLessEqual(used, known, claim.name)

    def test_runs_of_one_name_are_equal(self):
        named = {}
        for claim in CLAIMS:
            for run in claim.runs:
                self.assertEqual(named.setdefault(run.name, run), run)
                self.assertRegex(run.name, r"^[\w.+=-]+$")
        self.assertGreater(len(named), 30)

    def test_names(self):
        self.assertEqual(len({claim.name for claim in CLAIMS}), len(CLAIMS))
        self.assertEqual(identifier("teacher's tail, k = 2"), "teachers_tail_k_2")

    def test_cited_sections_are_the_papers(self):
        shared = pathlib.Path(__file__).resolve().parents[3] / "shared"  # beside the tree
        paper = pathlib.Path(os.environ.get("TAOPD_SHARED", shared), "paper/ta-opd.tex")
        if not paper.exists():
            self.skipTest(f"{paper} does not exist")
        titles = re.findall(r"\\(?:sub)?section\{(.*?)\}\n", paper.read_text())
        titles = "\n".join(title.replace("$k$", "k") for title in titles)
        for claim in CLAIMS:
            for part in claim.section.split("; "):
                title = part.removeprefix("Appendix, ").split(", ")[0]
                if not title.startswith("table"):
                    self.assertIn(title.lower(), titles.lower(), claim.name)


class MeasuresTest(unittest.TestCase):
    def setUp(self):
        self.directory = temporary_path(self)

    def test_values_of_a_run(self):
        run = objective("normalized")
        rows = [{"step": s, "policy/student_tail": s / 100} for s in range(1, 31)]
        rows += [{"step": s, "eval/accuracy": 1 - s / 50} for s in (0, 10, 20, 30)]
        write_run(self.directory, run, rows, student_accuracy_after=0.25, student_accuracy_after_greedy=0.5)
        tail = "policy/student_tail"
        for measure, expected in ((measures.start(run, tail), 0.01), (measures.last(run, tail), 0.255),
                                  (measures.growth(run, tail), 0.245), (measures.largest(run, tail), 0.3),
                                  (measures.largest(run, tail, 5), 0.05), (measures.accuracy(run), 0.25),
                                  (measures.greedy(run), 0.5)):
            self.assertAlmostEqual(measure.value(self.directory), expected)
        self.assertLess(measures.correlation(run, tail, "eval/accuracy").value(self.directory), -0.99)

    def test_estimator_variance(self):
        for name, errors in (("full", (0, 0)), ("ema_pg", (0.003, -0.001))):
            write_run(self.directory, frozen(name), [{"step": i, "loss/row_mean": 0.5 + e} for i, e in enumerate(errors)])
        self.assertAlmostEqual(measures.estimator_variance("ema_pg").value(self.directory), 5)

    def test_turns(self):
        # Steps of warm-up and one that was disturbed; two turns, as --quick makes them.
        for name, seconds, disturbed in (("normalized", 1.0, 1), ("ta_opd", 1.02, 7)):
            for i in range(2):
                rows = [{"step": s, "time/train_s": seconds * (disturbed if s < 3 or s == 9 else 1)} for s in range(1, 13)]
                write_run(self.directory, turn(name, i), rows)
        values = {part: measures.turn_ratio(part).value(self.directory) for part in ("overhead", "error", "pairs")}
        self.assertAlmostEqual(values["overhead"], 0.02)
        self.assertAlmostEqual(values["error"], 0)
        self.assertEqual(values["pairs"], 20)

    def claim(self, rule, unclear="False"):
        run = objective("full")
        return Claim("name", "Results", "Text.", "Paper.", {"accuracy, full": measures.accuracy(run),
                                                           "its tail": measures.last(run, "policy/student_tail")}, rule, unclear)

    def test_verdicts(self):
        seeds = [self.directory / f"seed-{i}" for i in range(3)]
        self.assertEqual(judge(self.claim("accuracy_full > 0.5"), seeds).word, NOT_RUN)
        write_run(seeds[0], objective("full"), [], student_accuracy_after=0.4)
        write_run(seeds[1], objective("full"), [], student_accuracy_after=0.8)
        for rule, unclear, word in (("accuracy_full > 0.5", "False", HOLDS), ("accuracy_full > 0.7", "False", FAILS),
                                    ("accuracy_full > 0.7", "accuracy_full > 0.5", UNCLEAR)):
            verdict = judge(self.claim(rule, unclear), seeds)
            self.assertEqual((verdict.word, verdict.seeds, verdict.figures), (word, 2, {"accuracy, full": [0.4, 0.8]}))
        # A figure that the rule needs is missing.
        self.assertEqual(judge(self.claim("its_tail < 1"), seeds).word, NOT_RUN)
        self.assertAlmostEqual(noise(3), 0.05)
        self.assertGreater(noise(1), noise(2))

    def test_page_escapes_and_formats(self):
        write_run(self.directory, objective("full"), [{"step": 1, "policy/student_tail": 1e-6}], student_accuracy_after=0.4)
        verdict = judge(self.claim("accuracy_full < 0.5 and its_tail >= 0"), [self.directory])
        about = page.About("2026-01-01", "deploy/reproduce", 1, False)
        text = page.html([verdict], about, self.directory)
        self.assertIn("accuracy_full &lt; 0.5", text)
        self.assertIn("<td>40.0%</td>", text)
        self.assertIn("1.0e-06", page.markdown([verdict], about))
        self.assertIn("1 claims; holds: 1.", page.markdown([verdict], about).replace("\n", " "))

    def test_enumeration_with_the_real_trainer(self):
        """Unbiased, and smaller by the paper's formula; the first fails for a formula that is off by a factor."""
        enumeration.measure(BIN_DIR / "taopd-trainer", self.directory, 0)
        result = json.loads((self.directory / "variance.json").read_text())
        self.assertLess(max(result["value_bias"], result["gradient_bias"], result["formula_error"]), 1e-12)
        self.assertEqual(result["smaller_share"], 1)
        self.assertLess(result["ratio_to_ema_pg"], 1)


class FlowTest(StubTree):
    SCRIPT = "deploy/reproduce"

    def test_quick(self):
        only = ("--quick", "--only", "collapse", "--only", "tail token put back", "--only", "bandit", "--only", "derived tail")
        (self.root / "page.md").write_text("a\n<!-- begin: reproduction -->\nof another day\n<!-- end -->\nb\n")
        output = self.expect(0, *only, "--jobs", "1", "--into", str(self.root / "page.md"))
        trains = [t["settings"] for t in self.events("train")]
        names = [t["run.dir"].rpartition("/")[2] for t in trains]
        # A run that starts from another one comes after it.
        self.assertEqual(names[-1], "ta_opd_after_unnormalized")
        taken = "unnormalized_total_steps=20_schedule=constant_min_lr_ratio=0"
        self.assertEqual(sorted(names[:-1]), ["ta_opd", "ta_opd_without_tail", "unnormalized", taken])
        by_name = dict(zip(names, trains))
        self.assertEqual(by_name["ta_opd_after_unnormalized"]["student.model"],
                         f"runs/reproduce-quick/seed-0/{taken}/model")
        self.assertEqual({name: t["trainer.total_steps"] for name, t in by_name.items() if "20" in name},
                         {taken: "20"})
        self.assertEqual(by_name["ta_opd"]["trainer.total_steps"], "40")
        self.assertTrue(by_name["ta_opd_without_tail"]["teacher.endpoints"].startswith('["vllm+http://'))
        self.assertRegex(output, r"holds +collapse:")
        self.assertRegex(output, r"holds +bandit:")
        self.assertRegex(output, r"not shown +tail token put back:")  # the stubs' tails stay
        table = (self.root / "runs/reproduce-quick/reproduction.md").read_text()
        self.assertIn("accuracy, unnormalized: 5.0%", table)
        self.assertIn("**holds** (1 seed)", table)
        output = self.expect(1, *only, "--page-only", "--into", str(self.root / "CMakeLists.txt"))
        self.assertIn('CMakeLists.txt has no part "reproduction"', output)
        into = (self.root / "page.md").read_text()
        self.assertNotIn("another day", into)
        self.assertIn(table, into)
        self.assertTrue(into.startswith("a\n") and into.endswith("b\n"))
        text = (self.root / "runs/reproduce-quick/reproduction.html").read_text()
        self.assertIn("tail token put back", text)
        for path in re.findall(r'href="([^"#]+)"', text):
            self.assertTrue((self.root / "runs/reproduce-quick" / path).exists(), path)

        self.expect(0, *only)  # again: nothing is repeated
        self.assertEqual((len(self.events("train")), len(self.events("bandit"))), (5, 1))

    def test_teachers_of_other_dialects(self):
        self.expect(0, "--only", "gap: tail", "--seeds", "2", "--jobs", "1")
        teachers = [e["model"] for e in self.events("teacher")]
        self.assertEqual([t for t in teachers if "runs/reproduce/teachers" in t],
                         [f"runs/reproduce/teachers/seed-{s}/{n}/model" for s in (0, 1) for n in ("near", "between")])
        seeds = [(e["settings"]["run.dir"], e["settings"].get("run.seed")) for e in self.events("sft")
                 if "teachers" in e["settings"]["run.dir"]]
        self.assertEqual(seeds, [(f"runs/reproduce/teachers/seed-{s}/{n}", None if s == 0 else "10")
                                 for s in (0, 1) for n in ("near", "between")])
        self.assertEqual({t["settings"]["objective.name"] for t in self.events("train")}, {"normalized"})
        self.assertIn("2 seeds", (self.root / "runs/reproduce/reproduction.md").read_text())
        # --quick leaves these runs out, and says so.
        output = self.expect(0, "--only", "gap: tail", "--quick")
        self.assertRegex(output, r"not run +gap: tail")

    def test_interrupted(self):
        only = ("--quick", "--jobs", "1", "--only", "collapse")
        process = self.start(*only, STUB_WAIT_AFTER="1")
        self.wait_for_events("train", 2)
        process.send_signal(signal.SIGTERM)
        self.finish(process, 128 + signal.SIGTERM)
        self.assertEqual(self.events("train")[-1].get("signals"), 1)  # asked once: it saved
        self.assertEqual(len(self.events("teacher ended")), 2)
        self.expect(0, *only)
        self.assertEqual([t["resume"] for t in self.events("train") if "signals" not in t], [False, False, True])

    def test_failures(self):
        output = self.expect(1, "--quick", "--only", "collapse", STUB_TRAIN="76")
        self.assertRegex(output, r"not run +collapse")
        for arguments, part in ((("--only", "colapse"), "there is no such claim"), (("--jobs", "0"), "--jobs 0"),
                                (("--seeds", "101"), "--seeds 101")):
            self.assertIn(part, self.expect(2, *arguments))
