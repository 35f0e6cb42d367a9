"""The commands of the wheel: what they start, and how they refuse a torch that does not fit."""

import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import packages  # noqa: F401
from taopd import programs

TORCH = programs.HERE.parent / "torch"


class PrepareTest(unittest.TestCase):
    def test_only_the_version_of_the_build(self):
        for installed, says in ((None, "is not installed: pip install torch==2.11.0"), ("2.10.1", "torch 2.10.1 is installed"),
                                ("2.11.0.dev1", "torch 2.11.0.dev1 is installed")):
            with self.assertRaisesRegex(LookupError, f"taopd-teacher needs torch 2.11.0.*{says}"):
                programs.prepare("taopd-teacher", "2.11.0", installed, TORCH)
        for installed in ("2.11.0", "2.11.0+cpu"):
            self.assertEqual(programs.prepare("taopd-teacher", "2.11.0", installed, TORCH).get("LD_LIBRARY_PATH"),
                             os.environ.get("LD_LIBRARY_PATH"))

    def test_torch_elsewhere(self):
        with unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/mine"}):
            environment = programs.prepare("taopd-teacher", "2.11.0", "2.11.0", pathlib.Path("/usr/torch"))
        self.assertEqual(environment["LD_LIBRARY_PATH"], "/usr/torch/lib:/mine")

    def test_a_package_of_the_client_alone(self):
        with unittest.mock.patch("importlib.metadata.requires", return_value=["grpcio>=1.60"]):
            with self.assertRaisesRegex(LookupError, "has the client only"):
                programs.torch_required()


class CommandTest(unittest.TestCase):
    def test_programs(self):
        self.assertEqual(programs.command_of("taopd-trainer", ["train", "--config", "quickstart"], {}),
                         [str(programs.HERE / "bin/taopd-trainer"), "train", "--config", "quickstart"])
        self.assertEqual(programs.command_of("taopd-teacher", ["quickstart"], {}),
                         [str(programs.HERE / "bin/taopd-teacher"), "quickstart"])

    def test_quickstart(self):
        environment = {"PATH": "/usr/bin"}
        command = programs.command_of("taopd-trainer", ["quickstart", "--seed", "1"], environment)
        self.assertEqual(command[1:], [str(programs.HERE / "deploy/quickstart"), "--seed", "1"])
        self.assertEqual(environment["PATH"], f"{pathlib.Path(sys.executable).parent}:/usr/bin")

    def test_without_bash(self):
        with tempfile.TemporaryDirectory() as directory, unittest.mock.patch.dict(os.environ, {"PATH": directory}):
            with self.assertRaisesRegex(LookupError, "bash, which is not installed"):
                programs.command_of("taopd-trainer", ["quickstart"], {})
