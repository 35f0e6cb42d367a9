"""cmake --install: programs that run from another prefix, without a trace of the build's folder in their search path."""

import os
import pathlib
import re
import tempfile
import unittest

from environment import BIN_DIR, MODEL, expect, project_version
from pages import broken_links


class InstallTest(unittest.TestCase):
    def test_install(self):
        build = BIN_DIR.parent
        if not (build / "cmake_install.cmake").exists():
            self.skipTest(f"{build} was not configured by CMake")
        with tempfile.TemporaryDirectory() as directory:
            prefix = pathlib.Path(directory, "prefix")
            expect(0, ["cmake", "--install", build, "--prefix", prefix])
            self.assertEqual(sorted(path.name for path in (prefix / "bin").iterdir()),
                             ["taopd-grammar", "taopd-probe", "taopd-teacher", "taopd-trainer"])
            clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
            for program in (prefix / "bin").iterdir():
                path = re.search(r"R(?:UN)?PATH\) +Library r\w*path: \[(.*)\]",
                                 expect(0, ["readelf", "-d", program]).stdout)
                self.assertNotIn(str(build), path[1] if path else "")
            for program in ("taopd-teacher", "taopd-grammar", "taopd-trainer"):
                self.assertIn(project_version(), expect(0, [prefix / "bin" / program, "--version"], env=clean).stdout.split())
            plan = expect(0, [prefix / "bin/taopd-teacher", "--model", MODEL, "--plan"], env=clean).stdout
            self.assertIn("total on cpu", plan)
            for name in ("recipes/addition/train.yaml", "examples/addition/generate.py", "systemd/taopd-teacher.service",
                         "proto/taopd/v1/teacher.proto"):
                self.assertTrue((prefix / "share/taopd" / name).exists(), name)
            pages = prefix / "share/doc/taopd"
            texts = {str(path.relative_to(pages)): path.read_text(encoding="ascii") for path in pages.rglob("*.md")}
            self.assertIn("docs/tutorial.md", texts)
            self.assertEqual(broken_links(pages, texts), [])
            self.assertEqual(list(prefix.rglob("__pycache__")), [])
