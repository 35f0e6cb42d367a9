"""What the admission webhooks and the API server of a real cluster refuse although the schemas allow it.

Each rule names the file and the lines in which its source states it, at these commits:
  kubernetes-sigs/jobset 08dfbdfd                          kubeflow/trainer 8c0f5059
  kubernetes-sigs/kueue ff69552e                           kedacore/keda 8b4f083c
  prometheus-operator/prometheus-operator 6adcebc5         kubernetes/kubernetes 1.31 and newer (by function)
  prometheus-community/helm-charts (by value)
"""

import re

from manifests import get, name_of, of_kind
from rules import rule

MAX_LABEL = 63
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # k8s.io/apimachinery pkg/util/validation: IsDNS1035Label
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # IsDNS1123Subdomain
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
DURATION_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def jobsets(objects):
    """(where, name, spec) of every JobSet, also of those that Kubeflow Trainer makes of a TrainJob and its runtime."""
    for jobset in of_kind(objects, "JobSet"):
        yield name_of(jobset), get(jobset, "metadata", "name"), jobset["spec"]
    jobs = of_kind(objects, "TrainJob")
    for runtime in of_kind(objects, "TrainingRuntime"):
        for job in jobs:
            yield name_of(runtime), get(job, "metadata", "name"), runtime["spec"]["template"]["spec"]


@rule
def jobset_accepts_the_names(objects):
    """jobset pkg/webhooks/jobset_webhook.go:236-257."""
    for where, name, spec in jobsets(objects):
        for each in spec["replicatedJobs"]:
            job = f"{name}-{each['name']}-{each.get('replicas', 1) - 1}"
            completions = get(each, "template", "spec", "completions", default=1)
            for generated in (job, f"{job}-{completions - 1}-abcde"):
                if not DNS_1035.fullmatch(generated) or len(generated) > MAX_LABEL:
                    yield f"{where}: the name {generated} of a Job or pod is not a DNS label"


@rule
def jobset_accepts_the_failure_policy(objects):
    """jobset pkg/webhooks/jobset_webhook.go:83-92, 417-493."""
    reasons = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}
    for where, _, spec in jobsets(objects):
        rules = get(spec, "failurePolicy", "rules", default=[])
        names = [each.get("name", f"failurePolicyRule{i}") for i, each in enumerate(rules)]
        if len(names) != len(set(names)):
            yield f"{where}: two rules have one name"
        for name, each in zip(names, rules):
            if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", name) or len(name) > 128:
                yield f"{where}: {name} is not a valid name of a rule"
            for job in set(each.get("targetReplicatedJobs", [])) - {job["name"] for job in spec["replicatedJobs"]}:
                yield f"{where}: rule {name} is for the job {job}, which is not there"
            for reason in set(each.get("onJobFailureReasons", [])) - reasons:
                yield f"{where}: {reason} is not a reason for a Job's failure"


@rule
def job_accepts_the_pod_failure_policy(objects):
    """kubernetes pkg/apis/batch/validation/validation.go: validateJobSpec, validatePodFailurePolicyRule,
    validatePodFailurePolicyRuleOnExitCodes, validatePodReplacementPolicy."""
    specs = [(name_of(thing), thing["spec"]) for thing in of_kind(objects, "Job")]
    specs += [(where, each["template"]["spec"]) for where, _, spec in jobsets(objects) for each in spec["replicatedJobs"]]
    for where, spec in specs:
        pod = get(spec, "template", "spec", default={})
        names = {each["name"] for each in pod.get("containers", []) + pod.get("initContainers", [])}
        if pod.get("restartPolicy") != "Never":
            yield f"{where}: a pod failure policy needs restartPolicy Never"
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            yield f"{where}: a pod failure policy needs podReplacementPolicy Failed"
        for each in get(spec, "podFailurePolicy", "rules", default=[]):
            exits = each.get("onExitCodes")
            if (exits is None) == (not each.get("onPodConditions")):
                yield f"{where}: a rule needs either exit codes or conditions"
            if exits is None:
                continue
            values = exits.get("values", [])
            if not values or values != sorted(set(values)) or 0 in values:
                yield f"{where}: the exit codes {values} are not in ascending order, or are none"
            if exits.get("containerName") not in names | {None}:
                yield f"{where}: a rule names the container {exits['containerName']}"


@rule
def trainer_accepts_the_runtime(objects):
    """trainer pkg/webhooks/trainingruntime_webhook.go:66-105."""
    containers = {"trainer": "node", "model-initializer": "model-initializer", "dataset-initializer": "dataset-initializer"}
    for runtime in of_kind(objects, "TrainingRuntime"):
        found = False
        for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            step = get(each, "template", "metadata", "labels", ANCESTOR)
            found |= step == "trainer"
            if step not in containers:
                continue
            if each.get("replicas", 1) != 1:
                yield f"{name_of(runtime)}: {each['name']} has several replicas"
            pod = get(each, "template", "spec", "template", "spec", default={})
            if containers[step] not in [container["name"] for container in pod.get("containers", [])]:
                yield f"{name_of(runtime)}: {each['name']} has no container {containers[step]}"
        if not found:  # the ranks would get no PET_* variables (pkg/runtime/framework/plugins/torch/torch.go:116)
            yield f"{name_of(runtime)}: no job is the step trainer"


@rule
def trainer_accepts_the_job(objects):
    """trainer pkg/webhooks/trainjob_webhook.go:114-118, pkg/apis/trainer/v1alpha1/trainjob_types.go:36-37 and 288,
    pkg/runtime/framework/plugins/torch/torch.go:65-77."""
    reserved = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    for job in of_kind(objects, "TrainJob"):
        name, spec = get(job, "metadata", "name"), job["spec"]
        if not DNS_1035.fullmatch(name) or len(name) > MAX_LABEL:
            yield f"{name_of(job)}: its name is not a DNS label that begins with a letter"
        if get(spec, "runtimeRef", "kind") not in ("TrainingRuntime", "ClusterTrainingRuntime") or \
                get(spec, "runtimeRef", "apiGroup", default="trainer.kubeflow.org") != "trainer.kubeflow.org":
            yield f"{name_of(job)}: there are no runtimes of the kind {spec.get('runtimeRef')}"
        trainer = spec.get("trainer", {})
        if trainer.get("numProcPerNode", 1) < 1:
            yield f"{name_of(job)}: {trainer['numProcPerNode']} processes a node"
        for variable in reserved & {each["name"] for each in trainer.get("env", [])}:
            yield f"{name_of(job)}: {variable} is Kubeflow's"


@rule
def kueue_accepts_the_labels(objects):
    """kueue pkg/controller/jobframework/validation.go:146-177 and 235-247, apis/kueue/v1beta2/localqueue_types.go:28-29."""
    queues = {get(queue, "metadata", "name") for queue in of_kind(objects, "LocalQueue")}
    for thing in of_kind(objects, "Job", "JobSet", "TrainJob"):
        labels = get(thing, "metadata", "labels", default={})
        queue = labels.get("kueue.x-k8s.io/queue-name")
        if queue is not None and (not DNS_1123.fullmatch(queue) or queues and queue not in queues):
            yield f"{name_of(thing)}: {queue!r} is not a queue"
        limit = labels.get("kueue.x-k8s.io/max-exec-time-seconds", "1")
        if not re.fullmatch(r"\+?0*[1-9]\d*", limit):
            yield f"{name_of(thing)}: {limit} is not a number of seconds"


@rule
def keda_accepts_the_scaler(objects):
    """keda apis/keda/v1alpha1/scaledobject_types.go:353-397, scaledobject_webhook.go:244-257 and 379-404 (which warn of
    settings that have no effect), scaletriggers_types.go:56-83, pkg/scalers/prometheus_scaler.go:49-53."""
    for scaler in of_kind(objects, "ScaledObject"):
        spec, where = scaler["spec"], name_of(scaler)
        least = spec.get("minReplicaCount", 0)
        if least > spec.get("maxReplicaCount", 100):
            yield f"{where}: fewer at most than at least"
        if spec.get("idleReplicaCount", -1) >= least:
            yield f"{where}: as many when idle as at least"
        if len(f"keda-hpa-{scaler['metadata']['name']}") > MAX_LABEL:
            yield f"{where}: its name is too long"
        if min(spec.get("fallback", {}).get(key, 0) for key in ("failureThreshold", "replicas")) < 0:
            yield f"{where}: its fallback is negative"
        cached = any(trigger.get("useCachedMetrics") for trigger in spec.get("triggers", []))
        if least > 0 and "idleReplicaCount" not in spec:
            for key in {"cooldownPeriod"} | (set() if cached else {"pollingInterval"}):
                if key in spec:
                    yield f"{where}: {key} has no effect with {least} replicas at least"
        names = [trigger["name"] for trigger in spec.get("triggers", []) if trigger.get("name")]
        if not spec.get("triggers") or len(names) != len(set(names)):
            yield f"{where}: no triggers, or two of one name"
        for trigger in spec.get("triggers", []):
            metadata = trigger.get("metadata", {})
            if trigger["type"] == "prometheus" and not (metadata.get("serverAddress") and metadata.get("query") and
                                                        re.fullmatch(r"\d+(\.\d+)?", metadata.get("threshold", ""))):
                yield f"{where}: its trigger needs serverAddress, query and threshold"


def seconds(text):
    return sum(int(number) * DURATION_S[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", text))


@rule
def prometheus_accepts_the_monitors(objects):
    """prometheus-operator pkg/prometheus/promcfg.go:976-993, resource_selector.go:273-289 and
    pkg/prometheus/validation/validator.go:105-124. A monitor that it does not accept is left out without a word."""
    endpoints = [(monitor, endpoint) for monitor in of_kind(objects, "ServiceMonitor", "PodMonitor")
                 for endpoint in monitor["spec"].get("endpoints", monitor["spec"].get("podMetricsEndpoints", []))]
    for monitor, endpoint in endpoints:
        if seconds(endpoint.get("scrapeTimeout", "0s")) > seconds(endpoint.get("interval", "30s")):
            yield f"{name_of(monitor)}: its timeout is longer than its interval"
        tls = endpoint.get("tlsConfig", {})
        if "bearerTokenFile" in endpoint or {"caFile", "certFile", "keyFile"} & set(tls):
            yield f"{name_of(monitor)}: names files of the Prometheus pod"
        for each in endpoint.get("relabelings", []) + endpoint.get("metricRelabelings", []):
            if each.get("action", "replace") == "replace" and \
                    not re.fullmatch(r"[A-Za-z_]([A-Za-z0-9_]|\$\{?\w+\}?)*", each.get("targetLabel", "")):
                yield f"{name_of(monitor)}: {each.get('targetLabel')!r} is not a label"


@rule
def prometheus_accepts_the_rules(objects):
    """prometheus-operator pkg/operator/rules.go:62 and 228-236, whose other half is `promtool check rules`
    (observability_test.py)."""
    for thing in of_kind(objects, "PrometheusRule"):
        size = len(str(thing["spec"]))
        if size > 2**19:
            yield f"{name_of(thing)}: {size} bytes are too many"
        groups = [group["name"] for group in thing["spec"]["groups"]]
        if len(groups) != len(set(groups)):
            yield f"{name_of(thing)}: two groups have one name"


@rule
def prometheus_chooses_the_objects(objects):
    """helm-charts charts/kube-prometheus-stack/values.yaml: ruleSelectorNilUsesHelmValues, serviceMonitorSelectorNilUsesHelmValues,
    podMonitorSelectorNilUsesHelmValues. Prometheus reads what carries the release's name, so all objects must carry the same one."""
    labels = {name_of(thing): get(thing, "metadata", "labels", "release")
              for thing in of_kind(objects, "ServiceMonitor", "PodMonitor", "PrometheusRule")}
    if labels and (None in labels.values() or len(set(labels.values())) != 1):
        yield f"kube-prometheus-stack would not read all of {labels}"
