"""deploy/experiment: one experiment's manifests from a configuration, checked by the program."""

import os
import unittest

import manifests
import policies
import schemas
import sizing_test
from environment import MODEL, ROOT, expect, loaded_bin_dir, run, temporary_path, tool, write_script
from manifests import find, get, of_kind

STORIES = ROOT / "deploy/recipes/stories.yaml"
KINDS = {"laptop": "Job", "single-gpu": "Job", "cluster": "JobSet", "cluster/trainjob": "TrainingRuntime"}


class ExperimentTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.path = temporary_path(self)

    def experiment(self, *arguments, **environment):
        return run([ROOT / "deploy/experiment", *map(str, arguments)], cwd=ROOT,
                   env={**os.environ, "TAOPD_BIN_DIR": str(loaded_bin_dir()), **environment})

    def render(self, *arguments):
        done = self.experiment(*arguments, "--kubectl", tool("kubectl"))
        self.assertEqual(done.returncode, 0, done.stderr)
        return manifests.parse(done.stdout)

    def test_every_overlay(self):
        for overlay, kind in KINDS.items():
            with self.subTest(overlay):
                objects = self.render("tails-2", "--config", STORIES, "--overlay", overlay, "--student", "stories",
                                      "--set", "trainer.total_steps=3")
                self.assertEqual(policies.findings(objects), [])
                self.assertEqual(schemas.findings(objects), [])
                pod = manifests.workloads(of_kind(objects, kind))[0][1]
                self.assertEqual(manifests.labels_of(pod)["app.kubernetes.io/instance"], "tails-2")
                arguments = pod["spec"]["containers"][0]["args"]
                for setting in ("student.model=/models/stories", "trainer.total_steps=3",
                                "data.train=[/etc/taopd/train.jsonl]", "data.val=[/etc/taopd/heldout.jsonl]"):
                    self.assertIn(f"--set={setting}", arguments)
                config = next(thing for thing in of_kind(objects, "ConfigMap"))
                self.assertEqual(config["data"]["train.yaml"], STORIES.read_text())
                self.assertEqual(config["data"]["heldout.jsonl"],
                                 (ROOT / "deploy/examples/stories/heldout.jsonl").read_text())

    def test_names_that_are_no_text_in_yaml(self):
        """Programs in Go read more numbers and truth values than Python's YAML: kubectl refuses them as labels."""
        for name in ("42", "on", "y", "08", "1e3", "0o7"):
            with self.subTest(name):
                done = self.experiment(name, "--config", STORIES, "--student", "s", "--kubectl", tool("kubectl"))
                (self.path / "a.yaml").write_text(done.stdout or done.stderr)
                kept = expect(0, [tool("kubectl"), "label", "--local", "-f", self.path / "a.yaml", "a=b", "-o",
                                  "jsonpath={.metadata.name} {.metadata.labels.app\\.kubernetes\\.io/instance}{'\\n'}"])
                self.assertIn(f"trainer-{name} {name}\n", kept.stdout)

    def test_nothing_is_shared_between_experiments(self):
        """Two experiments in one namespace have no object in common, and none with the teacher."""
        names = [{manifests.name_of(thing) for thing in self.render(
            name, "--config", STORIES, "--student", "s", "--overlay", "cluster")} for name in ("a", "b")]
        teacher = {manifests.name_of(thing) for thing in manifests.render("cluster/teacher")}
        self.assertFalse(names[0] & names[1] or names[0] & teacher)
        policy = find(self.render("a", "--config", STORIES, "--student", "s"), "NetworkPolicy", "trainer-a")
        self.assertEqual(get(policy, "spec", "podSelector", "matchLabels", "app.kubernetes.io/instance"), "a")

    def test_data_and_teacher_of_the_cluster(self):
        objects = self.render("a", "--config", STORIES, "--student", "/models/qwen/student", "--data-dir", "math/v2",
                              "--teacher", "grpc://x.y:1,grpc://z:2")
        arguments = manifests.workloads(objects)[0][1]["spec"]["containers"][0]["args"]
        self.assertEqual(arguments[-4:], ["--set=student.model=/models/qwen/student",
                                          "--set=data.train=[/data/math/v2/train.jsonl]",
                                          "--set=data.val=[/data/math/v2/heldout.jsonl]",
                                          "--set=teacher.endpoints=[grpc://x.y:1, grpc://z:2]"])
        self.assertEqual(list(of_kind(objects, "ConfigMap")[0]["data"]), ["train.yaml"])

    def test_several_teachers_or_none(self):
        """The configuration names their servers, or needs none: the Job names no server."""
        own = self.path / "own.yaml"
        own.write_text(STORIES.read_text() + "guard:\n"  # an empty section
                       "teachers:\n  - {name: math, endpoints: [grpc://math:50051], sources: [math]}\n"
                       "  - {name: code, endpoints: [grpc://code:50051]}\n")
        configurations = ((own, "guard.patience=4"), (own, "data.system_prompt=$(HOME)"),
                          (own, "teachers=[{name: code, endpoints: ['grpc://code:50051']}]"),
                          (STORIES, "teacher.kind=self"), (ROOT / "deploy/recipes/reward/train.yaml", "eval.measure=none"))
        for overlay, kind in KINDS.items():
            for config, setting in configurations:
                with self.subTest(f"{overlay}, {setting}"):
                    objects = self.render("a", "--config", config, "--student", "s", "--overlay", overlay, "--set", setting)
                    pod = manifests.workloads(of_kind(objects, kind))[0][1]["spec"]
                    self.assertIn(f"--set={setting}", pod["containers"][0]["args"])
                    self.assertFalse([each for each in pod["containers"][0]["args"] if "teacher.endpoints" in each])
                    self.assertEqual(of_kind(objects, "ConfigMap")[0]["data"]["train.yaml"], config.read_text())

    def test_refused(self):
        (self.path / "own.yaml").write_text(
            f"student: {{model: {MODEL}}}\ndata: {{train: [{self.path}/a/p.jsonl], val: [{self.path}/b/p.jsonl]}}\n")
        (self.path / "big.yaml").write_text(f"student: {{model: m}}\ndata: {{train: [{self.path}/big.jsonl]}}\n")
        (self.path / "big.jsonl").write_text("x" * 1_000_000)
        for folder in ("a", "b"):
            (self.path / folder).mkdir()
            (self.path / folder / "p.jsonl").touch()
        common = ("--config", STORIES, "--student", "s")
        for problem, arguments in {
            "is not a name": ("No_Name", *common),
            "at most 30": ("a" * 31, *common),
            "cannot be opened": ("a", "--config", "none.yaml"),
            "there is no overlay": ("a", *common, "--overlay", "moon"),
            "expected KEY=VALUE": ("a", *common, "--set", "trainer"),
            'unknown key "trainer.step"': ("a", *common, "--set", "trainer.step=3"),
            "must divide": ("a", *common, "--set", "data.train_batch_size=7"),
            "is not a built-in one": ("a", *common, "--set", "data.prompt_template=x"),
            "no student.model": ("a", "--config", STORIES),
            "is not here": ("a", *common, "--set", "data.val=[none.jsonl]"),
            "have the same name": ("a", "--config", self.path / "own.yaml"),
            "more than the 900000": ("a", "--config", self.path / "big.yaml"),
            "expected grpc://host:port": ("a", *common, "--teacher", "teacher:50051"),
            "is not there to check": ("a", *common, "--program", "/no/taopd-trainer"),
            "not a multiple of --gpus 2": ("a", *common, "--gpus", "2", "--ranks", "3"),
            "the overlay has no GPU": ("a", *common, "--gpus", "2"),
            "a Job is one pod": ("a", *common, "--ranks", "2"),
            "expected NAME=VALUE": ("a", *common, "--env", "NCCL_DEBUG"),
            "the memory plan is refused": ("a", *common, "--set", f"student.model={MODEL}", "--memory", "1Mi"),
        }.items():
            with self.subTest(problem):
                done = self.experiment(*arguments, "--kubectl", tool("kubectl"))
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(problem, done.stderr)
                self.assertEqual(done.stdout, "")

    def pod(self, objects):
        template = manifests.workloads(objects)[0][1]
        return template["spec"], template["spec"]["containers"][0]

    def test_several_gpus_a_pod(self):
        """One pod a node, whose ranks `launch` starts; their shared memory comes out of the pod's."""
        for overlay, ranks in (("single-gpu", 4), ("cluster", 12), ("cluster/trainjob", 12)):
            with self.subTest(overlay):
                objects = self.render("a", "--config", STORIES, "--student", "s", "--overlay", overlay, "--gpus", 4, "--ranks",
                                      ranks, "--memory", "64Gi", "--env", "NCCL_IB_HCA=mlx5", "--resource", "rdma/hca=1")
                self.assertEqual(policies.findings(objects), [])
                self.assertEqual(schemas.findings(objects), [])
                spec, container = self.pod(objects)
                self.assertEqual(container["args"][:4], ["launch", "--nproc=4", "--", "train"])
                self.assertEqual(container["args"][-1], "--set=trainer.num_threads=4")
                limits = container["resources"]["limits"]
                self.assertEqual((limits["nvidia.com/gpu"], limits["memory"], limits["rdma/hca"]), ("4", "68Gi", "1"))
                self.assertIn({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}, spec["volumes"])
                self.assertIn({"name": "NCCL_IB_HCA", "value": "mlx5"}, container["env"])
        self.assertEqual(of_kind(objects, "TrainJob")[0]["spec"]["trainer"], {"numNodes": 3, "numProcPerNode": 4})

    def test_where_the_pods_run(self):
        objects = self.render("a", "--config", STORIES, "--student", "s", "--unchecked", "--program", "/none", "--namespace", "math",
                              "--image", "registry.example/trainer@sha256:0", "--image-pull-secret", "login", "--cpus", 3,
                              "--node-selector", "zone=a", "--node-selector", "gpu=h200", "--priority-class", "low")
        self.assertEqual({get(thing, "metadata", "namespace") for thing in objects}, {"math"})
        self.assertEqual(schemas.findings(objects), [])
        spec, container = self.pod(objects)
        self.assertEqual(container["image"], "registry.example/trainer@sha256:0")
        self.assertEqual(container["resources"]["requests"]["cpu"], "3")
        self.assertEqual((spec["imagePullSecrets"], spec["nodeSelector"], spec["priorityClassName"]),
                         ([{"name": "login"}], {"zone": "a", "gpu": "h200"}, "low"))

    def test_the_plan_decides(self):
        """A student of 1.7 billion parameters: 22 GiB of checkpoint take two minutes, and each that is kept a part of the claim."""
        student = sizing_test.sizing.write_model(self.path, "Qwen3-1.7B")
        flags = ("--config", ROOT / "deploy/recipes/paper/qwen3_1.7b.yaml", "--set", f"student.model={student}", "--set",
                 "data.train=[/data/train.jsonl]", "--set", "eval.measure=none")
        spec, container = self.pod(self.render("a", *flags, "--overlay", "single-gpu"))
        self.assertEqual(container["resources"]["limits"]["memory"], "28Gi")
        self.assertEqual(spec["terminationGracePeriodSeconds"], 240 + 60 + 121)
        objects = self.render("a", *flags, "--overlay", "cluster", "--gpus", 8, "--set", "trainer.stop_grace_s=600")
        self.assertEqual(policies.findings(objects), [])
        spec, container = self.pod(objects)
        self.assertEqual(spec["terminationGracePeriodSeconds"], 600 + 60 + 121)

        def claim(*more):
            objects = self.render("a", *flags, "--overlay", "single-gpu", *more)
            return find(objects, "PersistentVolumeClaim", "runs-a")["spec"]["resources"]["requests"]["storage"]
        self.assertEqual(claim(), "129Gi")  # (3 + 2) x 22.4 GiB and 3.2 GiB of model
        self.assertEqual(claim("--set", "trainer.keep_every=100"), "203Gi")  # three more
        # Half of the moments and no master: 6 bytes per parameter in place of 14.
        self.assertEqual(claim("--set", "optimizer.moments=bfloat16", "--set", "optimizer.master=none"), "57Gi")

    def test_apply(self):
        stub = self.path / "kubectl"
        write_script(stub, f"""[ "$1" = kustomize ] && exec {tool("kubectl")} "$@"
echo "$@" > {self.path}/arguments
cat > {self.path}/applied
exit 3""")
        done = self.experiment("a", "--config", STORIES, "--student", "s", "--apply", "--kubectl", stub)
        self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
        self.assertEqual((self.path / "arguments").read_text(), "apply -f -\n")
        self.assertEqual(len(of_kind(manifests.parse((self.path / "applied").read_text()), "Job")), 1)
