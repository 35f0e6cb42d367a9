"""deploy/examples/trl_teacher with trl, in an environment that this test makes: its loss is the definition's, and it falls.

TAOPD_TRL_VENV is its place. Exit code 77: the packages cannot be installed.
"""

import os
import re
import shutil
import subprocess
import unittest

import packages
from environment import BIN_DIR, ROOT, expect, python_with, temporary_path
from programs import Teacher

EXAMPLE = ROOT / "deploy/examples/trl_teacher/distil.py"
REQUIREMENTS = ROOT / "tests/requirements-trl.txt"


def prepare_models(place):
    """Teacher, student and prompts of the addition example, made by deploy/quickstart as a package has it."""
    package = place / "package"
    package.mkdir()
    (package / "bin").symlink_to(BIN_DIR)
    (package / "VERSION").write_text("test\n")
    shutil.copytree(ROOT / "deploy", package / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["bash", package / "deploy/quickstart", "--prepare-only"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "TAOPD_DEPS": str(place / "deps")})
    [data] = place.glob("deps/examples/addition/*/data")
    return data.parent


class TrlExampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = temporary_path(cls)
        # A copy, because a build leaves files beside the sources.
        shutil.copytree(ROOT / "deploy/python", cls.place / "client")
        cls.python = python_with(os.environ["TAOPD_TRL_VENV"], "-r", REQUIREMENTS, cls.place / "client")
        cls.models = prepare_models(cls.place)
        cls.endpoint = Teacher(cls, cls.place, model=cls.models / "teacher/model").endpoint

    def run_python(self, *words):
        return expect(0, [self.python, *map(str, words)], cwd=self.place,
                      env={**os.environ, "HF_HOME": str(self.place / "hub"), "HF_HUB_OFFLINE": "1"}).stdout

    def test_the_loss_is_the_definition(self):
        output = self.run_python(packages.HERE / "trl_oracle.py", EXAMPLE, self.endpoint, self.models / "student/model",
                                 self.models / "teacher/model")
        self.assertIn("largest difference", output)

    def test_training(self):
        output = self.run_python(EXAMPLE, "--teacher", self.endpoint, "--student", self.models / "student/model", "--prompts",
                                 self.models / "data/train.jsonl", "--output", self.place / "trained", "--steps", 40, "--top-k", 8)
        losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.e-]+)", output)]
        self.assertEqual(len(losses), 40, output[-2000:])
        self.assertLess(sum(losses[-5:]), 0.5 * sum(losses[:5]))
        self.assertTrue((self.place / "trained/model.safetensors").exists())

    def test_the_class_is_short(self):
        """The pages say that it takes 40 lines."""
        body = EXAMPLE.read_text(encoding="ascii").split("class TaopdDistillationTrainer")[1].split("\n\n\n")[0]
        self.assertLessEqual(len(body.splitlines()), 40)
