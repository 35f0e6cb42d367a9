"""The parts of a cluster in which tests play its life: teachers, experiments, and what a run has done."""

import json
import shutil
import unittest

import manifests
from environment import MODEL, ROOT, expect, loaded_bin_dir, temporary_path, tool
from kubelet import Deployment, Pod
from manifests import find, of_kind
from programs import wait_for

SAVE_EVERY = 5
# The run continues until the test stops it: nothing depends on how fast this machine is.
EXPERIMENT = {"trainer.total_steps": 100000, "trainer.save_every": SAVE_EVERY, "trainer.keep_checkpoints": 10000,
              "trainer.eval_at_start": "false", "trainer.eval_every": 0, "eval.measure": "none", "data.train_batch_size": 4,
              "trainer.mini_batch_size": 2, "rollout.n": 2, "data.max_response_length": 16, "rollout.max_num_seqs": 16}


class Cluster(unittest.TestCase):
    """Has no tests of its own."""

    maxDiff = None

    def setUp(self):
        self.path = temporary_path(self)
        models = self.path / "models"
        for name in ("teacher", "student"):
            shutil.copytree(MODEL, models / name)
        self.volumes = {"/models": models, "/data": self.path / "data"}
        self.addresses = []

    # ---- The cluster's parts ----------------------------------------------------------------------------------------

    def pod(self, template, objects, runs=None, settings=()):
        volumes = self.volumes | ({"/runs": runs} if runs else {})
        pod = Pod(template, objects, loaded_bin_dir(), volumes, self.path, settings)
        self.addCleanup(pod.kill)
        return pod

    def teachers(self, replicas, overlay="laptop/teacher", objects=None):
        objects = objects or manifests.render(overlay)
        thing = find(objects, "Deployment", "teacher")
        template = thing["spec"]["template"]
        for config in of_kind(objects, "ConfigMap"):  # a GPU of this machine's making
            config["data"]["DEVICE"] = "cpu"
        spare = iter(self.addresses)

        def make():
            # The addresses of the Service, of which trainers know all.
            pod = self.pod(template, objects)
            address = next(spare)
            pod.command = [argument.replace(pod.address, address) for argument in pod.command]
            pod.address = address
            return pod
        return Deployment(thing, replicas, make)

    def experiment(self, name="life", overlay="laptop", scheme="grpc", flags=()):
        """The objects of the experiment, as a user renders them."""
        settings = [word for key, value in EXPERIMENT.items() for word in ("--set", f"{key}={value}")]
        done = expect(0, [
            ROOT / "deploy/experiment", name, "--config", "deploy/recipes/stories.yaml", "--student", "student", "--overlay", overlay,
            "--teacher", self.service(scheme), "--kubectl", tool("kubectl"), "--program", loaded_bin_dir() / "taopd-trainer",
            *settings, *flags], cwd=ROOT)
        return manifests.parse(done.stdout)

    def overlay_with(self, *components):
        """The laptop's overlay with components for the teacher and for the trainer, in a copy of the tree."""
        tree = self.path / "deploy/kubernetes"
        shutil.copytree(manifests.KUBERNETES, tree)
        for part, suffix in (("teacher", ""), ("experiment", "-trainer")):
            path = tree / f"overlays/laptop/{part}/kustomization.yaml"
            lines = "".join(f"  - ../../../components/{name}{suffix}\n" for name in components)
            path.write_text(path.read_text().replace("components:\n", "components:\n" + lines))
        return tree / "overlays/laptop"

    def service(self, scheme="grpc"):
        return ",".join(f"{scheme}://{address}:50051" for address in self.addresses)

    def trainer(self, objects, runs, settings=()):
        job = of_kind(objects, "Job")[0]
        runs.mkdir(exist_ok=True)
        return self.pod(job["spec"]["template"], objects, runs, settings)

    # ---- What a run has done ----------------------------------------------------------------------------------------

    def steps(self, runs, name="life"):
        """Step -> its losses, of a run's metrics. A step that was done again after a loss stands once."""
        path = runs / name / "metrics.jsonl"
        if not path.exists():
            return {}
        lines = path.read_text().splitlines()
        found = {}
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:  # the end of a line that is being written
                continue
            if "loss/mean" in row:
                found[row["step"]] = (row["loss/mean"], row["loss/grad_norm"], row["policy/student_tail"])
        return found

    def last_step(self, runs):
        return max(self.steps(runs), default=0)

    def wait_for_step(self, pod, runs, step):
        wait_for(lambda: self.last_step(runs) >= step, f"step {step} ({pod.log})", pod.process)

    def checkpoint(self, runs, step):
        return runs / "life/checkpoints" / f"step-{step:06d}"

    def assert_same_bits(self, runs, reference):
        """Every step that both runs made, and the weights of the last checkpoint that both have."""
        step = min(self.last_step(runs), self.last_step(reference))
        ours, theirs = self.steps(runs), self.steps(reference)
        self.assertEqual(sorted(ours)[:step], list(range(1, step + 1)))
        self.assertEqual([ours[i] for i in range(1, step + 1)], [theirs[i] for i in range(1, step + 1)])
        saved = step // SAVE_EVERY * SAVE_EVERY
        self.assertGreater(saved, 0)
        weights = sorted(path.name for path in self.checkpoint(reference, saved).rglob("*.safetensors"))
        self.assertTrue(weights)
        for name in weights:
            pair = [next(self.checkpoint(each, saved).rglob(name)).read_bytes() for each in (runs, reference)]
            self.assertTrue(pair[0] == pair[1], f"{name} of step {saved} differs")
