"""Rules that rendered manifests keep, beyond what the schemas check: security, resources, references."""

import re

from manifests import SERVERS, all_containers, containers, get, labels_of, matches, name_of, of_kind, quantity, workloads
from rules import flag, rule


# ---- Security -------------------------------------------------------------------------------------------------------

@rule
def pods_are_restricted(objects):
    for thing, template in workloads(objects):
        spec = template.get("spec", {})
        context = spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser", 0) > 10000:
            yield f"{name_of(thing)}: runs as root or as a user of the node"
        if get(context, "seccompProfile", "type") != "RuntimeDefault":
            yield f"{name_of(thing)}: no seccomp profile"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name_of(thing)}: shares a namespace with the node"
        if any("hostPath" in volume for volume in spec.get("volumes", [])):
            yield f"{name_of(thing)}: mounts a directory of the node"


@rule
def containers_are_restricted(objects):
    for where, container in all_containers(objects):
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield f"{where}: may gain privileges"
        if get(context, "capabilities", "drop") != ["ALL"] or get(context, "capabilities", "add"):
            yield f"{where}: keeps capabilities"
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{where}: can write its root file system"


@rule
def no_token_is_mounted(objects):
    accounts = {name_of(account) for account in of_kind(objects, "ServiceAccount")
                if account.get("automountServiceAccountToken") is False}
    for thing, template in workloads(objects):
        spec = template.get("spec", {})
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name_of(thing)}: mounts a token of the Kubernetes API"
        if f"ServiceAccount/{spec.get('serviceAccountName')}" not in accounts:
            yield f"{name_of(thing)}: has no service account of its own without a token"


@rule
def namespace_enforces_restricted(objects):
    for namespace in of_kind(objects, "Namespace"):
        if get(namespace, "metadata", "labels", "pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{name_of(namespace)}: admits pods that are not restricted"


@rule
def no_secret_is_stored(objects):
    for secret in of_kind(objects, "Secret"):
        yield f"{name_of(secret)}: secrets do not belong into manifests"
    for where, container in all_containers(objects):
        # The programs read these two from the environment alone.
        tokens = {argument.split("=")[2] for argument in container.get("args", []) if "=trainer.token_env=" in argument}
        tokens.add("TAOPD_RANK_SECRET")
        for variable in container.get("env", []):
            is_from_secret = "secretKeyRef" in str(variable)
            named = re.search("key|secret|token|password", variable["name"], re.I)
            if variable["name"] in tokens and not is_from_secret:
                yield f"{where}: {variable['name']} does not come from a Secret"
            elif variable["name"] not in tokens and (named or is_from_secret):
                yield f"{where}: {variable['name']}: secrets are mounted as files"


@rule
def network_is_closed(objects):
    policies = of_kind(objects, "NetworkPolicy")
    if of_kind(objects, "Namespace") and not any(
            get(policy, "spec", "podSelector") == {} and sorted(get(policy, "spec", "policyTypes", default=[])) ==
            ["Egress", "Ingress"] and not policy["spec"].get("ingress") and not policy["spec"].get("egress")
            for policy in policies):
        yield "no policy refuses what no other allows"
    for thing, template in workloads(objects):
        mine = [policy for policy in policies if policy["spec"]["podSelector"] and
                matches(policy["spec"]["podSelector"], labels_of(template))]
        if not mine:
            yield f"{name_of(thing)}: no network policy selects its pods"
    for policy in policies:
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for allowed in policy["spec"].get(direction, []):
                if not allowed.get(peers) or any(peer == {} for peer in allowed[peers]):
                    yield f"{name_of(policy)}: {direction} is open to everybody"


@rule
def network_policies_match_something(objects):
    for policy in of_kind(objects, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        selected = [template for _, template in workloads(objects) if matches(selector, labels_of(template))]
        if not selected and selector and "inferencepool" not in selector.get("matchLabels", {}):  # the platform's own
            yield f"{name_of(policy)}: selects no pod"
        names = {port.get("name") for template in selected for container in containers(template)
                 for port in container.get("ports", [])}
        for allowed in policy["spec"].get("ingress", []):
            for port in allowed.get("ports", []):
                if isinstance(port["port"], str) and port["port"] not in names:
                    yield f"{name_of(policy)}: its pods have no port {port['port']}"


@rule
def gateway_reaches_the_teacher(objects):
    """The gateway may ask the endpoint picker on the pool's port; that may read metrics from the port that the pool names."""
    policies = {get(policy, "metadata", "name"): policy["spec"] for policy in of_kind(objects, "NetworkPolicy")}
    for pool in of_kind(objects, "InferencePool"):
        picker = pool["spec"]["endpointPickerRef"]
        own = policies.get(picker["name"], {})
        if picker["port"]["number"] not in [port["port"] for each in own.get("ingress", []) for port in each["ports"]]:
            yield f"{name_of(pool)}: nobody may ask the endpoint picker"
        ports = {port["name"]: port["containerPort"] for _, template in workloads(objects)
                 if matches(pool["spec"]["selector"], labels_of(template))
                 for container in containers(template, init=False) for port in container["ports"]}
        read = [ports.get(port["port"]) for spec in policies.values() for each in spec.get("ingress", [])
                if {"podSelector": own.get("podSelector")} in each["from"] for port in each["ports"]]
        if not {target["number"] for target in pool["spec"]["targetPorts"]} <= set(read):
            yield f"{name_of(pool)}: the endpoint picker may not read the metrics"


@rule
def trainer_reaches_dns(objects):
    """DNS of kube-system, of OpenShift, whose pods listen on 5353, and of a cache on the node."""
    for thing, template in workloads(objects):
        if thing["kind"] in SERVERS:
            continue
        rules = [each for policy in of_kind(objects, "NetworkPolicy") if policy["spec"]["podSelector"] and
                 matches(policy["spec"]["podSelector"], labels_of(template)) for each in policy["spec"].get("egress", [])]
        for place, number in (("kube-system", 53), ("openshift-dns", 5353), ("169.254.20.10/32", 53)):
            for protocol in ("UDP", "TCP"):
                if not any(f"'{place}'" in str(each["to"]) and {"protocol": protocol, "port": number} in each.get("ports", [])
                           for each in rules):
                    yield f"{name_of(thing)}: does not reach DNS at {place}, port {number}/{protocol}"


@rule
def trainer_reaches_the_teacher(objects):
    """Both ends of the connection have to allow it: the trainer's egress and the teacher's ingress."""
    teachers = [template for thing, template in workloads(objects) if thing["kind"] == "Deployment"]
    for thing, template in workloads(objects):
        if thing["kind"] in SERVERS or not teachers:
            continue
        yield from _refused(objects, thing, template, teachers[0], "teacher")


def _refused(objects, thing, template, server, name):
    """Whether a policy of either end refuses the connections of a pod to a server, whose policy has the name."""
    peers = []
    for policy in of_kind(objects, "NetworkPolicy"):
        spec = policy["spec"]
        if matches(spec["podSelector"], labels_of(server)) and get(policy, "metadata", "name") == name:
            if not any(matches(peer.get("podSelector", {"matchLabels": {"": ""}}), labels_of(template))
                       for allowed in spec.get("ingress", []) for peer in allowed["from"]):
                yield f"{name_of(policy)}: refuses {name_of(thing)}"
        elif spec["podSelector"] and matches(spec["podSelector"], labels_of(template)):
            peers += [peer for allowed in spec.get("egress", []) for peer in allowed["to"] if "podSelector" in peer]
    if not any(matches(peer["podSelector"], labels_of(server)) for peer in peers):
        yield f"{name_of(thing)}: may not leave for the {name}"


@rule
def rollout_workers_are_named(objects):
    """The trainer gives weights to each worker by itself: every pod that there may be is named, and both ends may connect."""
    sets = {thing["metadata"]["name"]: (thing, template) for thing, template in workloads(objects) if thing["kind"] == "StatefulSet"}
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind(objects, "Service")}
    most = {get(scaler, "spec", "scaleTargetRef", "name"): scaler["spec"].get("maxReplicaCount") for scaler in of_kind(objects, "ScaledObject")}
    for thing, template in workloads(objects):
        named = [argument.partition("rollout.endpoints=")[2] for container in containers(template, init=False)
                 for argument in container.get("args", []) if "rollout.endpoints=" in argument]
        found = re.findall(r"grpcs?://([\w-]+)-(\d+)\.([\w-]+):(\d+)", "".join(named))
        if not named or not sets:
            continue
        for name in sorted({each[0] for each in found}):
            ours = [each for each in found if each[0] == name]
            workers, pods = sets.get(name, ({"spec": {}}, {}))
            replicas = most.get(name) or workers["spec"].get("replicas", 1)
            if sorted(int(each[1]) for each in ours) != list(range(len(ours))) or len(ours) < replicas:
                yield f"{name_of(thing)}: names {len(ours)} of {replicas} pods of {name}"
            for _, _, service, port in ours:
                if workers["spec"].get("serviceName") != service or get(services, service, "clusterIP") != "None" or \
                        int(port) not in [each["port"] for each in get(services, service, "ports", default=[])]:
                    yield f"{name_of(thing)}: no pod has the name {name}-N.{service}:{port}"
            yield from _refused(objects, thing, template, pods, name)
        if not found:
            yield f"{name_of(thing)}: rollout.endpoints names no pods"


# ---- Resources and images -------------------------------------------------------------------------------------------

@rule
def resources_are_set(objects):
    for where, container in all_containers(objects):
        requests, limits = (get(container, "resources", part, default={}) for part in ("requests", "limits"))
        for resource in ("cpu", "memory", "ephemeral-storage"):
            if resource not in requests:
                yield f"{where}: requests no {resource}"
        if limits.get("memory") != requests.get("memory"):
            yield f"{where}: its memory limit differs from its request"
        if requests.get("nvidia.com/gpu") != limits.get("nvidia.com/gpu"):
            yield f"{where}: its GPU limit differs from its request"
        for resource, value in requests.items():
            if resource in limits and quantity(limits[resource]) < quantity(value):
                yield f"{where}: its limit of {resource} is below its request"


def of_pod(template, part, resource):
    """What a pod requests or is limited to (kubernetes staging/src/k8s.io/component-helpers/resource: PodLimits): the sum
    of its containers, or that of the largest init container."""
    def amounts(containers):
        return [quantity(get(container, "resources", part, resource, default=0)) for container in containers]
    spec = template.get("spec", {})
    return max(sum(amounts(spec.get("containers", []))), *amounts(spec.get("initContainers", [])), 0)


@rule
def volumes_fit_the_limits(objects):
    """The kubelet evicts a pod whose emptyDirs, logs and writable layers exceed the sum of its containers' limits
    (kubernetes pkg/kubelet/eviction/eviction_manager.go: podEphemeralStorageLimitEviction). It places a pod by requests
    alone, and a volume of medium Memory takes from the containers' memory."""
    slack = 64 * 2**20  # logs
    for thing, template in workloads(objects):
        sizes = {"": 0, "Memory": 0}
        for volume in template.get("spec", {}).get("volumes", []):
            if "emptyDir" in volume:
                if "sizeLimit" not in volume["emptyDir"]:
                    yield f"{name_of(thing)}: the volume {volume['name']} may fill the node"
                sizes[volume["emptyDir"].get("medium", "")] += quantity(volume["emptyDir"].get("sizeLimit", 0))
        if sizes[""] + slack > of_pod(template, "limits", "ephemeral-storage"):
            yield f"{name_of(thing)}: is evicted before its volumes are full"
        if sizes[""] > of_pod(template, "requests", "ephemeral-storage"):
            yield f"{name_of(thing)}: may be placed where its volumes have no room"
        if sizes["Memory"] > of_pod(template, "limits", "memory") / 2:
            yield f"{name_of(thing)}: its volumes leave less than half of the memory to its programs"


@rule
def cuda_goes_with_a_gpu(objects):
    settings = {name_of(thing): thing.get("data", {}) for thing in of_kind(objects, "ConfigMap")}
    for thing, template in workloads(objects):
        for container in containers(template, init=False):
            values = [variable.get("value") for variable in container.get("env", []) if variable["name"] == "DEVICE"]
            for source in container.get("envFrom", []):
                values.append(settings.get(f"ConfigMap/{get(source, 'configMapRef', 'name')}", {}).get("DEVICE"))
            has_gpu = "nvidia.com/gpu" in get(container, "resources", "limits", default={})
            if ("cuda" in values) != has_gpu:
                yield f"{name_of(thing)}: device {values}, but {'a' if has_gpu else 'no'} GPU is asked for"
            gpus = get(container, "resources", "limits", "nvidia.com/gpu", default="1")
            processes = flag(container, "tensor-parallel-size") or flag(container, "nproc") or "1"
            if has_gpu and processes != gpus:
                yield f"{name_of(thing)}: {processes} processes on {gpus} GPUs"
            if processes != "1" and "/dev/shm" not in str(container.get("volumeMounts")):
                yield f"{name_of(thing)}: its processes have 64 MiB of shared memory"
            if has_gpu and "nvidia.com/gpu" not in str(get(template, "spec", "tolerations")):
                yield f"{name_of(thing)}: does not tolerate the nodes that have GPUs"


@rule
def images_have_versions(objects):
    for where, container in all_containers(objects):
        image = container.get("image", "")
        if container["name"] == "copy-model":  # the platform's own
            continue
        if ":" not in image.rsplit("/", 1)[-1] and "@" not in image or image.endswith(":latest"):
            yield f"{where}: the image {image} has no version"


# ---- References -----------------------------------------------------------------------------------------------------

@rule
def names_are_valid(objects):
    for thing in objects:
        name = get(thing, "metadata", "name", default="")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            yield f"{name_of(thing)}: its name is not a DNS label"
        for key, value in get(thing, "metadata", "labels", default={}).items():
            if not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", str(value)):
                yield f"{name_of(thing)}: label {key} is not a label value"


@rule
def objects_are_unique_and_have_the_namespace(objects):
    seen = set()
    namespaces = {get(thing, "metadata", "namespace") for thing in objects if thing["kind"] != "Namespace"}
    if len(namespaces) != 1 or None in namespaces:
        yield f"namespaces: {sorted(map(str, namespaces))}"
    for thing in objects:
        if name_of(thing) in seen:
            yield f"{name_of(thing)}: twice"
        seen.add(name_of(thing))


@rule
def references_resolve(objects):
    known = {name_of(thing) for thing in objects}
    claims_apart = {"PersistentVolumeClaim/models", "PersistentVolumeClaim/data"}  # base/storage, for overlays in parts
    for thing, template in workloads(objects):
        spec = template.get("spec", {})
        wanted = []
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                wanted.append(f"ConfigMap/{volume['configMap']['name']}")
            if "persistentVolumeClaim" in volume:
                claim = f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
                wanted += [] if claim in claims_apart and not of_kind(objects, "Namespace") else [claim]
        for container in containers(template):
            for source in container.get("envFrom", []):
                wanted.append(f"ConfigMap/{get(source, 'configMapRef', 'name')}")
        for reference in wanted:
            if reference not in known:
                yield f"{name_of(thing)}: there is no {reference}"


@rule
def mounts_have_volumes(objects):
    for thing, template in workloads(objects):
        volumes = {volume["name"] for volume in template.get("spec", {}).get("volumes", [])}
        used = set()
        for container in containers(template):
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            if len(paths) != len(set(paths)):
                yield f"{name_of(thing)}: {container['name']}: two mounts at one path"
            for mount in container.get("volumeMounts", []):
                used.add(mount["name"])
                if mount["name"] not in volumes:
                    yield f"{name_of(thing)}: {container['name']}: there is no volume {mount['name']}"
        for volume in sorted(volumes - used):
            yield f"{name_of(thing)}: nothing mounts the volume {volume}"


@rule
def selectors_select(objects):
    templates = [template for _, template in workloads(objects)]
    for thing in objects:
        kind = thing["kind"]
        if kind in SERVERS:
            chosen = [get(thing, "spec", "template")]
        elif kind in ("Service", "PodDisruptionBudget", "PodMonitor", "InferencePool"):
            chosen = templates
        else:
            continue
        selector = get(thing, "spec", "selector", default={})
        selector = {"matchLabels": selector} if kind == "Service" else selector
        if not selector.get("matchLabels") or not any(matches(selector, labels_of(template)) for template in chosen):
            yield f"{name_of(thing)}: selects no pod"


@rule
def service_ports_exist(objects):
    for service in of_kind(objects, "Service"):
        ports = {name for _, template in workloads(objects)
                 if matches({"matchLabels": service["spec"]["selector"]}, labels_of(template))
                 for container in containers(template) for port in container.get("ports", [])
                 for name in (port.get("name"), port["containerPort"])}
        for port in service["spec"]["ports"]:
            if port.get("targetPort", port["port"]) not in ports:
                yield f"{name_of(service)}: its pods have no port {port.get('targetPort', port['port'])}"
            numbers = {p["containerPort"] for _, c in all_containers(objects) for p in c.get("ports", [])
                       if p.get("name") == port.get("targetPort")}
            if service["spec"].get("clusterIP") == "None" and numbers and port["port"] not in numbers:
                yield f"{name_of(service)}: a headless service does not map port {port['port']}"


@rule
def monitors_find_their_ports(objects):
    services = of_kind(objects, "Service")
    for monitor in of_kind(objects, "ServiceMonitor"):
        chosen = [service for service in services
                  if matches(monitor["spec"]["selector"], get(service, "metadata", "labels", default={}))]
        names = {port.get("name") for service in chosen for port in service["spec"]["ports"]}
        for endpoint in monitor["spec"]["endpoints"]:
            if endpoint["port"] not in names:
                yield f"{name_of(monitor)}: no service has the port {endpoint['port']}"
    for monitor in of_kind(objects, "PodMonitor"):
        names = {port.get("name") for _, template in workloads(objects)
                 if matches(monitor["spec"]["selector"], labels_of(template))
                 for container in containers(template) for port in container.get("ports", [])}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint["port"] not in names:
                yield f"{name_of(monitor)}: no pod has the port {endpoint['port']}"


@rule
def declared_ports_are_those_of_the_arguments(objects):
    for where, container in all_containers(objects, init=False):
        declared = {port["containerPort"] for port in container.get("ports", [])} - {29500}
        stated = {int(number) for argument in container.get("args", [])
                  for number in re.findall(r"(?:port|http_port|grpc_port)=(\d+)$", argument)}
        if declared != stated:
            yield f"{where}: declares the ports {sorted(declared)}, listens on {sorted(stated)}"


@rule
def variables_are_defined(objects):
    settings = {name_of(thing): thing.get("data", {}) for thing in of_kind(objects, "ConfigMap")}
    for where, container in all_containers(objects):
        known = set()
        for source in container.get("envFrom", []):
            known |= set(settings.get(f"ConfigMap/{get(source, 'configMapRef', 'name')}", {}))
        for variable in container.get("env", []):
            for used in re.findall(r"\$\((\w+)\)", variable.get("value", "")):
                if used not in known:  # a variable expands to those before it
                    yield f"{where}: {variable['name']} uses {used} before it is defined"
            if variable["name"] in [other["name"] for other in container["env"] if other is not variable]:
                yield f"{where}: {variable['name']} twice"
            known.add(variable["name"])
        for argument in container.get("args", []):
            for used in re.findall(r"\$\((\w+)\)", argument):
                if used not in known:
                    yield f"{where}: nothing defines {used}"
