"""Rollout workers of the rendered manifests, played as processes: they generate for a trainer, are lost and come back, and the
run has the bits of one that generates by itself."""

import signal

import cluster
import kubelet
import manifests
from cluster import SAVE_EVERY
from manifests import find, of_kind
from programs import WAIT_S

NUM_NAMED = 4  # by the component rollout-workers-trainer


class RolloutWorkersLifeTest(cluster.Cluster):
    def worker(self, objects, address):
        """A pod of the StatefulSet, with a name that means this address."""
        number = self.count = getattr(self, "count", 0) + 1
        weights = self.path / f"weights-{number}"
        weights.mkdir()
        for config in of_kind(objects, "ConfigMap"):
            config["data"]["KV_CACHE_MEMORY_BYTES"] = "64MiB"
        self.volumes["/weights"] = weights
        pod = self.pod(find(objects, "StatefulSet", "rollout-worker")["spec"]["template"], objects)
        pod.command = [argument.replace(pod.address, address) for argument in pod.command]
        pod.address = address
        return pod.start()

    def rollout_trainer(self, objects, runs, addresses):
        trainer = self.trainer(objects, runs)
        for i, address in enumerate(addresses):
            trainer.command = [argument.replace(f"rollout-worker-{i}.rollout-worker:", f"{address}:") for argument in trainer.command]
        self.assertNotIn("rollout-worker-", " ".join(trainer.command))
        return trainer.start()

    def lose(self, pod):
        """The node of a pod is gone."""
        pod.process.send_signal(signal.SIGKILL)
        pod.process.wait(WAIT_S)
        pod.kill()

    def test_workers_are_lost_and_come_back(self):
        overlay = self.overlay_with("rollout-workers")
        served = manifests.kustomize(overlay / "teacher")
        self.addresses = [kubelet.new_address()]
        self.teachers(1, objects=served).start()
        named = [kubelet.new_address() for _ in range(NUM_NAMED)]
        workers = [self.worker(served, address) for address in named[:2]]  # nobody is at the other names
        for pod in workers:
            pod.wait_ready()
        runs = self.path / "runs"
        trainer = self.rollout_trainer(self.experiment("life", overlay), runs, named)
        self.wait_for_step(trainer, runs, 2)
        self.lose(workers[0])
        self.wait_for_step(trainer, runs, self.last_step(runs) + 2)  # the other one generates
        workers[0] = self.worker(served, named[0])
        workers[0].wait_ready()
        self.lose(workers[1])
        self.wait_for_step(trainer, runs, max(SAVE_EVERY, self.last_step(runs)) + 2)  # the first one has the weights again
        self.assertEqual(trainer.terminate()[0], 75)
        log = trainer.log.read_text()
        for address in named[:2]:
            self.assertIn(address, log)
        for pod in workers:
            pod.kill()

        reference = self.path / "reference"
        alone = self.trainer(self.experiment(), reference)
        self.assertNotIn("rollout.endpoints", " ".join(alone.command))
        alone.start()
        self.wait_for_step(alone, reference, self.last_step(runs))
        self.assertEqual(alone.terminate()[0], 75)
        self.assert_same_bits(runs, reference)
