"""Faults that the rules of policies.py and the schemas must find: one line each."""

import dataclasses
from collections.abc import Callable

from manifests import find, of_kind, workloads


@dataclasses.dataclass
class Fault:
    rule: str
    name: str
    plant: Callable
    overlay: str


FAULTS = []


def teacher(objects):
    return find(objects, "Deployment", "teacher")


def pod(objects, kind="Deployment"):
    return workloads(of_kind(objects, kind))[0][1]["spec"]


def container(objects, kind="Deployment"):
    return pod(objects, kind)["containers"][0]


def named(kind, name):
    return lambda objects: find(objects, kind, name)


def set_in(thing, value, *path):
    for key in path[:-1]:
        thing = thing[key]
    if value is None:
        del thing[path[-1]]
    else:
        thing[path[-1]] = value


TRAINER_POLICY = named("NetworkPolicy", "trainer")  # the only one of the trainer's pods without rollout workers
# (rule, function that finds the object, new value or None to delete, path, overlay)
CHANGES = [
    ("pods_are_restricted", pod, False, "securityContext", "runAsNonRoot"),
    ("pods_are_restricted", pod, 0, "securityContext", "runAsUser"),
    ("pods_are_restricted", pod, None, "securityContext", "seccompProfile"),
    ("pods_are_restricted", pod, True, "hostNetwork"),
    ("containers_are_restricted", container, None, "securityContext", "allowPrivilegeEscalation"),
    ("containers_are_restricted", container, ["NET_RAW"], "securityContext", "capabilities", "drop"),
    ("containers_are_restricted", container, False, "securityContext", "readOnlyRootFilesystem"),
    ("no_token_is_mounted", pod, None, "automountServiceAccountToken"),
    ("no_token_is_mounted", pod, "default", "serviceAccountName"),
    ("namespace_enforces_restricted", named("Namespace", "taopd"), "baseline", "metadata", "labels",
     "pod-security.kubernetes.io/enforce"),
    ("rollout_workers_are_named", named("ScaledObject", "rollout-worker"), 5, "spec", "maxReplicaCount"),
    ("rollout_workers_are_named", named("StatefulSet", "rollout-worker"), "teacher-grpc", "spec", "serviceName"),
    ("rollout_workers_are_named", named("Service", "rollout-worker"), None, "spec", "clusterIP"),
    ("rollout_workers_are_named", named("NetworkPolicy", "rollout-worker"), "false", "spec", "ingress", 0, "from", 0,
     "podSelector", "matchLabels", "taopd/rollout-client"),
    ("rollout_workers_are_named", named("NetworkPolicy", "trainer-rollouts"), [], "spec", "egress"),
    ("disruptions_are_possible", named("PodDisruptionBudget", "rollout-worker"), "other", "spec", "selector", "matchLabels",
     "app.kubernetes.io/name"),
    ("scaler_owns_the_replicas", named("StatefulSet", "rollout-worker"), 2, "spec", "replicas"),
    ("network_is_closed", named("NetworkPolicy", "default-deny"), ["Ingress"], "spec", "policyTypes"),
    ("network_is_closed", TRAINER_POLICY, "other", "spec", "podSelector", "matchLabels",
     "app.kubernetes.io/name"),
    ("network_is_closed", named("NetworkPolicy", "teacher"), [{"ports": []}], "spec", "ingress"),
    ("network_policies_match_something", named("NetworkPolicy", "teacher"), "no-such-app", "spec", "podSelector",
     "matchLabels", "app.kubernetes.io/name"),
    ("network_policies_match_something", named("NetworkPolicy", "teacher"), "grcp", "spec", "ingress", 0, "ports", 0,
     "port"),
    ("trainer_reaches_the_teacher", named("NetworkPolicy", "teacher"), "false", "spec", "ingress", 0, "from", 0,
     "podSelector", "matchLabels", "taopd/teacher-client"),
    ("trainer_reaches_the_teacher", named("NetworkPolicy", "trainer"), [], "spec", "egress"),
    ("gateway_reaches_the_teacher", named("NetworkPolicy", "teacher-epp"), [], "spec", "ingress"),
    ("gateway_reaches_the_teacher", named("NetworkPolicy", "teacher-gateway"), "health", "spec", "ingress", 0, "ports", 0,
     "port"),
    ("trainer_reaches_dns", named("NetworkPolicy", "trainer"), ["kube-system"], "spec", "egress", 0, "to", 0,
     "namespaceSelector", "matchExpressions", 0, "values"),
    ("trainer_reaches_dns", named("NetworkPolicy", "trainer"), "UDP", "spec", "egress", 0, "ports", 1, "protocol"),
    ("resources_are_set", container, None, "resources", "requests", "ephemeral-storage"),
    ("resources_are_set", container, "1Gi", "resources", "limits", "memory"),
    ("resources_are_set", container, "3", "resources", "limits", "nvidia.com/gpu"),
    ("volumes_fit_the_limits", container, "1Gi", "resources", "limits", "ephemeral-storage"),
    ("volumes_fit_the_limits", container, "256Mi", "resources", "requests", "ephemeral-storage"),
    ("volumes_fit_the_limits", lambda objects: pod(objects, "Job")["volumes"][4], {"medium": "Memory", "sizeLimit": "9Gi"},
     "emptyDir"),
    ("cuda_goes_with_a_gpu", container, None, "resources", "limits", "nvidia.com/gpu"),
    ("cuda_goes_with_a_gpu", pod, None, "tolerations"),
    ("cuda_goes_with_a_gpu", container, "1", "resources", "limits", "nvidia.com/gpu"),
    ("cuda_goes_with_a_gpu", container, [], "volumeMounts"),
    ("images_have_versions", container, "taopd-teacher", "image"),
    ("images_have_versions", container, "taopd-teacher:latest", "image"),
    ("names_are_valid", teacher, "Teacher_1", "metadata", "name"),
    ("names_are_valid", teacher, "a b", "metadata", "labels", "app.kubernetes.io/component"),
    ("objects_are_unique_and_have_the_namespace", teacher, "default", "metadata", "namespace"),
    ("references_resolve", container, "teacher-settings", "envFrom", 0, "configMapRef", "name"),
    ("references_resolve", lambda objects: pod(objects, "Job")["volumes"][0], "trainer-config", "configMap", "name"),
    ("references_resolve", named("PersistentVolumeClaim", "runs"), "run", "metadata", "name"),
    ("mounts_have_volumes", container, "weights", "volumeMounts", 0, "name"),
    ("mounts_have_volumes", container, "/tmp", "volumeMounts", 0, "mountPath"),
    ("selectors_select", named("Service", "teacher"), "taopd", "spec", "selector", "app.kubernetes.io/name"),
    ("selectors_select", teacher, "taopd", "spec", "selector", "matchLabels", "app.kubernetes.io/name"),
    ("selectors_select", named("PodDisruptionBudget", "teacher"), "taopd", "spec", "selector", "matchLabels",
     "app.kubernetes.io/name"),
    ("selectors_select", named("InferencePool", "teacher"), {}, "spec", "selector"),
    ("service_ports_exist", named("Service", "teacher"), "https", "spec", "ports", 0, "targetPort"),
    ("service_ports_exist", named("Service", "teacher-grpc"), 443, "spec", "ports", 0, "port"),
    ("monitors_find_their_ports", named("ServiceMonitor", "teacher"), "http", "spec", "endpoints", 0, "port"),
    ("monitors_find_their_ports", named("PodMonitor", "trainer"), "metrics", "spec", "podMetricsEndpoints", 0, "port"),
    ("declared_ports_are_those_of_the_arguments", container, 9000, "ports", 0, "containerPort"),
    ("probes_are_there_and_differ", container, None, "startupProbe"),
    ("probes_are_there_and_differ", container, "status", "livenessProbe", "httpGet", "port"),
    ("probes_are_there_and_differ", container, "/ready", "livenessProbe", "httpGet", "path"),
    ("liveness_sees_a_hung_step", lambda objects: container(objects, "Job"), "/metrics", "livenessProbe", "httpGet", "path"),
    ("liveness_sees_a_hung_step", lambda objects: container(objects, "Job"), 1, "livenessProbe", "failureThreshold"),
    ("liveness_sees_a_hung_step", lambda objects: container(objects, "Job"), 100, "livenessProbe", "failureThreshold"),
    ("startup_fits_the_rollout", teacher, 600, "spec", "progressDeadlineSeconds"),
    ("grace_is_long_enough", pod, 75, "terminationGracePeriodSeconds"),
    ("grace_is_long_enough", lambda objects: pod(objects, "Job"), 299, "terminationGracePeriodSeconds"),
    ("rollout_can_move", teacher, {"maxSurge": 0, "maxUnavailable": 0}, "spec", "strategy", "rollingUpdate"),
    ("rollout_can_move", teacher, {"maxSurge": 1, "maxUnavailable": 0}, "spec", "strategy", "rollingUpdate"),
    ("disruptions_are_possible", named("PodDisruptionBudget", "teacher"), 0, "spec", "maxUnavailable"),
    ("disruptions_are_possible", named("PodDisruptionBudget", "teacher"), None, "spec", "unhealthyPodEvictionPolicy"),
    ("scaler_owns_the_replicas", teacher, 2, "spec", "replicas"),
    ("scaler_owns_the_replicas", named("ScaledObject", "teacher"), "server", "spec", "scaleTargetRef", "name"),
    ("scaler_counts_its_own_namespace", named("ScaledObject", "teacher"), "other", "metadata", "namespace"),
    ("pods_are_spread", pod, None, "topologySpreadConstraints"),
    ("jobs_know_the_exit_codes", named("Job", "trainer"), [64, 65], "spec", "podFailurePolicy", "rules", 0,
     "onExitCodes", "values"),
    ("jobs_know_the_exit_codes", named("Job", "trainer"), "Count", "spec", "podFailurePolicy", "rules", 1, "action"),
    ("jobs_know_the_exit_codes", named("Job", "trainer"), "FailJob", "spec", "podFailurePolicy", "rules", 2, "action"),
    ("job_accepts_the_pod_failure_policy", named("Job", "trainer"), "main", "spec", "podFailurePolicy", "rules", 0,
     "onExitCodes", "containerName"),
    ("job_accepts_the_pod_failure_policy", named("Job", "trainer"), [65, 64], "spec", "podFailurePolicy", "rules", 0,
     "onExitCodes", "values"),
    ("job_accepts_the_pod_failure_policy", named("Job", "trainer"), None, "spec", "podFailurePolicy", "rules", 0,
     "onExitCodes"),
    ("job_accepts_the_pod_failure_policy", named("Job", "trainer"), "TerminatingOrFailed", "spec", "podReplacementPolicy"),
    ("job_accepts_the_pod_failure_policy", lambda objects: pod(objects, "Job"), "OnFailure", "restartPolicy"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), 9, "spec", "minReplicaCount"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), 1, "spec", "idleReplicaCount"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), 30, "spec", "pollingInterval"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), -1, "spec", "fallback", "replicas"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), "many", "spec", "triggers", 0, "metadata", "threshold"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), [], "spec", "triggers"),
    ("keda_accepts_the_scaler", named("ScaledObject", "teacher"), "t" * 60, "metadata", "name"),
    ("prometheus_accepts_the_monitors", named("PodMonitor", "trainer"), "20s", "spec", "podMetricsEndpoints", 0,
     "scrapeTimeout"),
    ("prometheus_accepts_the_monitors", named("PodMonitor", "trainer"), "a-b", "spec", "podMetricsEndpoints", 0,
     "relabelings", 1, "targetLabel"),
    ("prometheus_accepts_the_monitors", named("ServiceMonitor", "teacher"), "/var/run/token", "spec", "endpoints", 0,
     "bearerTokenFile"),
    ("prometheus_accepts_the_rules", named("PrometheusRule", "taopd"), "taopd-trainer", "spec", "groups", 1, "name"),
    ("prometheus_chooses_the_objects", named("PrometheusRule", "taopd"), None, "metadata", "labels", "release"),
    ("prometheus_chooses_the_objects", named("PodMonitor", "trainer"), "other", "metadata", "labels", "release"),
    ("kueue_accepts_the_labels", named("Job", "trainer"), "TAOPD", "metadata", "labels", "kueue.x-k8s.io/queue-name"),
    ("kueue_accepts_the_labels", named("Job", "trainer"), "0", "metadata", "labels",
     "kueue.x-k8s.io/max-exec-time-seconds"),
    ("jobs_end_and_resume", named("Job", "trainer"), None, "spec", "podReplacementPolicy"),
    ("jobs_end_and_resume", named("Job", "trainer"), None, "spec", "ttlSecondsAfterFinished"),
    ("jobs_end_and_resume", lambda objects: pod(objects, "Job")["volumes"], {"name": "runs", "emptyDir": {}}, 3),
    ("config_maps_are_immutable", lambda objects: of_kind(objects, "ConfigMap")[0], False, "immutable"),
]
# The same, in the overlays of several ranks.
JOBSET, TRAINJOB = named("JobSet", "trainer"), named("TrainJob", "trainer")
RUNTIME = named("TrainingRuntime", "trainer")
RUNTIME_JOB = ("spec", "template", "spec", "replicatedJobs", 0)
RANK_CHANGES = [
    ("jobset_accepts_the_failure_policy", JOBSET, "needs-a-person", "spec", "failurePolicy", "rules", 0, "name"),
    ("jobset_accepts_the_failure_policy", JOBSET, "interrupted", "spec", "failurePolicy", "rules", 0, "name"),
    ("jobset_accepts_the_failure_policy", JOBSET, ["Evicted"], "spec", "failurePolicy", "rules", 0, "onJobFailureReasons"),
    ("jobset_accepts_the_failure_policy", JOBSET, ["node"], "spec", "failurePolicy", "rules", 0, "targetReplicatedJobs"),
    ("jobset_accepts_the_names", JOBSET, "t" * 50, "metadata", "name"),
    ("jobset_accepts_the_names", JOBSET, "1-trainer", "metadata", "name"),
    ("job_accepts_the_pod_failure_policy", JOBSET, [75, 0], "spec", "replicatedJobs", 0, "template", "spec",
     "podFailurePolicy", "rules", 2, "onExitCodes", "values"),
    ("kueue_accepts_the_labels", JOBSET, "math", "metadata", "labels", "kueue.x-k8s.io/queue-name"),
    ("jobset_accepts_the_failure_policy", RUNTIME, "a-b", "spec", "template", "spec", "failurePolicy", "rules", 1, "name"),
    ("trainer_accepts_the_runtime", RUNTIME, 2, *RUNTIME_JOB, "replicas"),
    ("trainer_accepts_the_runtime", RUNTIME, {}, *RUNTIME_JOB, "template", "metadata"),
    ("trainer_accepts_the_runtime", RUNTIME, "trainer", *RUNTIME_JOB, "template", "spec", "template", "spec", "containers",
     0, "name"),
    ("trainer_accepts_the_job", TRAINJOB, "1-trainer", "metadata", "name"),
    ("trainer_accepts_the_job", TRAINJOB, "JobSet", "spec", "runtimeRef", "kind"),
    ("trainer_accepts_the_job", TRAINJOB, 0, "spec", "trainer", "numProcPerNode"),
    ("trainer_accepts_the_job", TRAINJOB, [{"name": "PET_NNODES", "value": "2"}], "spec", "trainer", "env"),
]
OVERLAYS = {TRAINER_POLICY: "laptop", JOBSET: "cluster", RUNTIME: "cluster/trainjob", TRAINJOB: "cluster/trainjob"}
for rule, finder, value, *path in CHANGES + RANK_CHANGES:
    FAULTS.append(Fault(rule, f"{'.'.join(map(str, path))} = {value}",
                        lambda objects, finder=finder, value=value, path=path: set_in(finder(objects), value, *path),
                        OVERLAYS.get(finder, "all components")))


def first_volume(pod, name):
    return next(volume for volume in pod["volumes"] if volume["name"] == name)


def trainer_variable(objects, name):
    return next(variable for variable in container(objects, "Job")["env"] if variable["name"] == name)


def set_no_delay(objects):
    args = container(objects)["args"]
    args[args.index("--drain-delay=10")] = "--drain-delay=0"


def long_steps_of_the_configuration(objects):
    config = next(thing for thing in of_kind(objects, "ConfigMap") if "train.yaml" in thing["data"])
    config["data"]["train.yaml"] += "\ntrainer: {stop_grace_s: 600}\n"


def key_that_is_not_mounted(objects):
    container(objects)["volumeMounts"] = [mount for mount in container(objects)["volumeMounts"] if mount["name"] != "tls"]


def ranks_of(objects):
    return of_kind(objects, "JobSet")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]


# (rule, name, what plants the fault)
OTHERS = [
    ("pods_are_restricted", "host path",
     lambda objects: pod(objects)["volumes"].append({"name": "root", "hostPath": {"path": "/"}})),
    ("no_secret_is_stored", "secret", lambda objects: objects.append({"kind": "Secret", "metadata": {"name": "keys"}})),
    ("no_secret_is_stored", "secret in the environment",
     lambda objects: container(objects)["env"].append({"name": "TAOPD_API_KEY", "value": "x"})),
    ("no_secret_is_stored", "token in the manifest",
     lambda objects: trainer_variable(objects, "TAOPD_CONTROL_TOKEN").update({"value": "x", "valueFrom": None})),
    ("objects_are_unique_and_have_the_namespace", "twice", lambda objects: objects.append(dict(teacher(objects)))),
    ("volumes_fit_the_limits", "unbounded", lambda objects: set_in(first_volume(pod(objects), "tmp"), {}, "emptyDir")),
    ("mounts_have_volumes", "unused volume",
     lambda objects: pod(objects)["volumes"].append({"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}})),
    ("variables_are_defined", "undefined argument", lambda objects: container(objects)["args"].append("--dtype=$(DTYP)")),
    ("disruptions_are_possible", "no budget",
     lambda objects: objects.remove(find(objects, "PodDisruptionBudget", "teacher"))),
    ("jobs_end_and_resume", "no resume", lambda objects: container(objects, "Job")["args"].remove("--resume=auto")),
    ("the_teacher_address_is_a_service", "wrong port",
     lambda objects: trainer_variable(objects, "TEACHER_ENDPOINT").update({"value": "grpc://teacher-grpc:50052"})),
    ("the_teacher_address_is_a_service", "one connection",
     lambda objects: set_in(find(objects, "Service", "teacher-grpc"), None, "spec", "clusterIP")),
    ("grace_is_long_enough", "no delay", set_no_delay),
    ("grace_is_long_enough", "long steps",
     lambda objects: container(objects, "Job")["args"].append("--set=trainer.stop_grace_s=600")),
    ("liveness_sees_a_hung_step", "no stall timeout",
     lambda objects: container(objects, "Job")["args"].append("--set=trainer.stall_timeout_s=0")),
    ("both_ends_encrypt_or_neither", "plain trainer",
     lambda objects: trainer_variable(objects, "TEACHER_ENDPOINT").update({"value": "grpc://teacher-grpc:50051"})),
    ("both_ends_encrypt_or_neither", "trainer without a key",
     lambda objects: container(objects, "Job")["args"].remove("--set=teacher.api_key_file=/run/taopd/api-key/key")),
    ("secret_files_are_mounted", "key that is not mounted", key_that_is_not_mounted),
    ("secret_files_are_mounted", "key for everybody",
     lambda objects: set_in(first_volume(pod(objects, "Job"), "tls"), 0o444, "secret", "defaultMode")),
]
OTHERS_OF_LAPTOP = [
    ("scaler_owns_the_replicas", "nobody scales", lambda objects: set_in(teacher(objects), None, "spec", "replicas")),
    ("both_ends_encrypt_or_neither", "teacher alone demands certificates",
     lambda objects: container(objects)["args"].append("--ssl-ca-certs=/run/taopd/tls/ca.crt")),
]
OTHERS_OF_CLUSTER = [
    ("variables_are_defined", "used before defined",
     lambda objects: container(objects, "JobSet")["env"].sort(key=lambda variable: variable["name"] == "JOBSET_NAME")),
    ("jobs_know_the_exit_codes", "message pattern",
     lambda objects: set_in(JOBSET(objects), ["exit code 64$"], "spec", "failurePolicy", "rules", 0,
                            "onJobFailureMessagePatterns")),
    ("grace_is_long_enough", "long steps of the configuration", long_steps_of_the_configuration),
    ("ranks_agree", "more pods than ranks", lambda objects: ranks_of(objects).update({"completions": 4, "parallelism": 4})),
    ("ranks_agree", "no index", lambda objects: set_in(ranks_of(objects), None, "completionMode")),
    ("ranks_meet", "no network", lambda objects: set_in(JOBSET(objects), None, "spec", "network")),
]
for overlay, others in (("all components", OTHERS), ("laptop", OTHERS_OF_LAPTOP), ("cluster", OTHERS_OF_CLUSTER)):
    FAULTS += [Fault(rule, name, plant, overlay) for rule, name, plant in others]
for overlay, kind in (("cluster", "JobSet"), ("cluster/trainjob", "TrainingRuntime")):
    FAULTS += [
        Fault("probes_are_there_and_differ", "liveness alone", lambda objects, kind=kind: container(objects, kind).update(
            {"livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}}}), overlay),
        Fault("ranks_meet", "no port", lambda objects, kind=kind: container(objects, kind)["env"].pop(), overlay),
        Fault("ranks_meet", "a disk of one node",
              lambda objects: set_in(find(objects, "PersistentVolumeClaim", "runs"), ["ReadWriteOnce"], "spec", "accessModes"),
              overlay)]


def unknown_field(*path):
    return lambda thing: set_in(thing, 1, *path, "bogusField")


def old_version(version):
    """A version of the API that is not served any more, or soon will not be."""
    return lambda thing: thing.update({"apiVersion": version})


def wrong_type(*path):
    return lambda thing: set_in(thing, "three", *path)


JOBSET_SPEC = ("spec", "replicatedJobs", 0, "template", "spec")
RUNTIME_SPEC = ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec")
SCHEMA_FAULTS = [
    ("Deployment", unknown_field("spec", "template", "spec", "containers", 0)),
    ("Deployment", wrong_type("spec", "minReadySeconds")),
    ("Job", unknown_field("spec", "podFailurePolicy", "rules", 0)),
    ("Service", wrong_type("spec", "ports", 0, "port")),
    ("NetworkPolicy", unknown_field("spec")),
    ("PodDisruptionBudget", unknown_field("spec")),
    ("JobSet", unknown_field(*JOBSET_SPEC, "template", "spec", "containers", 0)),
    ("JobSet", wrong_type("spec", "failurePolicy", "maxRestarts")),
    ("TrainingRuntime", unknown_field(*RUNTIME_SPEC, "template", "spec")),
    ("TrainJob", unknown_field("spec", "trainer")),
    ("TrainJob", wrong_type("spec", "trainer", "numNodes")),
    ("ScaledObject", unknown_field("spec", "fallback")),
    ("ScaledObject", wrong_type("spec", "maxReplicaCount")),
    ("ServiceMonitor", unknown_field("spec", "endpoints", 0)),
    ("PodMonitor", unknown_field("spec")),
    ("InferencePool", unknown_field("spec", "endpointPickerRef")),
    ("InferencePool", wrong_type("spec", "targetPorts", 0, "number")),
    ("InferencePool", wrong_type("spec", "endpointPickerRef", "failureMode")),
    ("InferencePool", lambda thing: thing["spec"]["endpointPickerRef"].pop("port")),
    ("HTTPRoute", unknown_field("spec", "rules", 0)),
    ("HTTPRoute", wrong_type("spec", "rules", 0, "timeouts", "request")),
    ("HTTPRoute", lambda thing: thing["spec"]["rules"][0]["backendRefs"].append({"kind": "Service"})),
    ("PodDisruptionBudget", old_version("policy/v1beta1")),  # until Kubernetes 1.24
    ("InferencePool", old_version("inference.networking.x-k8s.io/v1alpha2")),  # until 1.0 of the inference extension
    ("LocalQueue", old_version("kueue.x-k8s.io/v1beta1")),  # until Kueue 0.19
    ("LocalQueue", unknown_field("spec")),
    ("LocalQueue", lambda thing: thing["spec"].pop("clusterQueue")),
]
