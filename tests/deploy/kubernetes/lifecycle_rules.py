"""Rules of starting, stopping, scaling and failing."""

import functools
import re

from environment import ROOT, module
from manifests import SERVERS, all_containers, containers, get, labels_of, matches, name_of, of_kind, workloads
from rules import flag, rule

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@rule
def probes_are_there_and_differ(objects):
    for thing, template in workloads(objects):
        for container in containers(template, init=False):
            where = f"{name_of(thing)}: {container['name']}"
            if thing["kind"] not in (*SERVERS, "Job"):
                if any(probe in container for probe in PROBES):
                    yield f"{where}: only the first of several ranks answers probes"
                continue
            wanted = PROBES if thing["kind"] in SERVERS else ("startupProbe", "livenessProbe")
            names = {port.get("name") for port in container.get("ports", [])}
            for probe in wanted:
                if probe not in container:
                    yield f"{where}: has no {probe}"
                elif get(container, probe, "httpGet", "port") not in names:
                    yield f"{where}: {probe} asks a port that the container does not declare"
            readiness, liveness = (get(container, probe, "httpGet", "path") for probe in PROBES[1:])
            if readiness is not None and readiness == liveness:
                yield f"{where}: a server that is only not ready would be killed"


@rule
def liveness_sees_a_hung_step(objects):
    """The page of a trainer that makes no progress says 503 at /healthz after trainer.stall_timeout_s (docs/run-control.md). A busy
    machine may take a few seconds to answer; a probe must outlast that, and end a hung run within ten minutes more."""
    for thing, template in workloads(objects):
        for container in containers(template, init=False):
            probe = container.get("livenessProbe")
            if thing["kind"] != "Job" or probe is None or "--resume=auto" not in container.get("args", []):
                continue
            if get(probe, "httpGet", "path") != "/healthz":
                yield f"{name_of(thing)}: its liveness does not depend on the step"
            if not 60 <= probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3) <= 600:
                yield f"{name_of(thing)}: its liveness probe acts too early or too late"
            if settings_of(container).get("trainer.stall_timeout_s") == "0":
                yield f"{name_of(thing)}: a hung step counts as alive"


@rule
def startup_fits_the_rollout(objects):
    for deployment in of_kind(objects, "Deployment"):
        for container in containers(deployment["spec"]["template"], init=False):
            probe = container.get("startupProbe", {})
            seconds = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
            if seconds >= deployment["spec"].get("progressDeadlineSeconds", 600):
                yield f"{name_of(deployment)}: the rollout fails before the startup probe does"


CHECKPOINT_S = 60  # the least that a checkpoint gets, at the end of a stop


@functools.cache
def default_of(setting):
    text = (ROOT / "docs/configuration.md").read_text(encoding="ascii")
    return float(re.search(rf"^\| `{re.escape(setting)}` \| \w+ \| `([\d.]+)` \|", text, re.M)[1])


def stop_grace_s(objects, container):
    """trainer.stop_grace_s of a container: its arguments', else its configuration's, else the default."""
    stated = settings_of(container).get("trainer.stop_grace_s")
    for thing in of_kind(objects, "ConfigMap"):
        config = module("yaml").safe_load(get(thing, "data", "train.yaml", default="{}"))
        stated = stated or get(config, "trainer", "stop_grace_s")
    return float(stated or default_of("trainer.stop_grace_s"))


@rule
def grace_is_long_enough(objects):
    """The teacher: preStop + --drain-delay + --shutdown-timeout + 5 s to end < terminationGracePeriodSeconds. The trainer:
    trainer.stop_grace_s, by which it ends or cuts the step, and a checkpoint (docs/run-control.md)."""
    for thing, template in workloads(objects):
        grace = template.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        for container in containers(template, init=False):
            if container.get("command") == ["taopd-teacher"]:
                sleep = get(container, "lifecycle", "preStop", "sleep", "seconds", default=0)
                drain, finish = (float(flag(container, name) or 0) for name in ("drain-delay", "shutdown-timeout"))
                if sleep + drain + finish + 5 > grace:
                    yield f"{name_of(thing)}: {sleep} + {drain} + {finish} s do not fit into {grace} s"
                period = get(container, "readinessProbe", "periodSeconds", default=10)
                failures = get(container, "readinessProbe", "failureThreshold", default=3)
                if sleep + drain < period * failures:
                    yield f"{name_of(thing)}: stops accepting before its readiness probe has failed"
            elif stop_grace_s(objects, container) + CHECKPOINT_S > grace:
                yield f"{name_of(thing)}: trainer.stop_grace_s and a checkpoint do not fit into {grace} s"


@rule
def rollout_can_move(objects):
    for deployment in of_kind(objects, "Deployment"):
        rolling = get(deployment, "spec", "strategy", "rollingUpdate", default={})
        if rolling.get("maxSurge") == 0 and rolling.get("maxUnavailable") == 0:
            yield f"{name_of(deployment)}: may neither add nor remove a pod"
        if not rolling:
            yield f"{name_of(deployment)}: says nothing about rollouts"
        if "nvidia.com/gpu" in str(get(deployment, "spec", "template", "spec", "containers")) and \
                rolling.get("maxSurge") != 0:
            yield f"{name_of(deployment)}: a rollout waits for a GPU that nobody has"


@rule
def disruptions_are_possible(objects):
    for budget in of_kind(objects, "PodDisruptionBudget"):
        spec = budget["spec"]
        if spec.get("maxUnavailable") in (None, 0, "0%") or "minAvailable" in spec:
            yield f"{name_of(budget)}: no node can be drained"
        if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name_of(budget)}: pods that are not healthy hold up a drain"
    for deployment in of_kind(objects, *SERVERS):
        if not any(matches(budget["spec"]["selector"], labels_of(deployment["spec"]["template"]))
                   for budget in of_kind(objects, "PodDisruptionBudget")):
            yield f"{name_of(deployment)}: has no disruption budget"


@rule
def scaler_owns_the_replicas(objects):
    targets = {get(scaler, "spec", "scaleTargetRef", "name") for scaler in of_kind(objects, "ScaledObject")}
    names = {thing["metadata"]["name"] for thing in of_kind(objects, *SERVERS)}
    for target in sorted(targets - names):
        yield f"ScaledObject: there are no servers {target}"
    for deployment in of_kind(objects, *SERVERS):
        if (deployment["metadata"]["name"] in targets) == ("replicas" in deployment["spec"]):
            yield f"{name_of(deployment)}: two or none decide on its replicas"


@rule
def scaler_counts_its_own_namespace(objects):
    for scaler in of_kind(objects, "ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            named = re.findall(r'namespace="([^"]*)"', get(trigger, "metadata", "query", default=""))
            if named != [get(scaler, "metadata", "namespace")]:
                yield f"{name_of(scaler)}: counts the namespaces {named}"


@rule
def pods_are_spread(objects):
    for deployment in of_kind(objects, *SERVERS):
        spread = get(deployment, "spec", "template", "spec", "topologySpreadConstraints", default=[])
        if not any(matches(each.get("labelSelector"), labels_of(deployment["spec"]["template"])) for each in spread):
            yield f"{name_of(deployment)}: its pods may all be on one node"


def job_specs(objects):
    for thing in of_kind(objects, "Job", "JobSet", "TrainingRuntime"):
        if thing["kind"] == "Job":
            yield thing, thing["spec"], None
        else:
            jobset = thing["spec"] if thing["kind"] == "JobSet" else thing["spec"]["template"]["spec"]
            yield thing, jobset["replicatedJobs"][0]["template"]["spec"], jobset


@rule
def jobs_know_the_exit_codes(objects):
    """64, 65, 71, 74, 76, 78 end an experiment; 75 and disruptions do not count; the rest counts (docs/troubleshooting.md)."""
    for thing, spec, jobset in job_specs(objects):
        rules = get(spec, "podFailurePolicy", "rules", default=[])
        codes, disruption = {}, None
        for each in rules:
            for code in get(each, "onExitCodes", "values", default=[]):
                codes.setdefault(code, each["action"])
            if each.get("onPodConditions"):
                disruption = each["action"]
        for code, action in codes.items():
            if code in (64, 65, 71, 74, 76, 78):
                expected = "FailJob"
            else:
                expected = "Ignore" if jobset is None else "FailJob"
            if action != expected or code not in (64, 65, 71, 74, 75, 76, 78):
                yield f"{name_of(thing)}: exit code {code} leads to {action}"
        for code in sorted({64, 65, 71, 74, 75, 76, 78} - set(codes)):
            yield f"{name_of(thing)}: nothing says what exit code {code} means"
        if disruption != ("Ignore" if jobset is None else "FailJob"):
            yield f"{name_of(thing)}: an eviction counts as a failure"
        if jobset is not None:
            failure = get(jobset, "failurePolicy", "rules", default=[])
            if [each["action"] for each in failure] != ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]:
                yield f"{name_of(thing)}: its failure policy does not follow the exit codes"
            elif not re.search(failure[0]["onJobFailureMessagePatterns"][0],
                               "Container trainer for pod a/b failed with exit code 76 matching FailJob rule"):
                yield f"{name_of(thing)}: its pattern does not match Kubernetes' message"


@rule
def jobs_end_and_resume(objects):
    for thing, spec, jobset in job_specs(objects):
        template = spec.get("template", {})
        if spec.get("podReplacementPolicy") != "Failed":
            yield f"{name_of(thing)}: two pods could want one run directory"
        if thing["kind"] != "TrainingRuntime" and "ttlSecondsAfterFinished" not in (jobset or spec):
            yield f"{name_of(thing)}: is never deleted"
        for container in containers(template, init=False):
            if "--resume=auto" not in container.get("args", []):
                yield f"{name_of(thing)}: a new pod would not go on from the checkpoint"
            mount = next((m for m in container.get("volumeMounts", []) if m["mountPath"] == "/runs"), {})
            volume = next((v for v in template["spec"].get("volumes", []) if v["name"] == mount.get("name")), {})
            if "persistentVolumeClaim" not in volume or mount.get("readOnly"):
                yield f"{name_of(thing)}: its checkpoints are not on a claim"


@rule
def the_teacher_address_is_a_service(objects):
    services = {service["metadata"]["name"]: service for service in of_kind(objects, "Service")}
    if not services:
        return
    for where, container in all_containers(objects, init=False):
        for variable in container.get("env", []):
            if variable["name"] == "TEACHER_ENDPOINT":
                found = re.fullmatch(r"grpcs?://([\w-]+):(\d+)", variable["value"])
                service = services.get(found[1], {"spec": {"ports": []}}) if found else {"spec": {"ports": []}}
                if int(found[2]) not in [port["port"] for port in service["spec"]["ports"]]:
                    yield f"{where}: no service listens at {variable['value']}"
                elif service["spec"].get("clusterIP") != "None":
                    yield f"{where}: behind {found[1]} one connection would reach one teacher only"


@rule
def config_maps_are_immutable(objects):
    for thing in of_kind(objects, "ConfigMap"):
        if thing.get("immutable") is not True and "grafana_dashboard" not in get(thing, "metadata", "labels", default={}):
            yield f"{name_of(thing)}: can change under a running pod"


@rule
def ranks_agree(objects):
    for jobset in of_kind(objects, "JobSet"):
        spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        environment = {variable["name"]: variable for variable in
                       get(spec, "template", "spec", "containers", 0, "env", default=[])}
        world = get(environment, "PET_NNODES", "value")
        if world is None or {world} != {str(spec.get("completions")), str(spec.get("parallelism"))}:
            yield f"{name_of(jobset)}: {spec.get('completions')} pods, PET_NNODES {world}"
        if spec.get("completionMode") != "Indexed" or "job-completion-index" not in str(environment.get("PET_NODE_RANK")):
            yield f"{name_of(jobset)}: its ranks have no numbers"
        ports = {port["containerPort"] for port in get(spec, "template", "spec", "containers", 0, "ports", default=[])}
        if int(get(environment, "PET_MASTER_PORT", "value", default=0)) not in ports:
            yield f"{name_of(jobset)}: nobody listens on PET_MASTER_PORT"


@rule
def ranks_meet(objects):
    """Ranks find the first one before it is ready, keep those of an earlier attempt out, and write one claim."""
    claims = {claim["metadata"]["name"]: claim["spec"]["accessModes"] for claim in of_kind(objects, "PersistentVolumeClaim")}
    for thing, spec, jobset in job_specs(objects):
        if jobset is None:
            continue
        network = jobset.get("network", {})
        if network.get("enableDNSHostnames") is not True or network.get("publishNotReadyAddresses") is not True:
            yield f"{name_of(thing)}: its ranks do not find the first one"
        pod = get(spec, "template", "spec", default={})
        if "restart-attempt" not in str([variable for container in pod.get("containers", []) for variable in
                                         container.get("env", []) if variable["name"] == "RESTART_ATTEMPT"]):
            yield f"{name_of(thing)}: a rank of an earlier attempt could join"
        for volume in pod.get("volumes", []):
            claim = get(volume, "persistentVolumeClaim", "claimName")
            if volume["name"] == "runs" and claims.get(claim) != ["ReadWriteMany"]:
                yield f"{name_of(thing)}: its ranks cannot all write the claim {claim}"


def settings_of(container):
    """The settings of --set=KEY=VALUE, with the container's variables by name."""
    found = dict(argument[len("--set="):].split("=", 1) for argument in container.get("args", [])
                 if argument.startswith("--set="))
    variables = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
    return {key: re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], ""), value) for key, value in found.items()}


@rule
def both_ends_encrypt_or_neither(objects):
    """A teacher that demands certificates and keys, and trainers that bring them."""
    teachers = [c for thing, template in workloads(objects) if thing["kind"] == "Deployment" for c in containers(template, False)]
    trainers = [c for thing, template in workloads(objects) if thing["kind"] not in SERVERS for c in containers(template, False)]
    for teacher in teachers:
        for settings in map(settings_of, trainers):
            encrypted = "grpcs://" in settings.get("teacher.endpoints", "")
            if encrypted != (flag(teacher, "ssl-certfile") is not None):
                yield f"the trainer asks {settings.get('teacher.endpoints')}, the teacher thinks otherwise"
            if ("teacher.tls_cert_file" in settings) != (flag(teacher, "ssl-ca-certs") is not None):
                yield "only one end knows of client certificates"
            if ("teacher.api_key_file" in settings) != (flag(teacher, "api-key-file") is not None):
                yield "only one end knows of keys"


@rule
def secret_files_are_mounted(objects):
    """Files that arguments name below /run/taopd are on a Secret that its user may read and nobody else."""
    for thing, template in workloads(objects):
        volumes = {volume["name"]: volume for volume in template.get("spec", {}).get("volumes", [])}
        for container in containers(template, init=False):
            mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
            for argument in container.get("args", []):
                for path in re.findall(r"=(/run/taopd/[\w./-]+)", argument):
                    secret = get(volumes, get(mounts, path.rsplit("/", 1)[0], "name"), "secret")
                    if secret is None:
                        yield f"{name_of(thing)}: no Secret is mounted at {path}"
                    elif secret.get("defaultMode") != 0o440:
                        yield f"{name_of(thing)}: {path} can be read by others"
