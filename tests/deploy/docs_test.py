"""The README says what the programs do: its reference is their output, its commands parse, its files exist."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN_DIR = pathlib.Path(os.environ.get("TAOPD_BIN_DIR", ROOT / "build/cpu/bin"))


def commands():
    """Every command line of the README's shell blocks, as words."""
    for block in re.findall(r"```sh\n(.*?)```", README, re.S):
        for line in block.splitlines():
            for command in line.split("&&"):
                yield shlex.split(command, comments=True)


@functools.cache
def help_of(program, subcommand):
    path = ROOT / program
    if program.startswith("build/cpu/bin/"):
        path = BIN_DIR / path.name
    return subprocess.run([path, *subcommand, "--help"], check=True, capture_output=True, text=True).stdout


class ReadmeTest(unittest.TestCase):
    def test_reference_is_up_to_date(self):
        done = subprocess.run([ROOT / "deploy/tools/readme_reference", "--check"], capture_output=True, text=True, check=False,
                              env={**os.environ, "TAOPD_BIN_DIR": str(BIN_DIR)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_commands(self):
        own = [words for words in commands() if words[0] != "cmake"]
        self.assertGreaterEqual(len(own), 8)
        for words in own:
            is_trainer = words[0].endswith("taopd-trainer")
            text = help_of(words[0], tuple(words[1:2]) if is_trainer else ())
            for word in words[1:]:
                if word in ("-L", "-R"):  # ctest's, passed through
                    continue
                if word.startswith("-"):
                    self.assertRegex(text, rf"(?<![\w-]){re.escape(word)}(?![\w-])", " ".join(words))

    def test_presets(self):
        presets = (ROOT / "CMakePresets.json").read_text(encoding="utf-8")
        for words in commands():
            if "--preset" in words:
                self.assertIn(f'"name": "{words[words.index("--preset") + 1]}"', presets)

    def test_files_exist(self):
        folders = "kernels|common|proto|server|trainer|deploy|tests"
        for path in re.findall(rf"`((?:{folders})/[\w./]*)`", README) + re.findall(r"\]\(([\w./]+)\)", README):
            self.assertTrue((ROOT / path).exists(), path)

    def test_settings_in_examples_exist(self):
        for keys in re.findall(r"`((?:run|student|teacher|data|rollout|objective|optimizer|trainer|eval)\.\w+)`", README):
            self.assertTrue(f"| `{keys}` |" in README, keys)


if __name__ == "__main__":
    unittest.main()
