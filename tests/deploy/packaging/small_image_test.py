"""deploy/images/build from end to end in seconds: the trainer's image on an empty base, with stand-ins for the programs. What is
checked is the archive that users push: the health check, the programs that it names, the user, the same digest again.
images_test.py builds the real images and starts them."""

import io
import json
import os
import tarfile
import unittest

from environment import BIN_DIR, ROOT, expect, project_version, temporary_path, tool

PROGRAMS = ("taopd-teacher", "taopd-grammar", "taopd-trainer")
IMAGE = "taopd-trainer"


def make_stand_ins(folder):
    """Programs that only know their version, with room for a search path, and the real probe."""
    folder.mkdir()
    for name in PROGRAMS:
        source = folder / f"{name}.c"
        source.write_text(f'#include <stdio.h>\nint main(void) {{ puts("{name} {project_version()}"); return 0; }}\n')
        expect(0, ["gcc", source, "-o", folder / name, f"-Wl,-rpath,/{'x' * 40}"])
    (folder / "taopd-probe").symlink_to(BIN_DIR / "taopd-probe")
    return folder


def read_archive(path):
    """(configuration, {name: mode of each file of the layers}) of a docker-archive."""
    with tarfile.open(path) as archive:
        [manifest] = json.load(archive.extractfile("manifest.json"))
        configuration = json.load(archive.extractfile(manifest["Config"]))
        files = {}
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(archive.extractfile(layer).read())) as tree:
                files |= {f"/{member.name}": member.mode for member in tree if member.isfile()}
        return configuration, files


def problems(configuration, files):
    """What would keep the container from starting or its health from being seen."""
    config, found = configuration["config"], []
    check = config.get("Healthcheck", {}).get("Test", [])
    if check[:1] != ["CMD"]:
        found.append("no health check")
    [path] = [entry.removeprefix("PATH=") for entry in config["Env"] if entry.startswith("PATH=")]
    for program in (*check[1:2], f"{path}/{config['Entrypoint'][0]}"):
        if not files.get(program, 0) & 0o111:
            found.append(f"{program} is not there")
    if config["User"].startswith(("0", "root")) or not config["User"]:
        found.append("runs as root")
    return found


class SmallImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for name in ("buildah", "skopeo"):
            tool(name)
        if os.geteuid() != 0:
            raise unittest.SkipTest("building images in tests needs root")
        cls.path = temporary_path(cls, "small-image-")
        cls.stand_ins = make_stand_ins(cls.path / "bin")
        cls.first = cls.build("first")

    @classmethod
    def build(cls, name):
        """(archive, digest)"""
        output = cls.path / name
        done = expect(0, [ROOT / "deploy/images/build", "--image", IMAGE, "--base", "scratch", "--output", output],
                      env={**os.environ, "TAOPD_BIN_DIR": str(cls.stand_ins)})
        tag = f"{project_version()}-cpu"
        [line] = [line.split() for line in done.stdout.splitlines() if line.startswith(f"{IMAGE}:{tag} ")]
        return output / f"{IMAGE}-{tag}.tar", line[1]

    def test_archive(self):
        configuration, files = read_archive(self.first[0])
        self.assertEqual(problems(configuration, files), [])
        labels = configuration["config"]["Labels"]
        self.assertEqual((labels["org.opencontainers.image.version"], labels["taopd.preset"]), (project_version(), "cpu"))
        self.assertRegex(labels["org.opencontainers.image.created"], r"^20\d\d-\d\d-\d\dT")
        self.assertTrue(labels["org.opencontainers.image.revision"])
        for name in ("/opt/taopd/sbom.spdx.json", "/opt/taopd/LICENSE", "/opt/taopd/deploy/recipes/addition/train.yaml"):
            self.assertIn(name, files)

    def test_the_same_digest_again(self):
        self.assertEqual(self.build("second")[1], self.first[1])

    def test_planted_faults(self):
        configuration, files = read_archive(self.first[0])
        # An OCI layout, which has no health checks, is what a push in that format makes of the image.
        expect(0, [tool("skopeo"), "copy", "--quiet", f"docker-archive:{self.first[0]}", f"oci:{self.path}/oci:x"])
        done = expect(0, [tool("skopeo"), "inspect", "--config", "--raw", f"oci:{self.path}/oci:x"])
        self.assertEqual(problems(json.loads(done.stdout), files), ["no health check"])
        self.assertEqual(problems(configuration, {**files, "/opt/taopd/bin/taopd-probe": 0o644}),
                         ["/opt/taopd/bin/taopd-probe is not there"])
        self.assertEqual(problems(configuration, {}), ["/opt/taopd/bin/taopd-probe is not there", f"/opt/taopd/bin/{IMAGE} is not there"])
        configuration["config"]["User"] = "root"
        self.assertEqual(problems(configuration, files), ["runs as root"])
