"""Root file systems of Debian's and Ubuntu's releases, made from their package archives, in which tests install and run packages.
They need root, mmdebstrap and the archives, else the test is skipped."""

import json
import os
import pathlib
import shutil
import unittest

from environment import DEPS, expect, run, temporary_path

SUITES = {"debian-12": "bookworm", "debian-13": "trixie", "ubuntu-24.04": "noble"}
# Debian has no package of Ubuntu's keys: take this file from Ubuntu's package ubuntu-keyring.
UBUNTU_KEYS = "ubuntu-archive-keyring.gpg"
# The settings of pip and of proxies hold inside, too.
PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "http_proxy", "https_proxy", "no_proxy")


class SystemRoot:
    """The root of one release with some packages; removed with the test class."""

    def __init__(self, test_class, system, *packages):
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            raise unittest.SkipTest("needs root and mmdebstrap: deploy/setup --images")
        self.root = temporary_path(test_class, f"{system}-") / "root"
        # Every installation has apt, and its C++ library with it; mmdebstrap leaves it out of Ubuntu's smallest set.
        flags = ["--variant=minbase", f"--include={','.join(('apt', *packages))}"]
        if system.startswith("ubuntu"):
            keys = [path for path in (pathlib.Path("/usr/share/keyrings", UBUNTU_KEYS), DEPS / UBUNTU_KEYS) if path.exists()]
            if not keys:
                raise unittest.SkipTest(f"{system} needs {DEPS / UBUNTU_KEYS}, or Ubuntu's package ubuntu-keyring")
            flags += [f"--keyring={keys[0]}", "--components=main,universe"]
        done = run(["mmdebstrap", "--quiet", *flags, SUITES[system], self.root])
        if done.returncode != 0:
            raise unittest.SkipTest(f"the packages of {system} are out of reach: {done.stderr[-500:]}")
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        self.environment |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        for path in ("/etc/resolv.conf", os.environ.get("PIP_CERT", "")):
            if path and pathlib.Path(path).exists():
                (self.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, self.root / path.lstrip("/"))

    def quickstart(self, test, *command):
        """Runs the addition example with `command` and checks that the student has learned."""
        self.inside("sh", "-c", 'cd /root && exec "$@"', "sh", *command)
        summary = json.loads((self.root / "root/runs/quickstart/summary.json").read_text(encoding="utf-8"))
        test.assertGreater(summary["student_accuracy_after"], summary["student_accuracy_before"] + 0.3)
        shutil.rmtree(self.root / "root/runs")

    def inside(self, *words, code=0):
        """Runs a command in the root, with /proc, as root, and returns what it prints."""
        script = f'mount -t proc proc "{self.root}/proc" && exec chroot "{self.root}" "$@"'
        return expect(code, ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)], env=self.environment).stdout
