"""What is wrong with a printed command of kubectl: its verb and flags are looked up in kubectl's help, and the objects that it names
in the rendered manifests. Changes that it makes are checked as the changed object would be."""

import copy
import functools
import json
import pathlib
import re
import subprocess
import tempfile

import manifests
import schemas
from environment import ROOT, run, tool
from manifests import TEMPLATES, containers, get, labels_of, name_of

KINDS = {"pod": "Pod", "pods": "Pod", "job": "Job", "jobset": "JobSet", "trainjob": "TrainJob", "deployment": "Deployment",
         "statefulset": "StatefulSet", "pvc": "PersistentVolumeClaim", "serviceaccount": "ServiceAccount", "namespace": "Namespace"}
CONDITIONS = {"Pod": "Ready", "Job": "Complete"}
# Labels that deploy/experiment, Deployments and Jobs add.
LATER_LABELS = ("app.kubernetes.io/instance", "batch.kubernetes.io/job-completion-index")


@functools.cache
def help_of(*path):
    """The help of a command; None if kubectl has no such command."""
    text = run([tool("kubectl"), *path, "--help"]).stdout
    return text if re.search(rf"^Usage:\n +kubectl {' '.join(path)}\b", text, re.M) else None


@functools.cache
def global_options():
    return subprocess.run([tool("kubectl"), "options"], capture_output=True, text=True, check=True).stdout


@functools.cache
def objects():
    """Every object that the pages may name."""
    found = manifests.everything()
    for path in ("overlays/cluster", "overlays/cluster/trainjob", "base/loader", "base/download"):
        found += manifests.kustomize(manifests.KUBERNETES / path)
    return found


def objects_named(kind, name):
    """The objects that a page's name stands for: trainer-NAME and runs-NAME are those of an experiment, and POD is any pod."""
    if kind == "Pod" and name.isupper():
        return [thing for thing in objects() if thing["kind"] in ("Pod", *TEMPLATES)]
    name = re.sub(r"^(trainer|runs)-.+", r"\1", name)
    return [thing for thing in objects() if thing["kind"] == kind and thing["metadata"]["name"] == name]


def pod_of(thing):
    """The pod template of a workload, or the pod itself."""
    return get(thing, *TEMPLATES[thing["kind"]]) if thing["kind"] in TEMPLATES else thing


def split(words):
    """(path of the command, its flags as (name, value), other words, findings)"""
    path, flags, others, found = [], [], [], []
    words = list(words[1:])
    while words and words[0] == "-n":
        flags.append(("-n", words[1]))
        words = words[2:]
    while words and not words[0].startswith("-") and help_of(*path, words[0]) is not None:
        path.append(words.pop(0))
    if not path:
        return path, flags, words, [f"kubectl has no command {words[:1]}"]
    known = help_of(*path) + global_options()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            others.append(word)
            continue
        name, equals, value = word.partition("=")
        option = re.search(rf"^ +{re.escape(name)}, --[\w-]+=(.*):$" if len(name) == 2 else rf"^ +(?:-\w, )?{re.escape(name)}=(.*):$",
                           known, re.M)
        if option is None:
            found.append(f"kubectl {' '.join(path)} has no flag {name}")
        elif not equals and option[1] not in ("true", "false"):
            value = words.pop(0) if words else ""
        flags.append((name, value))
    return path, flags, others, found


def targets(verb, others):
    """(kind, name, None) of each object that the words name, or (None, word, what is wrong)."""
    words = list(others)
    while words:
        kind, slash, name = words.pop(0).partition("/")
        if not slash and kind not in KINDS:
            if verb in ("logs", "port-forward", "exec"):  # a pod's name alone
                kind, name = "pod", kind
            else:
                yield None, kind, f"{kind} is not a known kind"
                continue
        elif not slash:
            name = words.pop(0) if words else ""
        if kind not in KINDS:
            yield None, kind, f"{kind} is not a known kind"
        elif name and not objects_named(KINDS[kind], name):
            yield None, kind, f"there is no {KINDS[kind]} {name}"
        else:
            yield KINDS[kind], name, None


def secret_findings(words):
    """The Secret that `create secret generic` makes has the keys that the manifests read."""
    with tempfile.TemporaryDirectory() as directory:
        for word in words:
            if word.startswith("--from-file="):
                pathlib.Path(directory, word.rpartition("=")[2]).write_text("x", encoding="ascii")
        done = run([tool("kubectl"), *words[1:], "--dry-run=client", "--output=json"], cwd=directory)
    if done.returncode != 0:
        yield done.stderr.strip()
        return
    secret = json.loads(done.stdout)
    name, mounted, wanted = secret["metadata"]["name"], False, set()
    for _, template in manifests.workloads(objects()):
        volumes = {each["name"] for each in get(template, "spec", "volumes", default=[]) if get(each, "secret", "secretName") == name}
        for container in containers(template):
            for mount in container.get("volumeMounts", []):
                if mount["name"] in volumes:
                    mounted = True
                    wanted |= set(re.findall(rf"{re.escape(mount['mountPath'])}/([\w.-]+)", " ".join(container.get("args", []))))
    if not mounted:
        yield f"no pod mounts the Secret {name}"
    for key in sorted(wanted - set(secret["data"])):
        yield f"the Secret {name} has no {key}"


def findings(words):
    path, flags, others, found = split(words)
    yield from found
    if found:
        return
    values, verb = dict(flags), path[0]
    if values.get("-n", "taopd") != objects_named("Namespace", "taopd")[0]["metadata"]["name"]:
        yield f"the namespace is not {values['-n']}"
    if "-k" in values:
        try:
            manifests.kustomize(ROOT / values["-k"])
        except AssertionError as error:
            yield str(error)
    labels = {}
    for _, template in manifests.workloads(objects()):
        for key, value in labels_of(template).items():
            labels.setdefault(key, set()).add(value)
    for pair in filter(None, values.get("-l", "").split(",")):
        key, _, value = pair.partition("=")
        if key not in LATER_LABELS and value not in labels.get(key, ()):
            yield f"no pod has the label {pair}"
    if path == ["create", "secret", "generic"]:
        yield from secret_findings(words)
    elif verb == "cp":
        name, _, inside = others[1].partition(":")
        mounts = [mount["mountPath"] for pod in objects_named("Pod", name) for mount in get(pod, "spec", "containers", 0, "volumeMounts")
                  if not mount.get("readOnly")]
        if not any(inside.startswith(f"{mount}/") for mount in mounts):
            yield f"{name} has no volume for {inside}"
    elif verb in ("apply", "create"):
        if others:
            yield f"{others} would be ignored"
    else:
        port = others.pop() if verb == "port-forward" else None
        for kind, name, problem in targets(verb, others):
            if problem:
                yield problem
                continue
            yield from _target_findings(verb, values, kind, name, port)


def _target_findings(verb, values, kind, name, port):
    things = objects_named(kind, name) if name else []
    ports = {str(each["containerPort"]) for thing in things for container in containers(pod_of(thing), False)
             for each in container.get("ports", [])}
    if port is not None and things and port not in ports:
        yield f"{kind} {name} has no port {port}"
    condition = values.get("--for", "").partition("=")[2]
    if condition and condition != CONDITIONS.get(kind):
        yield f"a {kind} has no condition {condition}"
    if verb == "patch":
        for thing in things:
            changed = copy.deepcopy(thing)
            merge(changed, json.loads(values["-p"]))
            yield from (f"{name_of(thing)}: {each}" for each in schemas.findings([changed]))


def merge(thing, patch):
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(thing.get(key), dict):
            merge(thing[key], value)
        else:
            thing[key] = value
