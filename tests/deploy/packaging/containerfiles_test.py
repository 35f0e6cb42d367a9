"""The Containerfiles: linted, and in agreement with the programs and the manifests. images_test.py builds them."""

import json
import re
import unittest

import manifests
from environment import ROOT, run, tool

IMAGES = ROOT / "deploy/images"
PROGRAMS = {"teacher": ("Deployment", "teacher"), "trainer": ("Job", "trainer")}


def read(name):
    return (IMAGES / f"{name}.Containerfile").read_text(encoding="ascii")


def instructions(text):
    """(instruction, argument) with continued lines joined and comments left out."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines if line.strip()]


def final_stage(text):
    found = instructions(text)
    last = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def lint(text):
    done = run([tool("hadolint"), "--format", "json", "-"], input=text)
    return [f"{finding['line']}: {finding['code']} {finding['message']}" for finding in json.loads(done.stdout)]


def problems(text):
    """What hadolint does not know."""
    found, names = [], [name for name, _ in instructions(text)]
    stages = {argument.split()[2] for name, argument in instructions(text) if name == "FROM" and " AS " in argument}
    for name, argument in instructions(text):
        if name == "FROM" and not argument.startswith("${") and argument.split()[0] not in stages | {"scratch"}:
            found.append(f"the base {argument} is not an ARG")
        if name == "ARG" and re.search(r"=\S*[./]\S*/", argument):
            found.append(f"ARG {argument} names a registry")
        if name == "ADD":
            found.append("ADD fetches and unpacks; COPY does not")
    last = dict(final_stage(text))
    if "RUN" in last:
        found.append("the last stage runs something: it has no shell")
    for name in ("USER", "HEALTHCHECK", "ENTRYPOINT", "LABEL", "STOPSIGNAL", "EXPOSE"):
        if name not in names:
            found.append(f"no {name}")
    if not re.fullmatch(r"[1-9]\d{4,}:[1-9]\d{4,}", last.get("USER", "")):
        found.append(f"USER {last.get('USER')} may be a user of the node")
    if not last.get("ENTRYPOINT", "").startswith("["):
        found.append("ENTRYPOINT needs a shell")
    return found


class ContainerfilesTest(unittest.TestCase):
    def test_lint(self):
        for path in sorted(IMAGES.glob("*.Containerfile")):
            with self.subTest(path.name):
                self.assertEqual(lint(path.read_text()), [])

    def test_images_that_do_not_exist(self):
        for name in ("taopd-none", "taopd-programs", "teacher"):
            done = run([IMAGES / "build", "--image", name])
            self.assertEqual((done.returncode, done.stderr), (1, f"images/build: there is no image {name}\n"))

    def test_rules(self):
        for name in PROGRAMS:
            with self.subTest(name):
                self.assertEqual(problems(read(name)), [])

    def test_agree_with_the_manifests(self):
        for name, (kind, thing) in PROGRAMS.items():
            with self.subTest(name):
                pod = manifests.find(manifests.render("laptop"), kind, thing)["spec"]["template"]["spec"]
                container, last = pod["containers"][0], dict(final_stage(read(name)))
                self.assertEqual(json.loads(last["ENTRYPOINT"]), container["command"])
                ports = {port["containerPort"] for port in container["ports"]}
                self.assertEqual({int(port) for port in last["EXPOSE"].split()}, ports)
                user = pod["securityContext"]
                self.assertEqual(last["USER"], f"{user['runAsUser']}:{user['runAsGroup']}")

    def test_health_checks_ask_pages_that_exist(self):
        sources = {"teacher": ROOT / "server/http", "trainer": ROOT / "trainer/control"}
        for name, folder in sources.items():
            targets = re.findall(r'"[\d.]+:\d+(/\w+)"', dict(final_stage(read(name)))["HEALTHCHECK"])
            code = "".join(path.read_text() for path in folder.rglob("*.cc"))
            self.assertTrue(targets)
            for target in targets:
                self.assertTrue(f'"{target}"' in code, f"{name}: {target}")

    def test_planted_faults(self):
        text = read("teacher")
        for old, new, finder in (
                ("USER 65532:65532", "USER root", problems), ("USER 65532:65532", "USER 1000:1000", problems),
                ("FROM ${BASE}", "FROM debian:12", problems), ('["taopd-teacher"]', "taopd-teacher", problems),
                ("ARG BASE=taopd-base", "ARG BASE=registry.example/taopd/base", problems),
                ("STOPSIGNAL SIGTERM", "RUN true", problems), ("HEALTHCHECK", "LABEL a=b\n#", problems),
                ("COPY --from", "ADD --from", problems), ("WORKDIR /tmp", "WORKDIR tmp", lint),
                ("EXPOSE 8000", "EXPOSE 80000", lint), ("STOPSIGNAL SIGTERM", "RUN cd /tmp", lint),
                ("FROM ${PROGRAMS} AS programs", "FROM ubuntu", lint)):
            with self.subTest(new):
                self.assertIn(old, text)
                self.assertNotEqual(finder(text.replace(old, new)), [])
