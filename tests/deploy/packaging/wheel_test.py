"""deploy/wheel builds the wheel in a clean clone of the last commit. The wheel installs into a new environment, its programs start,
its client asks its teacher, and its quickstart distills the addition example, on this system and on others. Downloads torch with
NVIDIA's libraries (several GB unpacked)."""

import json
import pathlib
import shutil
import tempfile
import unittest
import venv

from environment import MODEL, ROOT, expect, project_version, temporary_path
from system_root import SystemRoot

CLIENT = """
import json, pathlib, subprocess, sys, time, taopd
teacher = subprocess.Popen([sys.argv[1], "--model", sys.argv[2], "--port", "0", "--grpc-port", "0", "--ready-file", "ready"])
try:
    while not pathlib.Path("ready").exists():
        assert teacher.poll() is None
        time.sleep(0.05)
    with taopd.Teacher(f"grpc://127.0.0.1:{json.loads(pathlib.Path('ready').read_text())['grpc_port']}") as client:
        print(client.score([1, 403, 407, 261], 1, 2).ids.tolist())
finally:
    teacher.terminate()
    assert teacher.wait(60) == 0
"""


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (ROOT / ".git").exists():
            raise unittest.SkipTest("needs the history, of which it makes a clone")
        clone = temporary_path(cls, "wheel-") / "clone"
        expect(0, ["git", "clone", "--quiet", ROOT, clone])
        cls.wheel = pathlib.Path(expect(0, [clone / "deploy/wheel"]).stdout.strip())

    def test_name(self):
        """The pages name the file that the command prints."""
        [written] = self.wheel.parent.iterdir()
        self.assertEqual(written, self.wheel)
        for page in ("README.md", "docs/python.md"):
            self.assertIn(f"pip install {self.wheel.name}\n", (ROOT / page).read_text(encoding="ascii"))

    def test_the_same_programs_give_the_same_bytes(self):
        clone = self.wheel.parents[2]
        with tempfile.TemporaryDirectory() as directory:
            expect(0, [clone / "deploy/wheel", "--bin-dir", clone / "build/cpu/bin", "--output", directory])
            self.assertEqual(pathlib.Path(directory, self.wheel.name).read_bytes(), self.wheel.read_bytes())

    def test_wheel(self):
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)

            def run(*words, code=0, **options):
                return expect(code, words, cwd=place, **options)
            self.assertLess(self.wheel.stat().st_size, 60e6)
            venv.create(place / "venv", with_pip=True)
            programs = place / "venv/bin"
            run(programs / "pip", "install", "--quiet", self.wheel)
            for program in ("taopd-teacher", "taopd-trainer"):
                self.assertEqual(run(programs / program, "--version").stdout.splitlines()[0], f"{program} {project_version()}")
            [installed] = place.glob("venv/lib/python3*/site-packages/taopd")
            for program in installed.glob("bin/*"):
                needed = run("ldd", program).stdout
                self.assertNotIn("not found", needed)
            licenses = installed.parent / f"taopd-{project_version()}.dist-info/licenses"
            self.assertTrue(list(licenses.glob("libgrpc*/copyright")))
            done = run(programs / "python", "-c", CLIENT, programs / "taopd-teacher", MODEL)
            self.assertIn("[[403, 385], [407, 383], [261, 407]]", done.stdout)
            # Without this tree, without programs of the system beside the usual tools, and with nothing prepared.
            clean = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(place / "home")}
            run("taopd-trainer", "quickstart", env=clean)
            summary = json.loads((place / "runs/quickstart/summary.json").read_text(encoding="utf-8"))
            self.assertGreater(summary["student_accuracy_after"], summary["student_accuracy_before"] + 0.3)
            [torch] = installed.parent.glob("torch-*.dist-info/METADATA")
            text = torch.read_text(encoding="utf-8")
            torch.write_text(text.replace("\nVersion: 2.", "\nVersion: 1.", 1), encoding="utf-8")
            done = run(programs / "taopd-trainer", "--version", code=69)
            self.assertRegex(done.stderr, r"taopd-trainer needs torch 2\.[\d.]+, and torch 1\.[\d.]+ is installed: pip install")

    def check_system(self, name):
        """In a system that has nothing else but Python and bash. Its C library, Python and certificates are newer."""
        system = SystemRoot(type(self), name, "python3-venv", "ca-certificates")
        shutil.copy(self.wheel, system.root / "root")
        system.inside("python3", "-m", "venv", "/root/venv")
        system.inside("/root/venv/bin/pip", "install", "--quiet", "--no-cache-dir", f"/root/{self.wheel.name}")
        system.quickstart(self, "/root/venv/bin/taopd-trainer", "quickstart")
        shutil.rmtree(system.root / "root/venv")  # 7 GB

    def test_debian_13(self):
        self.check_system("debian-13")

    def test_ubuntu_24_04(self):
        self.check_system("ubuntu-24.04")
