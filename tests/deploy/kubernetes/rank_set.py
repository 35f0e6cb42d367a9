"""The ranks of a rendered JobSet or TrainJob as pods of kubelet.py, and what the controllers of TrainJob, JobSet and Job do.

What differs from a cluster: a rank that would look up the first rank's name in the DNS is given its address, and the port
at which the ranks meet is a free one.
"""

import copy
import re

from manifests import find, get, labels_of, of_kind
from programs import WAIT_S, free_port

INDEX = "batch.kubernetes.io/job-completion-index"


def upsert(container, name, value):
    container["env"] = [each for each in container.get("env", []) if each["name"] != name] + [{"name": name} | value]


def jobset_of(objects):
    """(name, spec) of the JobSet, or of the one that Kubeflow makes of a TrainJob and its runtime."""
    for jobset in of_kind(objects, "JobSet"):
        return jobset["metadata"]["name"], jobset["spec"]
    job = of_kind(objects, "TrainJob")[0]
    name, reference = job["metadata"]["name"], job["spec"]["runtimeRef"]
    runtime = find(objects, reference["kind"], reference["name"])["spec"]
    spec = copy.deepcopy(runtime["template"]["spec"])
    nodes = get(job, "spec", "trainer", "numNodes", default=runtime["mlPolicy"]["numNodes"])
    node = next(each for each in spec["replicatedJobs"] if each["template"]["metadata"]["labels"]
                ["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer")
    node["template"]["spec"] |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
    container = next(each for each in node["template"]["spec"]["template"]["spec"]["containers"] if each["name"] == "node")
    for variable, value in (("PET_NNODES", nodes),
                            ("PET_NPROC_PER_NODE", get(job, "spec", "trainer", "numProcPerNode", default="auto")),
                            ("PET_MASTER_ADDR", f"{name}-{node['name']}-0-0.{name}"), ("PET_MASTER_PORT", 29500)):
        upsert(container, variable, {"value": str(value)})
    upsert(container, "PET_NODE_RANK", {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}})
    return name, spec


def job_failure(spec, codes, disrupted):
    """(reason, message) of the Job's condition, for exit codes by index. `disrupted`: indexes with DisruptionTarget."""
    for index, code in codes.items():
        for place, rule in enumerate(spec["podFailurePolicy"]["rules"]):
            exits = rule.get("onExitCodes")
            if exits and code != 0 and (code in exits["values"]) == (exits["operator"] == "In"):
                what = f"Container {exits['containerName']} for pod taopd/{index} failed with exit code {code}"
            elif index in disrupted and any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
                what = f"Pod taopd/{index} has condition DisruptionTarget"
            else:
                continue
            assert rule["action"] == "FailJob", rule
            return "PodFailurePolicy", f"{what} matching FailJob rule at index {place}"
    assert spec["backoffLimit"] == 0
    return "BackoffLimitExceeded", "Job has reached the specified backoff limit"


class RankSet:
    """All ranks of one experiment, attempt after attempt."""

    def __init__(self, objects, make_pod):
        """`make_pod`: pod template -> Pod."""
        self.name, self.spec = jobset_of(objects)
        assert self.spec["network"]["enableDNSHostnames"] and self.spec["network"]["publishNotReadyAddresses"]
        (self.replicated,) = self.spec["replicatedJobs"]
        self.job = self.replicated["template"]["spec"]
        assert self.job["completionMode"] == "Indexed" and self.job["completions"] == self.job["parallelism"]
        self.size = self.job["completions"]
        self.make_pod = make_pod
        self.restarts = self.counted = 0
        self.pods = []

    def _template(self, index):
        template = copy.deepcopy(self.job["template"])
        template["metadata"]["annotations"] = template["metadata"].get("annotations", {}) | {
            "jobset.sigs.k8s.io/jobset-name": self.name, "jobset.sigs.k8s.io/restart-attempt": str(self.restarts),
            INDEX: str(index)}
        assert labels_of(template)["app.kubernetes.io/instance"]
        upsert(template["spec"]["containers"][0], "JOB_COMPLETION_INDEX", {"value": str(index)})  # by the Job's controller
        return template

    def start(self):
        self.pods = [self.make_pod(self._template(index)) for index in range(self.size)]
        first = f"{self.name}-{self.replicated['name']}-0-0.{self.name}"
        port = str(free_port(self.pods[0].address))
        for pod in self.pods:
            for name, value in pod.environment.items():
                if value == first:
                    pod.environment[name] = self.pods[0].address
                elif name.endswith("MASTER_PORT"):
                    pod.environment[name] = port
            assert first not in str(pod.command) + str(pod.environment)
            # 0.0.0.0, which is one setting for all ranks. The others do not serve.
            pod.command = [argument.replace(pod.address, self.pods[0].address) for argument in pod.command]
            pod.start()

    def wait(self, wait_s=WAIT_S):
        """Waits until all ranks have ended by themselves. Returns the exit codes by rank, as the kubelet reports them."""
        codes = [pod.process.wait(wait_s) for pod in self.pods]
        for pod in self.pods:
            pod.kill()
        return {index: 128 - code if code < 0 else code for index, code in enumerate(codes)}

    def follow_policy(self, codes, disrupted=()):
        """What the JobSet's controller does after this end. After a restart, the caller starts the ranks."""
        reason, message = job_failure(self.job, codes, disrupted)
        policy = self.spec["failurePolicy"]
        action = "RestartJobSet"
        for rule in policy["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [])
            if reason in rule.get("onJobFailureReasons", [reason]) and \
                    (not patterns or any(re.search(pattern, message) for pattern in patterns)):
                action = rule["action"]
                break
        if action == "RestartJobSet":
            if self.counted == policy["maxRestarts"]:
                return "FailJobSet"
            self.counted += 1
        self.restarts += action != "FailJobSet"
        return action
