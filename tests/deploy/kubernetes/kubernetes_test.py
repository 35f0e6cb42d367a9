"""The manifests: every overlay renders, keeps the API's schemas and our rules, and says what the programs understand."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import faults
import manifests
import policies
import rules
import schemas
from environment import output_of, project_version, run, write_script
from manifests import all_containers, all_sets, everything, find, get, render

RULES_FOR_PODS = ("pods_are_restricted", "containers_are_restricted", "resources_are_set", "mounts_have_volumes",
                  "images_have_versions", "references_resolve")


def flags_of(program):
    arguments = ("train", "--help") if program == "taopd-trainer" else ("--help",)
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", output_of(program, *arguments)))


def settings_of_trainer():
    return set(re.findall(r"^\| `([\w.]+)` \|", output_of("taopd-trainer", "config", "train"), re.M))


def unknown_arguments(objects):
    """Arguments that the program of the container does not have."""
    unknown = []
    for where, container in all_containers(objects, init=False):
        program = container["command"][0]
        known = flags_of(program)
        for argument in container["args"]:
            flag, _, value = argument.partition("=")
            if flag.startswith("--") and flag not in known:
                unknown.append(f"{where}: {flag}")
            if flag == "--set" and value.partition("=")[0] not in settings_of_trainer():
                unknown.append(f"{where}: {value}")
    return unknown


class ManifestsTest(unittest.TestCase):
    maxDiff = None

    def test_schemas(self):
        for name, objects in all_sets():
            with self.subTest(name):
                self.assertEqual(schemas.findings(objects), [])

    def test_policies(self):
        for name, objects in all_sets():
            with self.subTest(name):
                self.assertEqual(policies.findings(objects), [])

    def test_parts_stand_alone(self):
        """What deploy/experiment builds on: an overlay's teacher and its experiment by themselves."""
        for part in ("laptop/storage", "laptop/teacher", "laptop/experiment", "single-gpu/teacher",
                     "single-gpu/experiment", "cluster/storage", "cluster/teacher", "cluster/jobset", "cluster/trainjob"):
            with self.subTest(part):
                self.assertEqual(policies.findings(render(part)), [])

    def test_loader(self):
        """The pod to copy through keeps the schemas and the rules for pods, and can write the volumes."""
        objects = manifests.kustomize(manifests.KUBERNETES / "base/loader")
        self.assertEqual(schemas.findings(objects), [])
        pod = objects[0]
        job = {"kind": "Job", "metadata": pod["metadata"], "spec": {"template": pod}}
        self.assertEqual(policies.findings([job], RULES_FOR_PODS), [])
        self.assertFalse([mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount.get("readOnly")])

    def test_download(self):
        """The Job that downloads a model keeps the schemas and the rules for pods, and reaches DNS."""
        objects = manifests.kustomize(manifests.KUBERNETES / "base/download")
        self.assertEqual(schemas.findings(objects), [])
        names = (*RULES_FOR_PODS, "trainer_reaches_dns", "network_is_closed", "network_policies_match_something",
                 "volumes_fit_the_limits", "secret_files_are_mounted", "job_accepts_the_pod_failure_policy")
        self.assertEqual(policies.findings(objects, names), [])

    def test_fetch_model(self):
        """The script of that Job: from a hub, from a bucket, after an interruption, and what it refuses."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            for program in ("hf", "aws"):  # the place is the sixth word of both
                write_script(path / program, f'echo "{program} $*" >> {path}/asked\n'
                                             f'mkdir -p "$6/.cache" && cp -r {path}/source/. "$6"')
            (path / "source").mkdir()

            def fetch(source, target="teacher"):
                return run(["sh", manifests.KUBERNETES / "base/download/fetch-model.sh"],
                           env={"PATH": f"{path}:/usr/bin:/bin", "MODELS_DIR": str(path / "models"), "SOURCE": source, "TARGET": target})
            self.assertEqual(fetch("hf://a/b").returncode, 65)  # it has no config.json
            self.assertFalse((path / "models/teacher").exists())
            (path / "source/config.json").write_text("{}")
            subprocess.run("sha256sum config.json > SHA256SUMS", shell=True, cwd=path / "source", check=True)
            (path / "source/config.json").write_text("{} ")
            self.assertEqual(fetch("hf://a/b").returncode, 1)  # a byte is damaged
            (path / "source/config.json").write_text("{}")
            self.assertEqual(fetch("hf://a/b@v2").returncode, 0)
            self.assertEqual(sorted(each.name for each in (path / "models/teacher").iterdir()), ["SHA256SUMS", "config.json"])
            asked = (path / "asked").read_text().splitlines()
            self.assertIn(f"hf download a/b --revision v2 --local-dir {path}/models/teacher.part --exclude", asked[-1])
            self.assertEqual(fetch("hf://a/b").returncode, 0)  # it is there: nothing is asked
            self.assertEqual(fetch("s3://bucket/model", "student").returncode, 0)
            self.assertEqual((path / "asked").read_text().splitlines()[len(asked):],
                             [f"aws s3 sync --delete --no-progress s3://bucket/model {path}/models/student.part"])
            self.assertEqual(fetch("https://a/b", "other").returncode, 64)

    def test_flags(self):
        for name, objects in all_sets():
            with self.subTest(name):
                self.assertEqual(unknown_arguments(objects), [])

    def test_settings_are_used(self):
        """Each line of settings.env reaches an argument."""
        objects = render("laptop")
        settings = next(thing for thing in objects if thing["metadata"]["name"].startswith("teacher-settings"))
        arguments = " ".join(find(objects, "Deployment", "teacher")["spec"]["template"]["spec"]["containers"][0]["args"])
        self.assertEqual([name for name in settings["data"] if f"$({name})" not in arguments], [])

    def test_versions(self):
        """Image tags carry the version of CMakeLists.txt."""
        for name, objects in all_sets():
            for where, container in all_containers(objects, init=False):
                tag = container["image"].rpartition(":")[2]
                self.assertEqual(tag.partition("-")[0], project_version(), f"{name}: {where}")

    def test_no_registry(self):
        for path in (manifests.ROOT / "deploy").rglob("*.yaml"):
            images = re.findall(r"^\s*(?:image|newName): *(\S+)", path.read_text(encoding="ascii"), re.M)
            self.assertEqual([image for image in images if "/" in image], [], path)

    def test_what_components_change(self):
        """JSON patches without a target do nothing and say nothing: each component's effect is looked for."""
        objects = everything()
        teacher = find(objects, "Deployment", "teacher")["spec"]["template"]["spec"]
        arguments = teacher["containers"][0]["args"]
        for flag in ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs", "--api-key-file"):
            path = rules.flag(teacher["containers"][0], flag[2:])
            self.assertIsNotNone(path, arguments)
            mounts = [mount["mountPath"] for mount in teacher["containers"][0]["volumeMounts"]]
            self.assertTrue(any(path.startswith(mount + "/") for mount in mounts), (path, mounts))
        self.assertEqual(get(teacher, "initContainers", 0, "name"), "copy-model")
        trainer = find(objects, "Job", "trainer")["spec"]["template"]
        self.assertIn("rollout.endpoints=[grpc://rollout-worker-0.", " ".join(trainer["spec"]["containers"][0]["args"]))
        self.assertEqual(trainer["metadata"]["labels"]["taopd/rollout-client"], "true")
        secrets = {each["name"]: get(each, "valueFrom", "secretKeyRef") for each in trainer["spec"]["containers"][0]["env"]}
        self.assertEqual(secrets["TAOPD_RANK_SECRET"], {"name": "trainer-ranks", "key": "secret"})
        workers = find(objects, "StatefulSet", "rollout-worker")["spec"]["template"]["spec"]["containers"][0]
        self.assertIn("--trainable", workers["args"])
        self.assertEqual(workers["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(get(find(objects, "Job", "trainer"), "metadata", "labels", "kueue.x-k8s.io/queue-name"), "taopd")
        self.assertEqual(find(objects, "Service", "teacher")["spec"]["ports"][0]["appProtocol"], "https")
        self.assertIsNone(find(objects, "Service", "teacher-grpc")["spec"]["ports"][0].get("appProtocol"))
        mounted = {mount["mountPath"]: mount["name"] for mount in teacher["containers"][0]["volumeMounts"]}
        self.assertEqual(mounted["/models"], "local-models")
        # Only the first rank, and the pod of a Job, which has no index, have the page of metrics.
        (index,) = [each for each in find(objects, "PodMonitor", "trainer")["spec"]["podMetricsEndpoints"][0]["relabelings"]
                    if each.get("action") == "keep"]
        self.assertIn("job_completion_index", index["sourceLabels"][0])
        self.assertEqual([bool(re.fullmatch(index["regex"], each)) for each in ("", "0", "1", "10")], [True, True, False, False])
        for kind, overlay in (("JobSet", "cluster"), ("TrainJob", "cluster/trainjob")):
            job = find(render(overlay), kind, "trainer")
            self.assertEqual(get(job, "metadata", "labels", "kueue.x-k8s.io/queue-name"), "taopd", kind)

    def test_pods_of_job_and_jobset_are_the_same(self):
        """The JobSet's and the TrainJob's pods are the Job's, apart from what ranks need."""
        job = manifests.workloads(render("single-gpu/experiment"))[0][1]["spec"]
        jobset = manifests.workloads(render("cluster/jobset"))[0][1]["spec"]
        runtime = manifests.workloads(render("cluster/trainjob"))[0][1]["spec"]
        ranks = {"JOBSET_NAME", "RESTART_ATTEMPT", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
        container = jobset["containers"][0]
        self.assertEqual({variable["name"] for variable in container["env"]} & ranks, ranks)
        for each in (container, runtime["containers"][0]):
            each["env"] = [variable for variable in each["env"] if variable["name"] not in ranks]
        container["ports"] = [port for port in container["ports"] if port["name"] != "rendezvous"]
        runtime["containers"][0]["name"] = "trainer"
        for probe in ("startupProbe", "livenessProbe"):
            del job["containers"][0][probe]
        self.assertEqual(jobset, job)
        self.assertEqual(runtime, job)

    def test_four_ranks(self):
        """The number of ranks is one number of ranks.yaml; everything else follows."""
        with tempfile.TemporaryDirectory() as directory:
            tree = pathlib.Path(directory, "deploy/kubernetes")
            shutil.copytree(manifests.KUBERNETES, tree)
            ranks = tree / "overlays/cluster/jobset/ranks.yaml"
            text = ranks.read_text()
            self.assertEqual(text.count("completions: 2"), 1)
            ranks.write_text(text.replace("completions: 2", "completions: 4"))
            objects = manifests.kustomize(tree / "overlays/cluster/jobset")
        self.assertEqual(policies.findings(objects), [])
        job = find(objects, "JobSet", "trainer")["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.assertEqual((job["completions"], job["parallelism"]), (4, 4))
        self.assertIn({"name": "PET_NNODES", "value": "4"}, job["template"]["spec"]["containers"][0]["env"])

    def test_another_namespace(self):
        """The namespace is one value of an overlay's settings."""
        for overlay in ("laptop", "single-gpu", "cluster"):
            with self.subTest(overlay), tempfile.TemporaryDirectory() as directory:
                shutil.copytree(manifests.KUBERNETES, pathlib.Path(directory, "deploy/kubernetes"))
                shutil.copytree(manifests.KUBERNETES.parent / "observability",
                                pathlib.Path(directory, "deploy/observability"))
                path = pathlib.Path(directory, "deploy/kubernetes/overlays", overlay)
                settings = path / "settings/kustomization.yaml"
                settings.write_text(settings.read_text().replace("namespace: taopd", "namespace: math"))
                objects = manifests.kustomize(path)
                self.assertEqual(policies.findings(objects), [])
                self.assertEqual(find(objects, "Namespace", "math")["kind"], "Namespace")


class PlantedFaultsTest(unittest.TestCase):
    """Each rule finds the fault that it is for, and nothing without it."""

    def test_every_rule_has_a_fault(self):
        self.assertEqual(sorted(set(policies.RULES) - {fault.rule for fault in faults.FAULTS}), [])

    def test_rules_of_others_name_their_source(self):
        """A rule of a webhook, an operator or the kubelet names the file that has it; the faults that such rules find are counted."""
        of_others = {name for name, check in policies.RULES.items() if re.search(r"[\w-]+/[\w./-]+\.(go|yaml)\b", check.__doc__ or "")}
        self.assertEqual({name for name, check in policies.RULES.items() if check.__module__ == "webhook_rules"} - of_others, set())
        self.assertGreaterEqual(sum(fault.rule in of_others for fault in faults.FAULTS), 25)

    def test_policies(self):
        for fault in faults.FAULTS:
            with self.subTest(rule=fault.rule, fault=fault.name):
                objects = everything() if fault.overlay == "all components" else render(fault.overlay)
                self.assertEqual(policies.findings(objects, [fault.rule]), [])
                fault.plant(objects)
                self.assertNotEqual(policies.findings(objects, [fault.rule]), [])

    def test_schemas(self):
        for kind, plant in faults.SCHEMA_FAULTS:
            with self.subTest(kind=kind):
                objects = everything() + render("cluster") + render("cluster/trainjob")
                thing = next(thing for thing in objects if thing["kind"] == kind)
                self.assertEqual(schemas.findings([thing]), [])
                plant(thing)
                self.assertNotEqual(schemas.findings([thing]), [])

    def test_flags(self):
        objects = render("laptop")
        for kind in ("Deployment", "Job"):
            workload = manifests.of_kind(objects, kind)[0]
            workload["spec"]["template"]["spec"]["containers"][0]["args"] += ["--max-model-length=3"]
        find(objects, "Job", "trainer")["spec"]["template"]["spec"]["containers"][0]["args"] += [
            "--set=trainer.step=3"]
        self.assertEqual(len(unknown_arguments(objects)), 3)
