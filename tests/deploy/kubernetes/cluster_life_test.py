"""A cluster's life, played with the rendered manifests and the real programs: teachers are rolled while a student trains,
the trainer is evicted and lost, and the weights are those of a run that nothing disturbed."""

import re
import shutil
import signal
import subprocess

import cluster
import kubelet
import manifests
from cluster import SAVE_EVERY
from environment import MODEL, ROOT, run
from kubelet import job_action
from manifests import of_kind
from programs import WAIT_S, fetch, make_certificate, wait_for


class ClusterLifeTest(cluster.Cluster):
    def undisturbed(self, step, overlay="laptop/teacher"):
        """A run of the same experiment with one teacher, past `step`."""
        runs = self.path / "reference"
        teacher = self.teachers(1, overlay).start()
        trainer = self.trainer(self.experiment(), runs).start()
        self.wait_for_step(trainer, runs, step)
        self.assertEqual(trainer.terminate()[0], 75)
        teacher.kill()
        return runs

    def test_rollouts_eviction_and_loss(self):
        self.addresses = [kubelet.new_address() for _ in range(8)]
        runs = self.path / "runs"
        teachers = self.teachers(2).start()
        objects = self.experiment()
        job = of_kind(objects, "Job")[0]["spec"]
        trainer = self.trainer(objects, runs).start()
        trainer.wait_ready()
        self.wait_for_step(trainer, runs, 3)

        # New teachers in the place of the old ones: the old end in order, and one was ready all the time.
        before = self.last_step(runs)
        self.assertEqual(teachers.roll_out(), [0, 0])
        self.assertGreaterEqual(teachers.min_ready, 1)
        self.wait_for_step(trainer, runs, max(before, self.last_step(runs)) + 2)
        self.assertTrue(trainer.is_up())
        self.assertEqual([pod.restarts for pod in (trainer, *teachers.pods)], [0] * 3)

        # Evicted: saved, not counted, continued in another pod. Then lost with its node: counted, continued.
        code, seconds = trainer.terminate()
        self.assertEqual((code, job_action(job, code, disrupted=True)), (75, "Ignore"))
        self.assertLess(seconds, trainer.spec["terminationGracePeriodSeconds"])
        step = self.last_step(runs)
        trainer = self.trainer(objects, runs).start()
        self.wait_for_step(trainer, runs, (step // SAVE_EVERY + 1) * SAVE_EVERY + 3)
        trainer.process.send_signal(signal.SIGKILL)
        trainer.process.wait(WAIT_S)
        self.assertEqual(job_action(job, 137), "Count")
        trainer.kill()
        step = self.last_step(runs)
        trainer = self.trainer(objects, runs).start()
        self.wait_for_step(trainer, runs, step + 2)
        self.assertEqual(trainer.terminate()[0], 75)
        teachers.kill()
        self.addresses = [kubelet.new_address() for _ in range(2)]
        self.assert_same_bits(runs, self.undisturbed(self.last_step(runs)))

    def test_rollout_without_a_spare_gpu(self):
        """One teacher that goes before the next one comes: training waits, and continues with the same bits."""
        self.addresses = [kubelet.new_address() for _ in range(3)]
        runs = self.path / "runs"
        teachers = self.teachers(1, "single-gpu/teacher").start()
        trainer = self.trainer(self.experiment(), runs).start()
        self.wait_for_step(trainer, runs, 2)
        self.assertEqual(teachers.roll_out(), [0])
        self.assertEqual(teachers.min_ready, 0)
        self.wait_for_step(trainer, runs, max(SAVE_EVERY, self.last_step(runs)) + 2)
        self.assertEqual(trainer.terminate()[0], 75)
        teachers.kill()
        self.addresses = [kubelet.new_address() for _ in range(2)]
        self.assert_same_bits(runs, self.undisturbed(self.last_step(runs), "single-gpu/teacher"))

    def secrets(self):
        """Directories in the place of the Secrets: certificates of one authority for both ends, and a key."""
        folders = {name: self.path / "secrets" / name for name in ("teacher-tls", "trainer-tls", "other-tls", "keys")}
        names = ",".join(f"IP:{address}" for address in self.addresses)
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            if not name.endswith("-tls"):
                continue
            authority = self.path / ("other" if name == "other-tls" else "ca")
            if not authority.with_suffix(".crt").exists():
                make_certificate(authority, authority.name)
            make_certificate(folder / "tls", name, names, authority)
            shutil.copy(self.path / "ca.crt", folder / "ca.crt")
        (folders["keys"] / "keys").write_text("old-key-of-the-cluster\nkey-of-the-cluster\n")
        (folders["keys"] / "key").write_text("key-of-the-cluster\n")
        return folders

    def test_certificates_and_keys(self):
        """Both ends with the components of TLS and keys: a run works; without the right key or certificate it does not."""
        self.addresses = [kubelet.new_address()]
        secrets = self.secrets()
        overlay = self.overlay_with("tls", "api-keys")
        self.volumes |= {"/run/taopd/tls": secrets["teacher-tls"], "/run/taopd/api-keys": secrets["keys"]}
        # The probes are answered in plain text, and without a key.
        teachers = self.teachers(1, objects=manifests.kustomize(overlay / "teacher")).start()
        objects = self.experiment("secure", overlay, "grpcs")
        self.volumes |= {"/run/taopd/tls": secrets["trainer-tls"], "/run/taopd/api-key": secrets["keys"]}
        runs = self.path / "runs"
        trainer = self.trainer(objects, runs).start()
        wait_for(lambda: self.steps(runs, "secure"), f"a step ({trainer.log})", trainer.process)
        self.assertEqual(trainer.terminate()[0], 75)
        self.assertNotIn("key-of-the-cluster", trainer.log.read_text() + teachers.pods[0].log.read_text())
        patience = ["--set", "teacher.connect_timeout_s=2"]
        for name in ("a wrong key", "a certificate of another authority"):
            with self.subTest(name):
                if name == "a wrong key":
                    (secrets["keys"] / "key").write_text("another-key\n")
                else:
                    self.volumes["/run/taopd/tls"] = secrets["other-tls"]
                pod = self.trainer(objects, self.path / name.replace(" ", "-"), patience).start()
                self.assertNotIn(pod.process.wait(WAIT_S), (0, 75), pod.log.read_text())
                self.assertEqual(self.steps(self.path / name.replace(" ", "-"), "secure"), {})
                (secrets["keys"] / "key").write_text("key-of-the-cluster\n")

    def test_exit_codes(self):
        """The real program's exit codes, and what the Job makes of them."""
        self.addresses = [kubelet.new_address()]
        objects = self.experiment()
        job = of_kind(objects, "Job")[0]["spec"]
        for code, action, settings in (
                (64, "FailJob", ["--set", "optimizer.lr=-1"]),
                (65, "FailJob", ["--set", "student.model=/none"]),
                (69, "Count", ["--set", "teacher.connect_timeout_s=0.1"])):
            with self.subTest(code):
                pod = self.trainer(objects, self.path / f"runs-{code}", settings).start()
                self.assertEqual(pod.process.wait(WAIT_S), code, pod.log.read_text())
                self.assertEqual(job_action(job, code), action)
        known = {0: "Complete", 64: "FailJob", 65: "FailJob", 69: "Count", 70: "Count", 71: "FailJob", 72: "Count", 74: "FailJob", 75: "Ignore",
                 76: "FailJob", 77: "Count", 78: "FailJob"}
        self.assertEqual({code: job_action(job, code) for code in known}, known)
        self.assertEqual(job_action(job, 137), "Count")
        # A code that the program gets later must be decided on here, and in the manifests and units.
        table = (ROOT / "docs/troubleshooting.md").read_text().split("## Exit codes", 1)[1].split("\n## ", 1)[0]
        self.assertEqual({int(code) for code, meaning in re.findall(r"^\| (\d+) \| (.*?) \|", table, re.M) if meaning},
                         set(known))
        self.assertEqual(job_action(job, 143, disrupted=True), "Ignore")
        self.assertEqual(job_action(job, 64, disrupted=True), "FailJob")

    def test_probes_follow_the_server(self):
        """Not ready before the model is there; ready; not ready and still alive while it drains."""
        self.addresses = [kubelet.new_address()]
        teachers = self.teachers(1)
        pod = teachers.make_pod()
        self.assertFalse(pod.ask("startupProbe"))
        pod.start()
        pod.wait_ready()
        self.assertTrue(pod.ask("readinessProbe") and pod.ask("livenessProbe"))
        status, page = fetch(f"http://{pod.address}:{pod.ports['health']}/metrics")
        self.assertEqual(status, 200)
        self.assertIn("taopd_teacher_ready", page)
        code, seconds = pod.terminate()
        self.assertEqual(code, 0)
        self.assertGreaterEqual(seconds, 15 * kubelet.SCALE)  # preStop and --drain-delay
        self.assertEqual(pod.restarts, 0)

    def test_model_copy(self):
        """The init container's script: copies, checks, and starts over after an interruption."""
        script = manifests.KUBERNETES / "components/model-copy/copy-model.sh"
        source, target = self.path / "source/teacher", self.path / "local"
        shutil.copytree(MODEL, source)
        environment = {"PATH": "/usr/bin:/bin", "MODEL": "/models/teacher", "SOURCE_DIR": str(source.parent),
                       "MODELS_DIR": str(target)}

        def copy():
            return run(["sh", script], env=environment).returncode
        sums = subprocess.run("sha256sum * > SHA256SUMS", shell=True, cwd=source, check=True)
        self.assertEqual(sums.returncode, 0)
        (target / "teacher").mkdir(parents=True)
        (target / "teacher/half").touch()
        self.assertEqual(copy(), 0)
        self.assertFalse((target / "teacher/half").exists())
        self.assertTrue((target / "teacher/.complete").exists())
        self.assertEqual((target / "teacher/config.json").read_bytes(), (source / "config.json").read_bytes())
        (source / "config.json").write_text("{}")  # a complete copy is kept
        self.assertEqual(copy(), 0)
        shutil.rmtree(target / "teacher")
        self.assertNotEqual(copy(), 0)
        self.assertFalse((target / "teacher/.complete").exists())
