"""The archive and the Debian package of deploy/release, in a Debian 12 and an Ubuntu 24.04 that have nothing else but Python: both
train the addition example, and the package installs, keeps settings, and purges."""

import pathlib
import shutil
import unittest

from environment import BIN_DIR, ROOT, expect, project_version, temporary_path
from system_root import SystemRoot

# Files that a package may leave behind: what dpkg and the systems of others write.
LEFT_BY_OTHERS = ("var/lib/dpkg/", "var/log/", "var/cache/", "etc/ld.so.cache", "proc/", "tmp/", "root/")


def release(*flags):
    """The path of what deploy/release writes."""
    return pathlib.Path(expect(0, [ROOT / "deploy/release", "--bin-dir", BIN_DIR, *flags]).stdout.strip())


def files(system):
    return {name for name in (str(path.relative_to(system.root)) for path in system.root.rglob("*"))
            if not name.startswith(LEFT_BY_OTHERS)}


class PackagesTest(unittest.TestCase):
    def check(self, name):
        system, output = SystemRoot(type(self), name, "python3"), temporary_path(self, "packages-")
        self.check_archive(system, output)
        self.check_package(system, output)

    def check_archive(self, system, output):
        archive = release("--output", output, "--level", "1")
        for path in (archive, archive.with_name(f"{archive.name}.sha256")):
            shutil.move(path, system.root / "root")
        system.inside("sh", "-c", f"cd /root && sha256sum --check {archive.name}.sha256 && tar -xzf {archive.name}")
        tree = f"/root/{archive.name.removesuffix('.tar.gz')}"
        system.quickstart(self, f"{tree}/deploy/quickstart")
        shutil.rmtree(system.root / tree.lstrip("/"))

    def check_package(self, system, output):
        before = files(system)
        package = release("--output", output, "--deb")
        shutil.move(package, system.root / "tmp")
        system.inside("dpkg", "-i", f"/tmp/{package.name}")
        for program in ("taopd-teacher", "taopd-trainer"):
            self.assertIn(project_version(), system.inside(program, "--version").split())
        self.assertTrue((system.root / "usr/lib/systemd/system/taopd-.service.d/confinement.conf").exists())
        for unit in ("taopd-teacher.service", "taopd-trainer@.service"):
            text = (system.root / "usr/lib/systemd/system" / unit).read_text(encoding="ascii")
            [command] = [line.split("=")[1].split()[0] for line in text.splitlines() if line.startswith("ExecStart=")]
            self.assertTrue((system.root / command.lstrip("/")).exists())
        self.assertIn("/etc/taopd/teacher.env", system.inside("dpkg-query", "-W", "-f", "${Conffiles}", "taopd"))
        system.quickstart(self, "/opt/taopd/deploy/quickstart")

        # A changed setting survives the same package again, and a run survives the purge.
        settings = system.root / "etc/taopd/teacher.env"
        with open(settings, "a", encoding="ascii") as file:
            file.write("DTYPE=float32\n")
        system.inside("dpkg", "-i", f"/tmp/{package.name}")
        self.assertIn("DTYPE=float32", settings.read_text(encoding="ascii"))
        (system.root / "var/lib/taopd").mkdir()
        system.inside("dpkg", "--purge", "taopd")
        self.assertEqual(files(system) - before, {"var/lib/taopd"})
        # dpkg removes a folder that has become empty, and no other package claims /opt.
        self.assertLessEqual(before - files(system), {"opt"})

    def test_debian_12(self):
        self.check("debian-12")

    def test_ubuntu_24_04(self):
        self.check("ubuntu-24.04")
