"""Strict offline schemas: fields that the API does not know and values of a wrong type are findings."""

import functools
import gc
import re

from environment import module
from manifests import name_of

KUBERNETES_VERSIONS = ("1.31", "1.36")  # the oldest that has everything the manifests use, and a new one
CORE = ("v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1")
# API version and kind -> module and model of a package that has them.
MODELS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): ("kubeflow_trainer_api.models", "JobsetV1alpha2JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): ("kubeflow_trainer_api.models", "TrainerV1alpha1TrainJob"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): ("kubeflow_trainer_api.models",
                                                           "TrainerV1alpha1TrainingRuntime"),
    ("keda.sh/v1alpha1", "ScaledObject"): ("cloudcoil.models.keda.v1alpha1", "ScaledObject"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ("cloudcoil.models.prometheus_operator.v1", "ServiceMonitor"),
    ("monitoring.coreos.com/v1", "PodMonitor"): ("cloudcoil.models.prometheus_operator.v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ("cloudcoil.models.prometheus_operator.v1", "PrometheusRule"),
}
# Small kinds that no package on PyPI has: every path that may occur, with its type, or the values or the pattern of a text.
# From the API references of Kueue, of the Gateway API (v1) and of its inference extension (v1).
TEXT, PORT, MAP = "text", "port", "map"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
PATHS = {
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): {"spec.clusterQueue": NAME, "spec.stopPolicy": ("None", "Hold", "HoldAndDrain")},
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "spec.selector.matchLabels": MAP, "spec.targetPorts[].number": PORT, "spec.appProtocol": ("http", "kubernetes.io/h2c"),
        "spec.endpointPickerRef.name": NAME, "spec.endpointPickerRef.port.number": PORT,
        "spec.endpointPickerRef.failureMode": ("FailOpen", "FailClose")},
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "spec.parentRefs[].name": NAME, "spec.parentRefs[].namespace": NAME, "spec.hostnames[]": TEXT,
        "spec.rules[].matches[].path.type": ("Exact", "PathPrefix", "RegularExpression"),
        "spec.rules[].matches[].path.value": re.compile(r"/.*"),
        "spec.rules[].backendRefs[].group": TEXT, "spec.rules[].backendRefs[].kind": TEXT,
        "spec.rules[].backendRefs[].name": NAME, "spec.rules[].backendRefs[].port": PORT,
        "spec.rules[].timeouts.request": re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")},
}
# These fields must be there, in every element of their list.
REQUIRED = {
    "LocalQueue": ("spec.clusterQueue",),  # optional in the API, without which nothing is admitted
    "InferencePool": ("spec.selector.matchLabels", "spec.targetPorts[].number", "spec.endpointPickerRef.name",
                      "spec.endpointPickerRef.port.number"),
    "HTTPRoute": ("spec.parentRefs[].name", "spec.rules[].backendRefs[].name"),
}


def differences(before, after, path=""):
    """What a model dropped or changed on the way through it. Quantities may become numbers and back."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                if value not in ({}, [], None):
                    yield f"{path}.{key} is not a field"
            else:
                yield from differences(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after)):
            yield from differences(old, new, f"{path}[{i}]")
    elif before != after and str(before) != str(after):
        yield f"{path}: {before!r} became {after!r}"


@functools.cache
def _validator():
    """The package of the core's schemas, which would parse a version's definitions again for each object."""
    package = module("kubernetes_validate")
    package.utils.schema_contents = functools.cache(package.utils.schema_contents)
    return package


@functools.cache
def _model_class(name, kind):
    """A model. The packages have thousands, of which pydantic builds those that are used."""
    module("pydantic").BaseModel.model_config["defer_build"] = True
    gc.disable()  # their objects stay
    return getattr(module(name), kind)


def _core(thing):
    validate = _validator()
    for version in KUBERNETES_VERSIONS:
        try:
            validate.validate(thing, version, strict=True)
        except validate.ValidationError as error:
            return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def _model(thing, source):
    model = _model_class(*source)
    try:
        if hasattr(model, "from_dict"):
            after = model.from_dict(thing).to_dict()
        else:
            after = model.model_validate(thing).model_dump(by_alias=True, exclude_none=True, mode="json")
    except ValueError as error:  # pydantic's
        return [str(error)]
    return list(differences(thing, after))


def _paths(value, known, path=""):
    if path in known and known[path] == MAP:
        if not isinstance(value, dict):
            yield f"{path} is not a map"
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _paths(below, known, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for below in value:
            yield from _paths(below, known, f"{path}[]")
    elif path not in known:
        yield f"{path} is not a field"
    elif known[path] == PORT:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
            yield f"{path}: {value!r} is not a port"
    elif not isinstance(value, str):
        yield f"{path}: {value!r} is not text"
    elif isinstance(known[path], tuple):
        if value not in known[path]:
            yield f"{path}: {value!r} is not one of {', '.join(known[path])}"
    elif known[path] != TEXT and not known[path].fullmatch(value):
        yield f"{path}: {value!r} does not look like one"


def _lacks(value, path):
    """Whether some element of `value` has nothing at the path."""
    if not path:
        return value in (None, "", {}, [])
    key, _, rest = path.partition(".")
    name = key.removesuffix("[]")
    below = value.get(name) if isinstance(value, dict) else None
    if key.endswith("[]"):
        return not below or any(_lacks(each, rest) for each in below)
    return _lacks(below, rest)


def findings(objects):
    found = []
    for thing in objects:
        key = (thing.get("apiVersion"), thing.get("kind"))
        if key[0] in CORE:
            problems = _core(thing)
        elif key in MODELS:
            problems = _model(thing, MODELS[key])
        elif key in PATHS:
            problems = list(_paths({"spec": thing.get("spec")}, PATHS[key]))
            problems += [f"{path} is missing" for path in REQUIRED[key[1]] if _lacks(thing, path)]
        else:
            problems = [f"no schema for {key}"]
        found += [f"{name_of(thing)}: {problem}" for problem in problems]
    return found
