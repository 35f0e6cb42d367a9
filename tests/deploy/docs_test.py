"""The pages are true: links, paths, names and generated parts exist, and commands run. pages.py and
documented_commands.py beside this file do the reading and the running."""

import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from documented_commands import Clone
from environment import DEPS, ROOT, expect, load_script, loaded_bin_dir, temporary_path
from pages import (blocks, blocks_with_names, broken_links, missing_paths, prose, read_pages,
                   string_literals, torn_rows)

PAGES = read_pages(ROOT)
docs_reference = load_script("deploy/tools/docs_reference")
cpp_source = load_script("tests/architecture/cpp_source.py")
MAX_README_LINES = 150


def setUpModule():
    os.environ["TAOPD_BIN_DIR"] = str(loaded_bin_dir())  # for docs_reference


def reference(root):
    """What docs_reference --check complains of, if anything, and what it prints. It asks the programs only once for all tests."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            docs_reference.main(["--check", "--root", str(root)])
        except SystemExit as end:
            return end.code, printed.getvalue()
    return None, printed.getvalue()


def unknown_settings(pages):
    """Settings in backticks that no program has."""
    text = docs_reference.output_of("train settings") + docs_reference.output_of("sft settings")
    known = set(re.findall(r"^\| `([\w.\[\]]+)` \|", text, re.M))
    sections = "|".join({re.escape(key.partition(".")[0]) for key in known if "." in key})
    return [f"{page}: {key}" for page, text in pages.items()
            for key in re.findall(rf"`((?:{sections})\.\w+)(?:: [^`]*|=[^`]*)?`", prose(text))
            if key not in known and not re.search(r"\.(h|cc|md|py|yaml|json|jsonl|safetensors)$", key)]


def unknown_flags(pages):
    """Flags in backticks that neither the programs nor the scripts have."""
    help_texts = [docs_reference.output_of("teacher flags"), docs_reference.output_of("trainer flags")]
    for script in ("deploy/setup", "deploy/quickstart", "deploy/release", "deploy/experiment", "deploy/images/build",
                   "deploy/reproduce", "deploy/wheel", "deploy/tools/compare_table", "deploy/tools/docs_site", "deploy/tools/track",
                   "tests/run", "tests/gpu/run", "tests/gpu/results_table.py", "tests/compat/run"):
        help_texts.append(subprocess.run([ROOT / script, "--help"], check=True, capture_output=True, text=True).stdout)
    known = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", "\n".join(help_texts)))
    known |= {"--enable-avx", "--enable-evex", "--enable-amx", "--preset", "--build", "--install", "--parallel", "--directory"}  # of others
    known |= {"--load-format", "--logprobs-mode", "--hf-overrides", "--weight-transfer-config"}  # of vLLM
    return [f"{page}: {flag}" for page, text in pages.items() for code in re.findall(r"`([^`\n]+)`", prose(text))
            for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code) if flag not in known]


def metric_names():
    """Names of metrics in the sources, with upper-case words for what is filled in."""
    names = set()
    for path in [*(ROOT / "trainer").rglob("*"), ROOT / "kernels/include/taopd/objective/row_metrics.h"]:
        if path.suffix not in (".cc", ".h") or path.parts[len(ROOT.parts) + 1] in ("report", "cli"):
            continue
        code = path.read_text(encoding="ascii")
        code = re.sub(r"^#include.*$|//.*$", "", code, flags=re.M)
        names |= set(re.findall(r'"(?!text/|application/)([a-z]+/[a-z0-9_/]+)"', code))  # no media types
    filled = {"loss/term/": "loss/term/NAME", "eval/pass_at_": "eval/pass_at_N",
              "eval/accuracy/": "eval/accuracy/SOURCE"}
    return {filled.get(name, name) for name in names}


def described_metrics(text):
    return set(re.findall(r"`([a-z]+/[\w/]+)`", "\n".join(re.findall(r"^\| (`[^|]*) \|", text, re.M))))


class DocsTest(unittest.TestCase):
    maxDiff = None

    def test_readme_is_short(self):
        self.assertLessEqual(len(PAGES["README.md"].splitlines()), MAX_README_LINES)

    def test_ascii(self):
        self.assertEqual([page for page, text in PAGES.items() if not text.isascii()], [])

    def test_links(self):
        self.assertEqual(broken_links(ROOT, PAGES), [])

    def test_tables(self):
        self.assertEqual(torn_rows(PAGES), [])

    def test_readme_links_every_page(self):
        for page in PAGES:
            if page.startswith("docs/"):
                self.assertIn(f"]({page})", PAGES["README.md"])

    def test_paths(self):
        self.assertEqual(missing_paths(ROOT, PAGES), [])

    def test_generated_parts(self):
        self.assertEqual(reference(ROOT), (None, ""))

    def test_settings(self):
        self.assertEqual(unknown_settings(PAGES), [])

    def test_flags(self):
        self.assertEqual(unknown_flags(PAGES), [])

    def test_examples_are_valid(self):
        """YAML blocks are configurations without unknown keys or values out of range; JSON blocks are JSON."""
        with tempfile.TemporaryDirectory() as directory:
            for page, text in PAGES.items():
                for block in blocks(text, "yaml"):
                    path = pathlib.Path(directory, "example.yaml")
                    path.write_text(block)
                    # 64 would be the configuration's; the model is what is missing.
                    with self.subTest(page):
                        expect(65, [loaded_bin_dir() / "taopd-trainer", "data", "--config", path, "--set", "student.model=no-such-model"])
                for block in blocks(text, "json"):
                    json.loads(block)

    def test_every_objective_has_its_formula(self):
        names = re.findall(r"^(\w+)$", docs_reference.output_of("objectives"), re.M)
        self.assertGreater(len(names), 1)
        rows = docs_reference.output_of("objective formulas").strip().splitlines()[2:]
        # A name, and then the loss, a, b_j and c.
        self.assertEqual([(row.split("`")[1], row.count(" | ")) for row in rows], [(name, 4) for name in names])

    def test_objectives_are_as_short_as_stated(self):
        source = (ROOT / "kernels/include/taopd/objective/objective_functions.h").read_text(encoding="ascii")
        longest = max(length for _, length in cpp_source.functions(source.split("\n")))
        for page in ("README.md", "docs/comparison.md"):
            self.assertIn(f"a function of at most {longest} lines", " ".join(PAGES[page].split()), page)

    def test_every_metric_is_described(self):
        names = metric_names()
        self.assertGreater(len(names), 40)
        described = described_metrics(PAGES["docs/glossary.md"])
        self.assertEqual((sorted(names - described), sorted(described - names)), ([], []))

    def test_messages_exist(self):
        """What the troubleshooting page quotes is what the programs say."""
        literals = string_literals(ROOT, ("common", "server", "trainer"))
        scripts = "".join((ROOT / path).read_text() for path in (
            "deploy/setup", "common/cmake/DownloadDirectory.cmake", "common/cmake/TaopdTorch.cmake"))
        missing = []
        for message in re.findall(r"^### `(.*)`$", PAGES["docs/troubleshooting.md"], re.M):
            # What is filled in stands as ... in the page; the words around it are in the source.
            words = [part.strip(' "()') for part in message.replace('"..."', "...").split("...")]
            for part in words:
                if len(part) > 3 and part not in literals and part not in scripts:
                    missing.append(f"{message}: {part}")
        self.assertEqual(missing, [])

    def test_versions(self):
        wheels = "".join(path.read_text() for path in (ROOT / "deploy/wheels").glob("*.txt"))
        oracle = (ROOT / "tests/requirements-oracle.txt").read_text()
        versions = {
            "LibTorch": re.search(r"^torch==([\d.]+)", wheels, re.M)[1],
            "Apache Arrow": re.search(r"^pyarrow==([\d.]+)", wheels, re.M)[1],
            "CMake": re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", (ROOT / "CMakeLists.txt").read_text())[1],
            "nvcc": re.search(r"nvcc (\d+)", (ROOT / "tests/gpu/run").read_text())[1],
            "math-verify": re.search(r"math-verify==([\d.]+)", oracle)[1],
        }
        for page in ("README.md", "CONTRIBUTING.md", *(page for page in PAGES if page.startswith("docs/"))):
            for name, version in versions.items():
                for stated in re.findall(rf"\b{name} (\d+(?:\.\d+)*)", PAGES[page]):
                    fits = (version + ".").startswith(stated + ".")
                    self.assertTrue(fits, f"{page}: {name} {stated}, is {version}")


class CommandsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tiny = Clone(ROOT, loaded_bin_dir(), DEPS, temporary_path(cls))

    def run_page(self, text):
        with tempfile.TemporaryDirectory() as directory:
            clone = Clone(ROOT, loaded_bin_dir(), DEPS, directory, self.tiny)
            return clone.run(text, blocks_with_names(PAGES["README.md"]))

    def test_commands_run(self):
        pages = {page: text for page, text in PAGES.items() if blocks(text, "sh")}
        self.assertGreaterEqual(len(pages), 8)
        # Pages mostly wait for programs that start.
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            results = dict(zip(pages, pool.map(self.run_page, pages.values())))
        for page, (code, output) in results.items():
            with self.subTest(page):
                self.assertEqual(code, 0, output[-3000:])

    def test_commands_that_fail(self):
        for command, problem in (
                ("build/cpu/bin/taopd-trainer grade --gradr math < /dev/null", "--gradr"),
                ("tests/run --lable unit", "--lable is not in its --help"),
                ("tests/run -L unti", "there is no label unti"),
                ("deploy/quickstart --confg my.yaml", "unknown argument --confg"),
                ("deploy/quickstart --compare full --seed-count 3", "--seed-count is not in its --help"),
                ("cmake --preset gpu", "there is no preset gpu"),
                ("ninja -C build/cpu no_such_bench", "there is no target no_such_bench"),
                ("build/cpu/bin/taopd-teacher --model /models/X --max-len 3 &", "")):
            with self.subTest(command):
                wait = "wait %1\n" if command.endswith("&") else ""
                code, output = self.run_page(f"```sh\n{command}\n{wait}```\n")
                self.assertNotEqual(code, 0, output)
                self.assertIn(problem, output)


class PlantedFaultsTest(unittest.TestCase):
    """Each check fails on a page that deserves it."""

    def test_broken_link(self):
        text = "[a](no-such-page.md) [b](glossary.md#no-such-heading) [c](glossary.md#metrics) [d](#here)\n# Here\n"
        self.assertEqual(broken_links(ROOT, {"docs/x.md": text}),
                         ["docs/x.md: no-such-page.md: there is no such file",
                          "docs/x.md: glossary.md#no-such-heading: there is no such heading"])

    def test_torn_row(self):
        text = "| a | b |\n|---|---|\n| `x|y` | 1 |\n| 2 | 3 | 4 |\nend\n| c |\n|---|\n| d |\n"
        self.assertEqual(torn_rows({"p": text}), ["p: 3 cells, not 2: | 2 | 3 | 4 |"])

    def test_missing_path(self):
        pages = {"README.md": "`trainer/step/no_such_file.cc` `kernels/{cpu,gpu}` `trainer/step`"}
        self.assertEqual(missing_paths(ROOT, pages),
                         ["README.md: trainer/step/no_such_file.cc", "README.md: kernels/{cpu,gpu}"])

    def test_unknown_names(self):
        settings = "`trainer.total_step` `trainer.total_steps: 3` `guard.max_loss` `teachers[].nam`"
        self.assertEqual(unknown_settings({"p": settings}), ["p: trainer.total_step", "p: guard.max_loss", "p: teachers[].nam"])
        self.assertEqual(unknown_flags({"p": "`--max-model-length` `--max-model-len 4`"}), ["p: --max-model-length"])

    def test_stale_part(self):
        with tempfile.TemporaryDirectory() as directory:
            docs = pathlib.Path(directory, "docs")
            docs.mkdir()
            for page, text in PAGES.items():
                if page.startswith("docs/"):
                    (docs / pathlib.Path(page).name).write_text(text)
            self.assertEqual(reference(directory), (None, ""))
            page = docs / "configuration.md"
            page.write_text(page.read_text().replace("Number of prompts per step.", "Prompts a step."))
            complaint, difference = reference(directory)
            self.assertIn("docs/configuration.md", complaint)
            self.assertIn("-| `data.train_batch_size` | integer | `72` | Prompts a step. |", difference)
