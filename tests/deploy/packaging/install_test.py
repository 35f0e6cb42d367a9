"""cmake --install: programs that run from another prefix, without a trace of the build's folder in their search path."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import named_results
from environment import BIN_DIR, MODEL, project_version, run


class InstallTest(unittest.TestCase):
    def test_install(self):
        build = BIN_DIR.parent
        if not (build / "cmake_install.cmake").exists():
            self.skipTest(f"{build} was not configured by CMake")
        with tempfile.TemporaryDirectory() as directory:
            prefix = pathlib.Path(directory, "prefix")
            done = run(["cmake", "--install", build, "--prefix", prefix])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(path.name for path in (prefix / "bin").iterdir()),
                             ["taopd-grammar", "taopd-probe", "taopd-teacher", "taopd-trainer"])
            clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
            for program in (prefix / "bin").iterdir():
                path = re.search(r"R(?:UN)?PATH\) +Library r\w*path: \[(.*)\]",
                                 subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout)
                self.assertNotIn(str(build), path[1] if path else "")
            for program in ("taopd-teacher", "taopd-grammar", "taopd-trainer"):
                done = run([prefix / "bin" / program, "--version"], env=clean)
                self.assertIn(project_version(), done.stdout.split(), done.stderr)
            done = run([prefix / "bin/taopd-teacher", "--model", MODEL, "--plan"], env=clean)
            self.assertIn("total on cpu", done.stdout, done.stderr)
            for name in ("recipes/addition/train.yaml", "examples/addition/generate.py", "systemd/taopd-teacher.service",
                         "proto/taopd/v1/teacher.proto"):
                self.assertTrue((prefix / "share/taopd" / name).exists(), name)
            self.assertTrue((prefix / "share/doc/taopd/docs/tutorial.md").exists())
            self.assertEqual(list(prefix.rglob("__pycache__")), [])


if __name__ == "__main__":
    named_results.main()
