"""deploy/release --deb in a Debian 12 that has nothing else but Python: it installs, trains the addition example, and purges.
Needs root, mmdebstrap and Debian's packages."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import named_results  # noqa: E402
from environment import BIN_DIR, ROOT, project_version  # noqa: E402

SUITE = "bookworm"
# Files that a package may leave behind: what dpkg and the systems of others write.
LEFT_BY_OTHERS = ("var/lib/dpkg/", "var/log/", "var/cache/", "etc/ld.so.cache", "proc/", "tmp/", "root/")


class DebianTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            raise unittest.SkipTest("needs root and mmdebstrap: deploy/setup --images")
        directory = tempfile.TemporaryDirectory(prefix="debian-")
        cls.addClassCleanup(directory.cleanup)
        cls.path = pathlib.Path(directory.name)
        cls.root = cls.path / "root"
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", SUITE, cls.root],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise unittest.SkipTest(f"Debian's packages are out of reach: {done.stderr[-500:]}")
        done = subprocess.run([ROOT / "deploy/release", "--deb", "--bin-dir", BIN_DIR, "--output", cls.path], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        cls.package = pathlib.Path(done.stdout.strip())

    def inside(self, *words, code=0):
        """Runs a command in the root, with /proc, and returns what it prints."""
        script = f'mount -t proc proc "{self.root}/proc" && exec chroot "{self.root}" "$@"'
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)], capture_output=True, text=True,
                              check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def files(self):
        return {name for name in (str(path.relative_to(self.root)) for path in self.root.rglob("*"))
                if not name.startswith(LEFT_BY_OTHERS)}

    def test_life(self):
        before = self.files()
        shutil.copy(self.package, self.root / "tmp")
        self.inside("dpkg", "-i", f"/tmp/{self.package.name}")
        for program in ("taopd-teacher", "taopd-trainer"):
            self.assertIn(project_version(), self.inside(program, "--version").split())
        for unit in ("taopd-teacher.service", "taopd-trainer@.service"):
            text = (self.root / "usr/lib/systemd/system" / unit).read_text(encoding="ascii")
            [command] = [line.split("=")[1].split()[0] for line in text.splitlines() if line.startswith("ExecStart=")]
            self.assertTrue((self.root / command.lstrip("/")).exists())
        self.assertIn("/etc/taopd/teacher.env", self.inside("dpkg-query", "-W", "-f", "${Conffiles}", "taopd"))

        self.inside("sh", "-c", "cd /root && /opt/taopd/deploy/quickstart")
        summary = json.loads((self.root / "root/runs/quickstart/summary.json").read_text(encoding="utf-8"))
        self.assertGreater(summary["student_accuracy_after"], summary["student_accuracy_before"] + 0.3)

        # A changed setting survives the same package again, and a run survives the purge.
        with open(self.root / "etc/taopd/teacher.env", "a", encoding="ascii") as settings:
            settings.write("DTYPE=float32\n")
        self.inside("dpkg", "-i", f"/tmp/{self.package.name}")
        self.assertIn("DTYPE=float32", (self.root / "etc/taopd/teacher.env").read_text(encoding="ascii"))
        (self.root / "var/lib/taopd").mkdir()
        self.inside("dpkg", "--purge", "taopd")
        self.assertEqual(self.files() - before, {"var/lib/taopd"})
        # dpkg removes a folder that has become empty, and no other package claims /opt.
        self.assertLessEqual(before - self.files(), {"opt"})


if __name__ == "__main__":
    named_results.main()
