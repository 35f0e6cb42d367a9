"""The images: built twice with the same digest, without shell or tools, started as their user on a read-only root, and the addition
example in them."""

import json
import os
import pathlib
import shutil
import sys
import unittest

import named_results
from environment import BIN_DIR, MODEL, ROOT, expect, project_version, run, temporary_path, tool
from programs import TINY, Program, fetch, settings, wait_for

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

    def port_of(self, teacher, ready_file, protocol):
        """Waits for the file, which is in the teacher's mount namespace."""
        def port():
            try:
                ready = json.loads(pathlib.Path(f"/proc/{teacher.process.pid}/root{ready_file}").read_text())
            except (OSError, ValueError):
                return 0
            return ready[f"{protocol}_port"]
        return wait_for(port, f"the teacher is ready ({teacher.log})", teacher.process)

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
        root = self.unpack("taopd-teacher")
        shutil.copytree(MODEL, self.path / "model")
        bind = f'mount --bind "{self.path}/model" "$r/models";'
        ready_file = f"/tmp/{self.path.name}.json"
        command = self.inside(root, "/opt/taopd/bin/taopd-teacher", "--model", "/models", "--port", "0", "--grpc-port",
                              "0", "--num-threads", "1", "--ready-file", ready_file, mounts=bind)
        teacher = Program(self, command, self.path, "teacher")
        number = self.port_of(teacher, ready_file, "http")
        status = pathlib.Path(f"/proc/{teacher.process.pid}/status").read_text()
        self.assertIn("Uid:\t65532\t65532", status)
        answer = fetch(f"http://127.0.0.1:{number}/v1/completions", {"prompt": [1, 403], "max_tokens": 2})
        self.assertEqual(answer[0], 200, answer)
        probe = self.inside(root, "/opt/taopd/bin/taopd-probe", f"127.0.0.1:{number}/health")
        expect(0, probe)
        self.assertEqual(teacher.stop(), 0)

    def secrets(self):
        """A certificate for 127.0.0.1, the authority that has signed it, and a key, for all to read."""
        folder = self.path / "secrets"
        folder.mkdir()
        make = [tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        expect(0, [*make, "-subj", "/CN=ca", "-keyout", folder / "ca.key", "-out", folder / "ca.crt"])
        expect(0, [*make, "-subj", "/CN=teacher", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
                   "basicConstraints=critical,CA:FALSE", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
                   "-keyout", folder / "tls.key", "-out", folder / "tls.crt"])
        (folder / "key").write_text("key-of-the-image\n")
        for path in folder.iterdir():
            path.chmod(0o644)
        return folder

    def test_training_with_certificates_and_a_key(self):
        """Both images together: grpcs and a key, a SIGKILL of the trainer, its resume, and the teacher's drain."""
        secrets, runs = self.secrets(), self.path / "runs"
        student = shutil.copytree(MODEL, self.path / "student")
        runs.mkdir(mode=0o777)
        runs.chmod(0o777)
        shutil.copytree(MODEL, self.path / "scored")
        ready_file = f"/tmp/{self.path.name}-tls.json"
        mounts = (f'mkdir "$r/tmp/secrets"; mount --bind "{secrets}" "$r/tmp/secrets"; '
                  f'mount --bind "{self.path}/scored" "$r/models";')
        teacher = Program(self, self.inside(
            self.unpack("taopd-teacher"), "/opt/taopd/bin/taopd-teacher", "--model", "/models", "--port", "0", "--grpc-port",
            "0", "--num-threads", "1", "--max-logprobs", "512", "--ready-file", ready_file, "--ssl-certfile", "/tmp/secrets/tls.crt", "--ssl-keyfile",
            "/tmp/secrets/tls.key", "--api-key-file", "/tmp/secrets/key", mounts=mounts), self.path, "teacher-tls")
        number = self.port_of(teacher, ready_file, "grpc")
        values = TINY | {"run.dir": "/tmp/runs/x", "student.model": "/tmp/student", "trainer.num_threads": 1,
                         "trainer.total_steps": 30, "trainer.save_every": 1,
                         "data.train": "[/opt/taopd/deploy/examples/stories/train.jsonl]",
                         "data.val": "[/opt/taopd/deploy/examples/stories/heldout.jsonl]",
                         "teacher.endpoints": f"[grpcs://127.0.0.1:{number}]",
                         "teacher.tls_ca_file": "/tmp/secrets/ca.crt", "teacher.api_key_file": "/tmp/secrets/key"}
        mounts = "".join(f'mkdir "$r/tmp/{name}"; mount --bind "{path}" "$r/tmp/{name}"; '
                         for name, path in (("secrets", secrets), ("runs", runs), ("student", student)))

        def trainer(name, *flags):
            return Program(self, self.inside(
                self.unpack("taopd-trainer"), "/opt/taopd/bin/taopd-trainer", "train", "--config",
                "/opt/taopd/deploy/recipes/stories.yaml", *settings(values), *flags, mounts=mounts), self.path, name)
        first = trainer("trainer-first")
        wait_for(lambda: (runs / "x/checkpoints/step-000002").exists(), f"two steps ({first.log})", first.process)
        first.kill()
        resumed = trainer("trainer-resumed", "--resume")
        self.assertEqual(resumed.process.wait(120), 0, resumed.log.read_text())
        self.assertTrue((runs / "x/model/model.safetensors").exists())
        self.assertEqual(teacher.stop(), 0)

    def test_the_addition_example(self):
        """The data are made here, because the images have no Python; the images train, serve and evaluate."""
        work = self.path / "addition"
        expect(0, [sys.executable, ROOT / "deploy/examples/addition/generate.py", work / "data"])
        work.chmod(0o777)
        mounts = f'mkdir "$r/tmp/work"; mount --bind "{work}" "$r/tmp/work";'
        recipes = "/opt/taopd/deploy/recipes/addition"

        def start(image, name, *words):
            return Program(self, self.inside(self.unpack(image), f"/opt/taopd/bin/{image}", *words, mounts=mounts), self.path, name)

        def train(command, name, recipe, values, *flags):
            return start("taopd-trainer", name, command, "--config", f"{recipes}/{recipe}.yaml", *settings(values), *flags)

        def finish(*programs):
            for program in programs:
                self.assertEqual(program.process.wait(900), 0, program.log.read_text())
        finish(*[train("sft", f"sft-{who}", f"{who}_sft", {
            "run.dir": f"/tmp/work/{who}", "model.config": "/opt/taopd/deploy/examples/addition/config.json",
            "model.tokenizer": "/tmp/work/data/tokenizer", "data.train": f"[/tmp/work/data/{who}_sft.jsonl]"})
                 for who in ("teacher", "student")])
        teacher = start("taopd-teacher", "addition-teacher", "--model", "/tmp/work/teacher/model", "--port", "0", "--grpc-port", "0",
                        "--num-threads", "1", "--ready-file", "/tmp/work/ready.json")
        wait_for((work / "ready.json").exists, f"the teacher is ready ({teacher.log})", teacher.process)
        port = json.loads((work / "ready.json").read_text())["grpc_port"]
        values = {"run.dir": "/tmp/work/run", "student.model": "/tmp/work/student/model", "data.train": "[/tmp/work/data/train.jsonl]",
                  "data.val": "[/tmp/work/data/val.jsonl]", "teacher.endpoints": f"[grpc://127.0.0.1:{port}]"}
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


if __name__ == "__main__":
    named_results.main()
