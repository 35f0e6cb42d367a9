"""Runs the pods of rendered manifests as plain processes on 127.0.0.0/8, with the commands, environment, probes, hooks and
grace periods that the manifests state.

What differs from a node: each pod gets an address of the loopback instead of a network of its own, volumes are
directories whose paths are put in the place of the mount paths, and the manifests' waits (probe periods, preStop,
--drain-delay, minReadySeconds) are multiplied by SCALE. Limits, such as timeouts and grace periods, are as stated.
"""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from manifests import get, labels_of, quantity
from programs import WAIT_S, fetch, wait_for

SCALE = 0.02
WAIT_FLAGS = ("--drain-delay",)
_numbers = itertools.count(1)
_addresses = itertools.count(2)


def new_address():
    """An address of the loopback that no other pod of this test has."""
    return f"127.{os.getpid() % 200 + 10}.{next(_addresses) // 250}.{next(_addresses) % 250 + 2}"


def container_environment(template, container, config_maps):
    """The variables of a container, in the order of the kubelet: envFrom, then env, which may use earlier ones."""
    values = {}
    for source in container.get("envFrom", []):
        values |= config_maps[source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            kind, key = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", source["fieldRef"]["fieldPath"]).groups()
            values[variable["name"]] = str(get(template, "metadata", kind, key, default=""))
        elif "resourceFieldRef" in source:
            part, resource = source["resourceFieldRef"]["resource"].split(".", 1)
            amount = quantity(container["resources"][part][resource]) / quantity(source["resourceFieldRef"]["divisor"])
            values[variable["name"]] = str(int(-(-amount // 1)))
        else:
            values[variable["name"]] = expand(variable.get("value", ""), values)
    return values


def expand(text, values):
    """$(NAME) as Kubernetes expands it: a name that is not defined stays."""
    return re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), text)


class Process(subprocess.Popen):
    """A process whose end includes that of everything that it has started, which holds its standard input: the program
    behind a killed stand-in lives for a moment longer."""

    def __init__(self, command, **options):
        ended, running = os.pipe()
        self._ended = open(ended, "rb")
        super().__init__(command, stdin=running, **options)
        os.close(running)

    def wait(self, timeout=None):
        code = super().wait(timeout)
        self._ended.read()
        return code


class Pod:
    """One pod with one container. Thread-safe to look at; start, terminate and wait are for one thread."""

    def __init__(self, template, objects, bin_dir, volumes, work, settings=()):
        """`volumes`: mount path -> directory. `settings`: further arguments, as a user would add them."""
        self.spec = template["spec"]
        self.container = self.spec["containers"][0]
        self.address = new_address()
        self.name = f"pod-{next(_numbers)}"
        self.directory = pathlib.Path(work, self.name)
        self.directory.mkdir(parents=True)
        self.log = self.directory / "log"
        self.labels = labels_of(template)
        maps = {thing["metadata"]["name"]: thing for thing in objects if thing["kind"] == "ConfigMap"}
        self.paths = dict(volumes) | self._config_volumes(maps) | {"/tmp": self._directory("tmp")}
        environment = container_environment(template, self.container, maps)
        program = self.container["command"][0]
        arguments = [self._localize(expand(argument, environment)) for argument in self.container["args"]]
        self.command = [str(bin_dir / program), *arguments, *settings]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1",
                            **{key: self._localize(value) for key, value in environment.items()}}
        self.process = None
        self.started = self.ready = False
        self.restarts = 0
        self._stop_probing = threading.Event()
        self._prober = None

    def _directory(self, name):
        path = self.directory / name
        path.mkdir()
        return path

    def _config_volumes(self, maps):
        """Mount path -> directory with the files of a ConfigMap, the same one for every pod: a resumed run sees its files
        where they were."""
        paths = {}
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in self.container.get("volumeMounts", []):
            source = volumes[mount["name"]].get("configMap")
            if source:
                folder = self.directory.parent / source["name"]
                folder.mkdir(exist_ok=True)
                for name, text in maps[source["name"]]["data"].items():
                    (folder / name).write_text(text)
                paths[mount["mountPath"]] = folder
        return paths

    def _localize(self, text):
        """The pod's address and directories in the place of those of a container, and shorter waits."""
        text = text.replace("0.0.0.0", self.address)
        mounts = "|".join(map(re.escape, self.paths))
        text = re.sub(rf"(?<![\w/.-])({mounts})(?=/|$|[\],])", lambda match: str(self.paths[match[1]]), text)
        flag, equals, value = text.partition("=")
        if flag in WAIT_FLAGS:
            text = f"{flag}{equals}{float(value) * SCALE}"
        return text

    # ---- Life -------------------------------------------------------------------------------------------------------

    def start(self):
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = Process(self.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment,
                                   cwd=self.paths["/tmp"], start_new_session=True)
        self.started = "startupProbe" not in self.container
        self.ready = self.started and "readinessProbe" not in self.container
        self._stop_probing.clear()
        self._prober = threading.Thread(target=self._probe, daemon=True)
        self._prober.start()
        return self

    def ask(self, probe):
        action = self.container[probe]["httpGet"]
        status, _ = fetch(f"http://{self.address}:{self.ports[action['port']]}{action['path']}")
        return 200 <= status < 400

    def _probe(self):
        """The startup probe until it succeeds; then readiness and liveness. The kubelet restarts what fails."""
        failures = {"startupProbe": 0, "readinessProbe": 0, "livenessProbe": 0}
        due = {probe: 0.0 for probe in failures if probe in self.container}
        while not self._stop_probing.wait(0.01):
            for probe in list(due):
                if (probe == "startupProbe") == self.started or time.monotonic() < due[probe]:
                    continue
                settings = self.container[probe]
                due[probe] = time.monotonic() + settings.get("periodSeconds", 10) * SCALE
                failures[probe] = 0 if self.ask(probe) else failures[probe] + 1
                failed = failures[probe] >= settings.get("failureThreshold", 3)
                if probe == "startupProbe" and failures[probe] == 0:
                    self.started = True
                    self.ready = "readinessProbe" not in due
                elif probe == "readinessProbe" and (failed or failures[probe] == 0):
                    self.ready = failures[probe] == 0
                elif probe != "readinessProbe" and failed and self.process.poll() is None:
                    self.restarts += 1  # a test expects none; the kubelet would end the container and start another
                    self.process.kill()
                    return

    def is_up(self):
        return self.process is not None and self.process.poll() is None

    def wait_ready(self):
        wait_for(lambda: self.ready, f"{self.name} is ready ({self.log})", self.process)

    def terminate(self):
        """preStop, SIGTERM, and SIGKILL when the grace period is over. Returns the exit code and the seconds it took."""
        begun = time.monotonic()
        # Liveness and startup are no longer probed; the endpoints drop the pod immediately.
        self._stop_probing.set()
        self.ready = False
        time.sleep(get(self.container, "lifecycle", "preStop", "sleep", "seconds", default=0) * SCALE)
        if self.is_up():
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.spec["terminationGracePeriodSeconds"] - (time.monotonic() - begun))
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait(WAIT_S), time.monotonic() - begun

    def kill(self):
        self._stop_probing.set()
        if self.is_up():
            os.killpg(self.process.pid, signal.SIGKILL)  # all of the container's, also those of `launch`
        if self.process is not None:
            self.process.wait()
        if self._prober is not None:
            self._prober.join()


class Deployment:
    """The pods of a Deployment and its rollouts."""

    def __init__(self, thing, replicas, make_pod):
        self.spec, self.replicas, self.make_pod = thing["spec"], replicas, make_pod
        self.pods = []
        self.min_ready = replicas  # the fewest that were ready at once, since the first rollout began

    def start(self):
        self.pods = [self.make_pod() for _ in range(self.replicas)]
        for pod in self.pods:
            pod.start()
        for pod in self.pods:
            pod.wait_ready()
        return self

    def _note(self, pods):
        self.min_ready = min(self.min_ready, sum(pod.ready for pod in pods))

    def roll_out(self):
        """Replaces every pod as maxSurge and maxUnavailable allow. Returns the exit codes of the old ones."""
        rolling = self.spec["strategy"]["rollingUpdate"]
        codes = []
        for old in list(self.pods):
            if rolling["maxSurge"] == 0:
                codes.append(self._end(old))
            new = self.make_pod().start()
            self.pods.append(new)
            new.wait_ready()
            time.sleep(self.spec.get("minReadySeconds", 0) * SCALE)
            if rolling["maxSurge"] > 0:
                codes.append(self._end(old))
        return codes

    def _end(self, pod):
        self.pods.remove(pod)
        self._note(self.pods)
        return pod.terminate()[0]

    def kill(self):
        for pod in self.pods:
            pod.kill()


def job_action(spec, exit_code, disrupted=False):
    """What the Job controller does after a pod ended: Complete, FailJob, Ignore or Count."""
    if exit_code == 0:
        return "Complete"
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (exit_code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
        if disrupted and any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
            return rule["action"]
    return "Count"
