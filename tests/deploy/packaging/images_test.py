"""The images: built twice with the same digest, without shell or tools, started as their user on a read-only root, and the addition
example in them."""

import json
import os
import pathlib
import shutil
import sys
import unittest

from environment import BIN_DIR, MODEL, ROOT, expect, project_version, run, temporary_path, tool
from programs import TINY_IN_A_PACKAGE, Program, Teacher, fetch, make_certificate, settings, wait_for

MAX_TEACHER_MB = 560


def build(output, *flags):
    for name in ("buildah", "skopeo", "umoci", "mmdebstrap"):
        tool(name)
    if os.geteuid() != 0:
        raise unittest.SkipTest("building images in tests needs root")
    done = expect(0, [ROOT / "deploy/images/build", "--output", output, *flags], env={**os.environ, "TAOPD_BIN_DIR": str(BIN_DIR)})
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("taopd-")]
    return {line[0]: (line[1], int(line[2])) for line in lines}


class ImagesTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.path = temporary_path(cls, "images-")
        cls.path.chmod(0o755)
        cls.built = build(cls.path / "first")
        cls.tag = f"{project_version()}-cpu"

    def unpack(self, image):
        target = self.path / f"unpacked-{image}"
        if not target.exists():
            layout = f"{self.path}/layout-{image}:{self.tag}"
            expect(0, [tool("skopeo"), "copy", "--quiet", self.archive(image), f"oci:{layout}"])
            expect(0, [tool("umoci"), "unpack", "--image", layout, target])
        return target / "rootfs"

    def archive(self, image):
        return f"docker-archive:{self.path}/first/{image}-{self.tag}.tar"

    def inside(self, root, *words, mounts=""):
        """Words as user 65532 on the image's read-only root, with /tmp, /proc and what `mounts` adds."""
        script = (f'set -e; r="{root}"; mount --bind "$r" "$r"; mount --rbind /proc "$r/proc"; mount -t tmpfs none '
                  f'"$r/tmp"; {mounts} mount -o remount,ro,bind "$r"; exec chroot --userspec=65532:65532 "$r" "$@"')
        return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)]

    def shared(self, name):
        """A directory that the images' user may write, and the words that mount it as /tmp/work."""
        work = self.path / name
        work.mkdir()
        work.chmod(0o777)
        return work, f'mkdir "$r/tmp/work"; mount --bind "{work}" "$r/tmp/work";'

    def teacher(self, work, mounts, *flags, model):
        """A teacher in its image, in which `work` is /tmp/work."""
        return Teacher(self, work, *flags, program="/opt/taopd/bin/taopd-teacher", model=model, inside="/tmp/work",
                       prefix=self.inside(self.unpack("taopd-teacher"), mounts=mounts))

    def test_names_and_sizes(self):
        self.assertEqual(sorted(self.built), [f"taopd-teacher:{self.tag}", f"taopd-trainer:{self.tag}"])
        self.assertLessEqual(self.built[f"taopd-teacher:{self.tag}"][1], MAX_TEACHER_MB)

    def test_the_same_digest_again(self):
        again = build(self.path / "second", "--image", "taopd-teacher")
        self.assertEqual(again, {name: self.built[name] for name in again})
        shutil.rmtree(self.path / "second")

    def test_configuration(self):
        for image in ("taopd-teacher", "taopd-trainer"):
            done = expect(0, [tool("skopeo"), "inspect", "--config", "--raw", self.archive(image)])
            config = json.loads(done.stdout)["config"]
            self.assertEqual((config["User"], config["Entrypoint"]), ("65532:65532", [image]))
            self.assertEqual(config["Healthcheck"]["Test"][:2], ["CMD", "/opt/taopd/bin/taopd-probe"])
            self.assertGreaterEqual(config["Healthcheck"]["StartPeriod"], 1800 * 10**9)
            self.assertEqual(config["Labels"]["org.opencontainers.image.version"], project_version())
            self.assertEqual(config["Labels"]["org.opencontainers.image.licenses"], "Apache-2.0")

    def test_what_is_not_in_them(self):
        for image in ("taopd-teacher", "taopd-trainer"):
            root = self.unpack(image)
            tools = [path for path in root.rglob("*") if path.name in
                     ("sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "cc", "gcc", "g++", "ld", "python3", "perl",
                      "curl", "wget") and (path.is_file() or path.is_symlink())]
            self.assertEqual(tools, [])
            special = [path for path in root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]
            self.assertEqual(special, [])
            self.assertFalse((root / "etc/hostname").exists() and (root / "etc/hostname").read_text().strip())
            programs = {path.name for path in (root / "opt/taopd/bin").iterdir()}
            helpers = {"taopd-grammar"} if image == "taopd-teacher" else set()
            self.assertEqual(programs, {image, "taopd-probe"} | helpers)
            self.assertTrue((root / "opt/taopd/sbom.spdx.json").exists())
            self.assertIn("Version: ", (root / "var/lib/dpkg/status.d/libc6").read_text())
            self.assertTrue((root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 100_000)

    def test_teacher_serves(self):
        work, mounts = self.shared("served")
        shutil.copytree(MODEL, work / "model")
        teacher = self.teacher(work, f'{mounts} mount --bind "{work}/model" "$r/models";', model="/models")
        status = pathlib.Path(f"/proc/{teacher.process.pid}/status").read_text()
        self.assertIn("Uid:\t65532\t65532", status)
        answer = fetch(f"{teacher.url}/v1/completions", {"prompt": [1, 403], "max_tokens": 2})
        self.assertEqual(answer[0], 200, answer)
        expect(0, self.inside(self.unpack("taopd-teacher"), "/opt/taopd/bin/taopd-probe",
                              teacher.url.removeprefix("http://") + "/health"))
        self.assertEqual(teacher.stop(), 0)

    def make_secrets(self, folder):
        """A certificate for 127.0.0.1, the authority that has signed it, and a key, for all to read."""
        folder.mkdir()
        make_certificate(folder / "ca", "ca")
        make_certificate(folder / "tls", "teacher", authority=folder / "ca")
        (folder / "key").write_text("key-of-the-image\n")
        for path in folder.iterdir():
            path.chmod(0o644)

    def test_training_with_certificates_and_a_key(self):
        """Both images together: grpcs and a key, a SIGKILL of the trainer, its resume, and the teacher's drain."""
        work, mounts = self.shared("trained")
        self.make_secrets(work / "secrets")
        for name in ("student", "scored"):
            shutil.copytree(MODEL, work / name)
        teacher = self.teacher(work, mounts, "--max-logprobs", "512", "--api-key-file", "/tmp/work/secrets/key", "--ssl-certfile",
                               "/tmp/work/secrets/tls.crt", "--ssl-keyfile", "/tmp/work/secrets/tls.key", model="/tmp/work/scored")
        values = TINY_IN_A_PACKAGE | {
            "run.dir": "/tmp/work/run", "student.model": "/tmp/work/student", "trainer.total_steps": 30, "trainer.save_every": 1,
            "teacher.endpoints": f"[{teacher.endpoint.replace('grpc:', 'grpcs:')}]",
            "teacher.tls_ca_file": "/tmp/work/secrets/ca.crt", "teacher.api_key_file": "/tmp/work/secrets/key"}

        def trainer(name, *flags):
            return Program(self, self.inside(
                self.unpack("taopd-trainer"), "/opt/taopd/bin/taopd-trainer", "train", "--config",
                "/opt/taopd/deploy/recipes/stories.yaml", *settings(values), *flags, mounts=mounts), self.path, name)
        first = trainer("trainer-first")
        wait_for(lambda: (work / "run/checkpoints/step-000002").exists(), f"two steps ({first.log})", first.process)
        first.kill()
        resumed = trainer("trainer-resumed", "--resume")
        self.assertEqual(resumed.process.wait(120), 0, resumed.log.read_text())
        self.assertTrue((work / "run/model/model.safetensors").exists())
        self.assertEqual(teacher.stop(), 0)

    def test_the_addition_example(self):
        """The data are made here, because the images have no Python; the images train, serve and evaluate."""
        work, mounts = self.shared("addition")
        expect(0, [sys.executable, ROOT / "deploy/examples/addition/generate.py", work / "data"])
        recipes = "/opt/taopd/deploy/recipes/addition"

        def train(command, name, recipe, values, *flags):
            return Program(self, self.inside(
                self.unpack("taopd-trainer"), "/opt/taopd/bin/taopd-trainer", command, "--config", f"{recipes}/{recipe}.yaml",
                *settings(values), *flags, mounts=mounts), self.path, name)

        def finish(*programs):
            for program in programs:
                self.assertEqual(program.process.wait(900), 0, program.log.read_text())
        finish(*[train("sft", f"sft-{who}", f"{who}_sft", {
            "run.dir": f"/tmp/work/{who}", "model.config": "/opt/taopd/deploy/examples/addition/config.json",
            "model.tokenizer": "/tmp/work/data/tokenizer", "data.train": f"[/tmp/work/data/{who}_sft.jsonl]"})
                 for who in ("teacher", "student")])
        teacher = self.teacher(work, mounts, model="/tmp/work/teacher/model")
        values = {"run.dir": "/tmp/work/run", "student.model": "/tmp/work/student/model", "data.train": "[/tmp/work/data/train.jsonl]",
                  "data.val": "[/tmp/work/data/val.jsonl]", "teacher.endpoints": f"[{teacher.endpoint}]"}
        finish(train("train", "addition-train", "train", values))
        accuracy = {}
        for name, model in (("before", "student/model"), ("after", "run/model")):
            finish(train("eval", f"eval-{name}", "train", values, "--model", f"/tmp/work/{model}", "--output", f"/tmp/work/{name}.json"))
            accuracy[name] = json.loads((work / f"{name}.json").read_text())["accuracy"]
        self.assertGreater(accuracy["after"], accuracy["before"] + 0.3)
        self.assertEqual(teacher.stop(), 0)

    def test_root_is_read_only(self):
        root = self.unpack("taopd-trainer")
        command = self.inside(root, "/opt/taopd/bin/taopd-trainer", "train", "--config", "/opt/taopd/deploy/recipes/stories.yaml",
                              "--set", "run.dir=/runs/x", "--set", "student.model=/none")
        done = run(command)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Read-only file system", done.stdout + done.stderr)
        self.assertIn(project_version(), expect(0, self.inside(root, "/opt/taopd/bin/taopd-trainer", "--version")).stdout)
