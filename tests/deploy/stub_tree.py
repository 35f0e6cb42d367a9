"""A copy of deploy/ with stubs in the place of the programs, for tests of the scripts that run them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from environment import ROOT, temporary_path, write_script
from programs import wait_for

HERE = pathlib.Path(__file__).resolve().parent
WAIT_S = 300


class StubTree(unittest.TestCase):
    SCRIPT = "deploy/quickstart"  # the one under test

    def setUp(self):
        self.root = temporary_path(self)
        shutil.copytree(ROOT / "deploy", self.root / "deploy")
        shutil.copy(ROOT / "CMakeLists.txt", self.root)
        (self.root / "build/cpu").mkdir(parents=True)
        (self.root / "build/cpu/build.ninja").touch()
        for program in ("trainer", "teacher"):
            stub = (HERE / f"stub_{program}.py").read_text(encoding="ascii")
            # A start takes half as long without the packages of this machine.
            write_script(self.root / f"build/cpu/bin/taopd-{program}", stub, f"{sys.executable} -ES")
        for name in ("deploy/setup", "path/ninja"):
            write_script(self.root / name, "")
        # The real generator takes two seconds (addition_test.py tests it).
        write_script(self.root / "deploy/examples/addition/generate.py", """import sys, pathlib
pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
for name in ("train", "val"):
    pathlib.Path(sys.argv[1], name + ".jsonl").touch()""", sys.executable)
        self.log = self.root / "log.jsonl"
        self.environment = {**os.environ, "PATH": f"{self.root}/path:{os.environ['PATH']}", "STUB_LOG": str(self.log), "TAOPD_DEPS": str(self.root / "deps")}

    def start(self, *arguments, **environment):
        return subprocess.Popen([self.root / self.SCRIPT, *arguments], env={**self.environment, **environment},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.root,
                                start_new_session=True)

    def finish(self, process, code):
        """Waits for a started script, which must end with this exit code, and returns its output."""
        output, _ = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, code, output)
        return output

    def expect(self, code, *arguments, **environment):
        """The same, and starts it."""
        return self.finish(self.start(*arguments, **environment), code)

    def events(self, command=None):
        if not self.log.exists():
            return []
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [event for event in events if command in (None, event["command"])]

    def wait_for_events(self, command, number):
        wait_for(lambda: len(self.events(command)) >= number, f"{number} of {command}", wait_s=WAIT_S)

    def wait_for_event(self, command):
        self.wait_for_events(command, 1)
        return self.events(command)[0]
