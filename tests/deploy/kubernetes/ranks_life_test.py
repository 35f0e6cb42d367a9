"""An experiment of two ranks, as JobSet and as TrainJob, played with the rendered manifests and the real programs: a rank is
killed, a rank is evicted, and the weights are those of ranks that nothing disturbed."""

import signal

import cluster
import kubelet
from cluster import SAVE_EVERY
from manifests import workloads
from rank_set import RankSet

KINDS = {"JobSet": "cluster", "TrainJob": "cluster/trainjob"}
# Within which the others notice that a rank has died.
END_S = 30


class RanksLifeTest(cluster.Cluster):
    def setUp(self):
        super().setUp()
        self.addresses = [kubelet.new_address()]
        self.teacher = self.teachers(1, "cluster/teacher").start()

    def ranks(self, kind, runs, settings=(), flags=()):
        objects = self.experiment(overlay=KINDS[kind], flags=flags)
        for _, template in workloads(objects):  # this machine has no GPU, and two processors for all
            for variable in template["spec"]["containers"][0]["env"]:
                if variable["name"] in ("DEVICE", "NUM_THREADS"):
                    variable.pop("valueFrom", None)
                    variable["value"] = {"DEVICE": "cpu", "NUM_THREADS": "1"}[variable["name"]]
        runs.mkdir()
        return RankSet(objects, lambda template: self.pod(template, objects, runs, settings))

    def end(self, ranks, evicted):
        """Evicts one rank; all of them save and end."""
        self.assertEqual(ranks.pods[evicted].terminate()[0], 75)
        codes = ranks.wait(END_S)
        self.assertEqual(set(codes.values()), {75})
        return codes

    def test_killed_and_evicted_ranks(self):
        disturbed = {}
        for kind in KINDS:
            with self.subTest(kind):
                runs = self.path / f"runs-{kind}"
                ranks = self.ranks(kind, runs)
                self.assertEqual(ranks.size, 2)
                ranks.start()
                self.wait_for_step(ranks.pods[0], runs, SAVE_EVERY + 2)
                # A rank is gone with its node: the other one ends without being told to, and both start again.
                ranks.pods[1].process.send_signal(signal.SIGKILL)
                codes = ranks.wait(END_S)
                self.assertEqual(codes, {0: 69, 1: 137})
                self.assertIn("rank 1 has died", ranks.pods[0].log.read_text())
                self.assertEqual(ranks.follow_policy(codes), "RestartJobSet")
                step = self.last_step(runs)
                ranks.start()
                self.wait_for_step(ranks.pods[0], runs, step + 2)
                self.assertIn("resumed", ranks.pods[0].log.read_text())
                # Evicted: all save, which does not count as a failure.
                codes = self.end(ranks, evicted=1)
                self.assertEqual(ranks.follow_policy(codes, disrupted={1}), "RestartJobSetAndIgnoreMaxRestarts")
                self.assertEqual((ranks.restarts, ranks.counted), (2, 1))
                step = self.last_step(runs)
                ranks.start()
                self.wait_for_step(ranks.pods[0], runs, step + 2)
                # The exit code alone says the same.
                self.assertEqual(ranks.follow_policy(self.end(ranks, evicted=0)), "RestartJobSetAndIgnoreMaxRestarts")
                disturbed[kind] = runs
        reference = self.path / "reference"
        ranks = self.ranks("JobSet", reference)
        ranks.start()
        self.wait_for_step(ranks.pods[0], reference, max(map(self.last_step, disturbed.values())))
        self.end(ranks, evicted=0)
        for kind, runs in disturbed.items():
            with self.subTest(kind):
                self.assert_same_bits(runs, reference)

    def test_several_ranks_a_pod(self):
        """Two pods, in each of which `launch` starts two ranks: they train together, and a pod's eviction saves."""
        for kind in KINDS:
            with self.subTest(kind):
                runs = self.path / f"runs-{kind}"
                ranks = self.ranks(kind, runs, flags=("--gpus", "2", "--ranks", "4", "--cpus", "2"))
                self.assertEqual(ranks.size, 2)
                ranks.start()
                self.wait_for_step(ranks.pods[0], runs, 2)
                self.assertIn("ranks=4", ranks.pods[0].log.read_text())
                codes = self.end(ranks, evicted=1)
                self.assertEqual(ranks.follow_policy(codes), "RestartJobSetAndIgnoreMaxRestarts")

    def test_failures_that_need_a_person(self):
        """A configuration that one rank refuses ends the experiment; a rank that keeps dying ends it at last."""
        for kind in KINDS:
            with self.subTest(kind):
                ranks = self.ranks(kind, self.path / f"runs-{kind}", ["--set", "optimizer.lr=-1"])
                ranks.start()
                codes = ranks.wait()
                self.assertEqual(set(codes.values()), {64})
                self.assertIn("optimizer.lr", ranks.pods[0].log.read_text())
                self.assertEqual(ranks.follow_policy(codes), "FailJobSet")
                again = [ranks.follow_policy({0: 69, 1: 137}) for _ in range(7)]
                self.assertEqual(again, ["RestartJobSet"] * 6 + ["FailJobSet"])
