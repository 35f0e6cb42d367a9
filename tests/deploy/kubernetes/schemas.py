"""Strict offline schemas: fields that the API does not know and values of a wrong type are findings."""

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
# Small kinds that no package has: every path that may occur, with its type.
TEXT, NUMBER, MAP = "text", "number", "map"
PATHS = {
    ("kueue.x-k8s.io/v1beta1", "LocalQueue"): {"spec.clusterQueue": TEXT},
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "spec.selector.matchLabels": MAP, "spec.targetPorts[].number": NUMBER, "spec.appProtocol": TEXT,
        "spec.endpointPickerRef.name": TEXT, "spec.endpointPickerRef.port.number": NUMBER,
        "spec.endpointPickerRef.failureMode": TEXT},
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "spec.parentRefs[].name": TEXT, "spec.parentRefs[].namespace": TEXT, "spec.hostnames[]": TEXT,
        "spec.rules[].matches[].path.type": TEXT, "spec.rules[].matches[].path.value": TEXT,
        "spec.rules[].backendRefs[].group": TEXT, "spec.rules[].backendRefs[].kind": TEXT,
        "spec.rules[].backendRefs[].name": TEXT, "spec.rules[].backendRefs[].port": NUMBER,
        "spec.rules[].timeouts.request": TEXT},
}


def differences(before, after, path=""):
    """What a model dropped or changed on the way through it. Quantities may become numbers and back."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                if value not in ({}, [], None):
                    yield f"{path}.{key} is no field"
            else:
                yield from differences(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after)):
            yield from differences(old, new, f"{path}[{i}]")
    elif before != after and str(before) != str(after):
        yield f"{path}: {before!r} became {after!r}"


def _core(thing):
    validate = module("kubernetes_validate")
    for version in KUBERNETES_VERSIONS:
        try:
            validate.validate(thing, version, strict=True)
        except validate.ValidationError as error:
            return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def _model(thing, source):
    model = getattr(module(source[0]), source[1])
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
            yield f"{path} is no map"
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _paths(below, known, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for below in value:
            yield from _paths(below, known, f"{path}[]")
    elif path not in known:
        yield f"{path} is no field"
    elif isinstance(value, str) != (known[path] == TEXT):
        yield f"{path}: {value!r} has the wrong type"


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
        else:
            problems = [f"no schema for {key}"]
        found += [f"{name_of(thing)}: {problem}" for problem in problems]
    return found
