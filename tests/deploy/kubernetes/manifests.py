"""Kubernetes manifests as the tests see them: rendered by kustomize, with the questions that several rules ask of them."""

import copy
import functools
import pathlib
import tempfile

from environment import ROOT, expect, module, tool

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = ("laptop", "single-gpu", "cluster", "cluster/trainjob")
SERVERS = ("Deployment", "StatefulSet")
TEMPLATES = {"Deployment": ("spec", "template"), "StatefulSet": ("spec", "template"), "Job": ("spec", "template"),
             "JobSet": ("spec", "replicatedJobs", 0, "template", "spec", "template"),
             "TrainingRuntime": ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template")}


def parse(text):
    yaml = module("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # LibYAML's is ten times as fast
    return [document for document in yaml.load_all(text, loader) if document]


def kustomize(path):
    return parse(expect(0, [tool("kubectl"), "kustomize", str(path)]).stdout)


@functools.cache
def _rendered(path):
    return kustomize(path)


def render(overlay):
    return copy.deepcopy(_rendered(KUBERNETES / "overlays" / overlay))


def render_kustomization(kustomization, files=()):
    """Renders a kustomization that a test wrote. Its paths are relative to deploy/kubernetes/overlays/NAME."""
    with tempfile.TemporaryDirectory(dir=KUBERNETES / "overlays", prefix="test-") as directory:
        pathlib.Path(directory, "kustomization.yaml").write_text(kustomization)
        for name, text in files:
            pathlib.Path(directory, name).write_text(text)
        return kustomize(directory)


@functools.cache
def _everything():
    """The laptop's teacher and trainer with every component."""
    names = sorted(path.name for path in (KUBERNETES / "components").iterdir())
    listed = "".join(f"  - ../../components/{name}\n" for name in names)
    return render_kustomization(f"""apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../base/storage
  - ../../base/teacher
  - ../../base/trainer
components:
{listed}  - ../laptop/settings
""")


def everything():
    return copy.deepcopy(_everything())


def all_sets():
    """(name, objects) of every overlay, and of all components together."""
    return [*((overlay, render(overlay)) for overlay in OVERLAYS), ("all components", everything())]


def get(value, *path, default=None):
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return default
    return default if value is None else value


def name_of(thing):
    return f"{thing.get('kind')}/{get(thing, 'metadata', 'name')}"


def of_kind(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def find(objects, kind, name):
    return next(thing for thing in objects if thing["kind"] == kind and thing["metadata"]["name"] == name)


def workloads(objects):
    """(object, its pod template) of everything that makes pods."""
    return [(thing, get(thing, *TEMPLATES[thing["kind"]], default={})) for thing in of_kind(objects, *TEMPLATES)]


def containers(template, init=True):
    spec = template.get("spec", {})
    return (spec.get("initContainers", []) if init else []) + spec.get("containers", [])


def all_containers(objects, init=True):
    """(where, container) of every container."""
    return [(f"{name_of(thing)}: {container['name']}", container) for thing, template in workloads(objects)
            for container in containers(template, init)]


def matches(selector, labels):
    for key, value in (selector or {}).get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    return True


def labels_of(template):
    return get(template, "metadata", "labels", default={})


def quantity(text):
    """A quantity of Kubernetes in its base unit."""
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    text = str(text)
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            return float(text[:-len(unit)]) * units[unit]
    return float(text)
