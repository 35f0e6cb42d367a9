"""deploy/setup on the systems that it knows, each with nothing else: it names what is missing, and the system's archive has all of it
in versions that the build can use. Nothing is compiled here."""

import re
import shutil
import unittest

from environment import ROOT
from system_root import SystemRoot

# CMakeLists.txt demands CMake 3.25, C++20 GCC 12, and deploy/wheels has LibTorch for these versions of Python.
OLDEST = {"cmake": (3, 25), "g++": (12, 0)}
PYTHONS = ((3, 11), (3, 12), (3, 13))


def version(simulated, package):
    """(major, minor) of a package in what apt-get --simulate prints, without the epoch."""
    found = re.search(rf"^Inst {re.escape(package)} \((?:\d+:)?(\d+)\.(\d+)", simulated, re.M)
    return (int(found[1]), int(found[2])) if found else None


class SystemsTest(unittest.TestCase):
    def check(self, name):
        system = SystemRoot(type(self), name, "ca-certificates")
        (system.root / "root/deploy").mkdir()
        shutil.copy(ROOT / "deploy/setup", system.root / "root/deploy")
        said = system.inside("sh", "-c", "bash /root/deploy/setup --check 2>&1", code=1)
        packages = re.search(r"missing packages: (.*)", said)[1].split()
        self.assertIn("libgrpc++-dev", packages)
        system.inside("apt-get", "update")
        simulated = system.inside("apt-get", "install", "--simulate", "--no-install-recommends", *packages)
        for package, oldest in OLDEST.items():
            self.assertGreaterEqual(version(simulated, package), oldest, package)
        self.assertIn(version(simulated, "python3"), PYTHONS)

    def test_debian_12(self):
        self.check("debian-12")

    def test_debian_13(self):
        self.check("debian-13")

    def test_ubuntu_24_04(self):
        self.check("ubuntu-24.04")
