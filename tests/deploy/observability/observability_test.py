"""Dashboards and rules: each expression can be parsed, each metric is one that the programs export, each alert fires."""

import json
import pathlib
import re
import tempfile
import unittest
import urllib.parse

import alerts
import manifests
from environment import BIN_DIR, ROOT, expect, module, temporary_path, tool
from programs import TINY, Program, Teacher, copy_model, fetch, free_port, settings, wait_for

OBSERVABILITY = ROOT / "deploy/observability"
RUNBOOK = ROOT / "docs/deploy/runbook.md"
# NVIDIA/dcgm-exporter, etc/dcp-metrics-included.csv, the counters of its charts.
DCGM_COUNTERS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_XID_ERRORS",
                 "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE")
METRIC = re.compile(r"\b(?:taopd_teacher|taopd_trainer|vllm:|taopd:)[\w:]*")


def rules_spec():
    return module("yaml").safe_load((OBSERVABILITY / "prometheus-rule.yaml").read_text())["spec"]


def all_rules():
    return [rule for group in rules_spec()["groups"] for rule in group["rules"]]


def dashboards():
    return {path.name: json.loads(path.read_text()) for path in sorted((OBSERVABILITY / "dashboards").glob("*.json"))}


def dashboard_expressions():
    """Expressions of the dashboards, with Grafana's variables filled in."""
    found = []
    for board in dashboards().values():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                found.append(target["expr"].replace("$__rate_interval", "5m"))
    return found


def metrics_of(expressions):
    """Names of the exported series behind expressions: without what histograms append, and without recorded ones."""
    names = {name for expression in expressions for name in METRIC.findall(expression)}
    return {re.sub(r"_bucket$", "", name) for name in names if not name.startswith("taopd:")}


def exported(text):
    """Names of the families in an exposition."""
    return set(re.findall(r"^# TYPE (\S+)", text, re.M))


def exit_codes():
    """The codes of common/base/exit_code.h."""
    return [int(code) for code in re.findall(r"^  kExit\w+ = (\d+),", (ROOT / "common/base/exit_code.h").read_text(), re.M)]


def declared_trainer_metrics():
    """Gauges of every metric of the glossary, which docs_test compares with the sources."""
    names = re.findall(r"`((?:loss|policy|rollout|optim|time|teacher|data|eval|disk)/[\w/]+)`",
                       (ROOT / "docs/glossary.md").read_text())
    return {"taopd_trainer_" + name.replace("/", "_") for name in names} | {
        "taopd_trainer_step", "taopd_trainer_stop_code", "taopd_trainer_rollouts_unfinished"}


class FilesTest(unittest.TestCase):
    maxDiff = None

    def promtool(self, code, *arguments, files):
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                pathlib.Path(directory, name).write_text(json.dumps(content))
            done = expect(code, [tool("promtool"), *arguments], cwd=directory)
        return done.stdout + done.stderr

    def check(self, spec, code=0):
        return self.promtool(code, "check", "rules", "rules.json", files={"rules.json": spec})

    def test_rules_are_valid(self):
        self.assertIn(f"{len(all_rules())} rules found", self.check(rules_spec()))

    def test_expressions_of_dashboards_are_valid(self):
        expressions = dashboard_expressions()
        self.assertGreaterEqual(len(expressions), 50)
        spec = {"groups": [{"name": "g", "rules": [{"record": f"r{i}", "expr": expression}
                                                   for i, expression in enumerate(expressions)]}]}
        self.check(spec)
        spec["groups"][0]["rules"][0]["expr"] += ")"
        self.check(spec, code=1)

    def try_alerts(self, spec, lives, cases, code=0):
        """promtool's output for the alerts of `spec`."""
        tests = alerts.test_file("rules.json", [group["name"] for group in spec["groups"]], lives, cases)
        return self.promtool(code, "test", "rules", "tests.json", files={"rules.json": spec, "tests.json": tests})

    def test_every_alert_fires(self):
        lives = alerts.LIVES | dict(alerts.lives_of_exit_codes(
            manifests.find(manifests.render("laptop"), "Job", "trainer")["spec"], exit_codes()))
        seen = {alert for _, times in lives.values() for firing in times.values() for alert in firing}
        names = [rule["alert"] for rule in all_rules() if "alert" in rule]
        self.assertEqual(sorted(names), sorted(seen | set(alerts.CASES)))
        self.try_alerts(rules_spec(), lives, alerts.CASES)

    def test_alerts_that_do_not_fire_in_time_are_found(self):
        faults = {"StudentTailAboveTeachers": (">", "<"), "TrainingStalled": ("and taopd_trainer_step$", ""),
                  "TeacherNotReady": ("(?s) or .*", ""), "TeacherRetries": ("increase", "delta"),
                  "ExperimentNotRunning": ("unless .*", "> 1")}
        # These alerts alone, in lives in which no other fires.
        spec = rules_spec()
        for group in spec["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule.get("alert", "") in {"", *faults}]
        lives = {name: (series, times) for name, (series, times) in alerts.LIVES.items()
                 if {alert for firing in times.values() for alert in firing} <= set(faults)}
        cases = {alert: alerts.CASES[alert] for alert in faults if alert in alerts.CASES}
        self.try_alerts(spec, lives, cases)
        for rule in [rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule]:
            rule["expr"], count = re.subn(*faults[rule["alert"]], rule["expr"], count=1)
            self.assertEqual(count, 1, rule["expr"])
        output = self.try_alerts(spec, lives, cases, code=1)
        self.assertEqual([alert for alert in faults if alert not in output], [])

    def test_recorded_names_are_used_as_recorded(self):
        recorded = {rule["record"] for rule in all_rules() if "record" in rule}
        used = {name for rule in all_rules() for name in METRIC.findall(rule["expr"]) if name.startswith("taopd:")}
        self.assertEqual(used - recorded, set())

    def test_runbook(self):
        text = RUNBOOK.read_text()
        headings = re.findall(r"^## (\w+)$", text, re.M)
        rules = {rule["alert"]: rule for rule in all_rules() if "alert" in rule}
        self.assertEqual(sorted(headings), sorted(rules))
        for name, rule in rules.items():
            self.assertEqual(rule["annotations"]["runbook_url"], f"file:/opt/taopd/docs/deploy/runbook.md#{name.lower()}")
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_rollout_workers_are_no_teachers(self):
        """The teachers' monitor reads the workers' Service, too; what sums or counts teachers leaves it out."""
        services = manifests.parse((ROOT / "deploy/kubernetes/base/rollout-worker/services.yaml").read_text())
        [name] = [thing["metadata"]["name"] for thing in services
                  if manifests.labels_of(thing)["app.kubernetes.io/name"] == "taopd-teacher"]
        scaler = module("yaml").safe_load((ROOT / "deploy/kubernetes/components/keda/scaled-object.yaml").read_text())
        expressions = [scaler["spec"]["triggers"][0]["metadata"]["query"], *dashboard_expressions()]
        for expression in expressions + [rule["expr"] for rule in all_rules()]:
            if re.search(r"\b(sum|count|on)\b", expression) and "$pod" not in expression:
                for metric, where in re.findall(r"\b(taopd_teacher_\w+)(\{.*?\})?", expression):
                    self.assertIn(f'service!="{name}"', where, f"{metric} in {expression}")

    def test_dashboards_are_up_to_date(self):
        expect(0, [ROOT / "deploy/tools/dashboards", "--check"])
        page = (ROOT / "docs/deploy/observability.md").read_text()
        for panel in (panel for board in dashboards().values() for panel in board["panels"] if panel["type"] == "row"):
            self.assertRegex(page, rf'(?m)(^\| |"){re.escape(panel["title"])}( \||")')

    def test_devices(self):
        """The row of the GPUs has names of dcgm-exporter, and shows the pods of the row's program alone."""
        for name, pods in (("teacher.json", "$pod"), ("trainer.json", "trainer-$experiment-.*")):
            expressions = [target["expr"] for panel in dashboards()[name]["panels"] for target in panel.get("targets", [])
                           if "DCGM" in target["expr"]]
            self.assertEqual(len(expressions), 6)
            for expression in expressions:
                metric, where = re.match(r"(\w+)\{(.*)\}", expression).groups()
                self.assertIn(metric, DCGM_COUNTERS)
                self.assertEqual(where, f'namespace="$namespace",pod=~"{pods}"')

    def test_dashboards_are_whole(self):
        for name, board in dashboards().items():
            panels = [panel for panel in board["panels"] if panel["type"] != "row"]
            self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]), name)
            places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
            self.assertEqual(len(set(places)), len(places), f"{name}: two panels in one place")
            known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
            for panel in panels:
                self.assertTrue(panel["targets"], panel["title"])
                used = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
                self.assertEqual(used - known, set(), panel["title"])


class ExportedTest(unittest.TestCase):
    """Every metric that a dashboard or a rule names is on the pages of the real programs."""

    maxDiff = None

    def setUp(self):
        self.path = temporary_path(self)
        self.names = metrics_of(dashboard_expressions() + [rule["expr"] for rule in all_rules()])

    def programs(self):
        """A teacher, and a trainer that runs for long enough to be read, with its port."""
        teacher = Teacher(self, self.path)
        port = free_port()
        values = TINY | {"trainer.total_steps": 100000, "trainer.eval_every": 0, "run.dir": self.path / "run",
                         "trainer.http_port": port, "student.model": copy_model(self.path),
                         "teacher.endpoints": f"[{teacher.endpoint}]"}
        trainer = Program(self, [BIN_DIR / "taopd-trainer", "train", "--config", "deploy/recipes/stories.yaml",
                                 *settings(values)], self.path, "trainer", cwd=ROOT)
        return teacher, trainer, port

    def test_metrics(self):
        teacher, trainer, port = self.programs()
        self.assertEqual(fetch(teacher.url + "/v1/completions", {"prompt": [1, 403], "max_tokens": 2})[0], 200)

        def page():
            status, text = fetch(f"http://127.0.0.1:{port}/metrics")
            return text if status == 200 and "taopd_trainer_loss_mean" in text else ""
        trainer_page = wait_for(page, "a step of training", trainer.process)
        teacher_page = fetch(teacher.url + "/metrics")[1]
        self.assertEqual(trainer.stop(), 75)
        self.assertEqual(teacher.stop(), 0)

        of_teacher = {name for name in self.names if not name.startswith("taopd_trainer")}
        self.assertGreater(len(of_teacher), 15)
        self.assertEqual(of_teacher - exported(teacher_page), set())
        of_trainer = self.names - of_teacher
        self.assertEqual(of_trainer - declared_trainer_metrics(), set())
        # Of those, what this recipe has no use for: it grades no answers, and evaluates at the end.
        absent = {"taopd_trainer_rollout_accuracy", "taopd_trainer_eval_accuracy", "taopd_trainer_eval_kl_to_teacher"}
        self.assertEqual(of_trainer - absent - exported(trainer_page), set())

    def prometheus(self, targets):
        """A Prometheus that reads the targets, {job: (address, labels)}, repeatedly. Returns expression -> [labels] of its series."""
        config = {"global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"}, "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address], "labels": {"namespace": "here"} | labels}]}
            for job, (address, labels) in targets.items()]}
        (self.path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        address = f"127.0.0.1:{free_port()}"
        server = Program(self, [tool("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                                f"--web.listen-address={address}", "--log.level=error"], self.path, "prometheus", cwd=self.path)

        def ask(expression):
            status, text = fetch(f"http://{address}/api/v1/query?query={urllib.parse.quote(expression)}")
            found = json.loads(text)["data"]["result"] if status == 200 else []
            return [series["metric"] for series in found if series["value"][1] != "NaN"]
        wait_for(lambda: len(ask("sum_over_time(up[20s]) >= 5")) == len(targets), "five readings", server.process)
        return ask

    def test_panels_have_data(self):
        """A Prometheus evaluates every panel; only those for which this recipe has no use are empty."""
        teacher, trainer, port = self.programs()
        wait_for(lambda: "taopd_trainer_loss_mean" in fetch(f"http://127.0.0.1:{port}/metrics")[1], "a step", trainer.process)
        ask = self.prometheus({"teacher": (teacher.url.removeprefix("http://"), {"pod": "teacher"}),
                               "trainer": (f"127.0.0.1:{port}", {"experiment": "mine"})})
        # And those of a GPU.
        device = {"GPU busy", "Tensor cores", "Memory traffic", "Device memory", "Power", "Last XID"}
        empty = {"teacher.json": device | {"Queue time", "Prefix cache"}, "trainer.json": device | {"Accuracy", "KL to the teacher"}}
        for name, board in dashboards().items():
            for panel in board["panels"]:
                has_data = panel["type"] == "row"
                for target in panel.get("targets", []):
                    series = ask(re.sub(r"\$(namespace|pod|experiment|__rate_interval)",
                                        lambda match: {"namespace": "here", "__rate_interval": "30s"}.get(match[1], ".*"), target["expr"]))
                    has_data |= bool(series)
                    for label in re.findall(r"\{\{\s*(\w+)", target["legendFormat"]) if series else ():
                        self.assertIn(label, series[0], panel["title"])
                self.assertTrue(has_data or panel["title"] in empty[name], panel["title"])

    def test_names_that_nobody_exports_are_found(self):
        self.assertEqual(metrics_of(["sum(rate(taopd_teacher_rows_bucket[5m])) + taopd:x:y"]), {"taopd_teacher_rows"})
        self.assertNotIn("taopd_trainer_policy_tail", declared_trainer_metrics())
        self.assertEqual(exported("# TYPE a gauge\na 1\nb 2\n"), {"a"})
