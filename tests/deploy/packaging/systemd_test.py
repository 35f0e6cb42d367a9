"""The units: valid, confined, with flags that the programs have and times and exit codes like those of the manifests."""

import configparser
import os
import pathlib
import re
import shlex
import shutil
import unittest

from environment import BIN_DIR, MODEL, ROOT, expect, run, temporary_path, tool
from lifecycle_rules import CHECKPOINT_S, default_of

UNITS = ROOT / "deploy/systemd"
NAMES = ("taopd-teacher.service", "taopd-trainer@.service")
CONFINEMENT = "taopd-.service.d/confinement.conf"
MAX_EXPOSURE = 20  # systemd's tenths; a service without any confinement has 96


class Section(dict):
    """Keys may come again: their values are joined by newlines, as configparser does for lists."""

    def __setitem__(self, key, value):
        if key in self and isinstance(value, list) and isinstance(self[key], list):
            value = self[key] + value
        super().__setitem__(key, value)


def service(text):
    parser = configparser.RawConfigParser(strict=False, dict_type=Section, interpolation=None)
    parser.optionxform = str
    parser.read_string(text.replace("\\\n", " "))
    return dict(parser["Service"])


def settings(name):
    return service((UNITS / name).read_text(encoding="ascii"))


def analyze(*arguments):
    return run([tool("systemd-analyze"), *arguments], env={**os.environ, "SYSTEMD_EMOJI": "0", "SYSTEMD_COLORS": "0"})


def words(command, variables):
    """ExecStart as systemd splits it: $NAME becomes any number of words, ${NAME} is part of one."""
    return shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda match: variables[match[1]], command))


def variables():
    lines = (UNITS / "teacher.env").read_text(encoding="ascii").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class UnitsTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_path(self)
        shutil.copytree(UNITS, self.path, dirs_exist_ok=True)

    def verify(self, name, text):
        """What systemd says about a unit whose programs are where they are built."""
        target = self.path / name
        target.write_text(text.replace("/opt/taopd/bin/", f"{BIN_DIR}/"))
        done = analyze("verify", "--man=no", target)
        return [line for line in (done.stdout + done.stderr).splitlines() if "taopd-" in line]

    def test_valid(self):
        for name in NAMES:
            text = (UNITS / name).read_text()
            self.assertEqual(self.verify(name, text), [])
            self.assertNotEqual(self.verify(name, text.replace("DynamicUser=yes", "DynamicUsers=yes")), [])
            self.assertNotEqual(self.verify(name, text.replace("bin/taopd-", "bin/none-")), [])

    def test_confined(self):
        """Both by the same drop-in; without it they are still users of their own."""
        text = settings(CONFINEMENT)
        self.assertEqual([text[key] for key in ("ProtectSystem", "NoNewPrivileges", "CapabilityBoundingSet")], ["strict", "yes", ""])
        checks = [("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", self.path / name) for name in NAMES]
        for check in checks:
            done = analyze(*check)
            self.assertEqual(done.returncode, 0, done.stdout[-200:])
        (self.path / CONFINEMENT).write_text("[Service]\nPrivateTemp=yes\n")
        for name, check in zip(NAMES, checks):
            self.assertNotEqual(analyze(*check).returncode, 0)
            self.assertEqual(settings(name)["DynamicUser"], "yes")
            self.assertIn("PrivateTemp", str(self.verify(name, (UNITS / name).read_text())))

    def test_enabled_units_start_with_the_machine(self):
        for name in NAMES:
            self.assertEqual((UNITS / name).read_text(encoding="ascii").rpartition("[Install]\n")[2], "WantedBy=multi-user.target\n")

    def test_the_teachers_command(self):
        """The command with the settings of teacher.env, which the program understands: it plans a model's memory."""
        command = words(settings(NAMES[0])["ExecStart"], variables() | {"MODEL": str(MODEL)})
        command[0] = str(BIN_DIR / pathlib.Path(command[0]).name)
        self.assertIn("total on cpu", expect(0, [*command, "--plan"]).stdout)
        expect(64, [*command, "--plan", "--no-such-flag=1"])
        more = words(settings(NAMES[0])["ExecStart"], variables() | {"MORE_FLAGS": "--max-logprobs=4 --log-level=error"})
        self.assertEqual(more[-2:], ["--max-logprobs=4", "--log-level=error"])
        self.assertEqual([name for name in variables() if not re.search(rf"\$\{{?{name}\b", settings(NAMES[0])["ExecStart"])], [])

    def test_the_trainers_command(self):
        """The command as an instance: the configuration is read, the run directory and the model are what is missing."""
        command = words(settings(NAMES[1])["ExecStart"], {})
        command = [word.replace("%i", "mine") for word in command]
        command[0] = str(BIN_DIR / pathlib.Path(command[0]).name)
        (self.path / "mine.yaml").write_text("student: {model: /none}\ndata: {train: [x.jsonl]}\n")
        command = [word.replace("/etc/taopd", str(self.path)).replace("/var/lib/taopd", str(self.path)) for word in command]
        self.assertIn("/none", expect(65, command).stderr)

    def test_times_and_exit_codes(self):
        teacher, trainer = map(settings, NAMES)
        drain = float(re.search(r"--shutdown-timeout=([\d.]+)", teacher["ExecStart"])[1])
        self.assertGreater(float(teacher["TimeoutStopSec"]), drain + 5)
        self.assertGreaterEqual(float(trainer["TimeoutStopSec"]),
                                default_of("trainer.stop_grace_s") + CHECKPOINT_S)
        self.assertEqual(trainer["RestartPreventExitStatus"].split(), ["64", "65", "71", "74", "76", "78"])
        self.assertEqual(teacher["RestartPreventExitStatus"].split(), ["64", "65", "71"])
        # The start waits for the teacher, and for the model to be read.
        connect = float(re.search(r"teacher.connect_timeout_s=(\d+)", trainer["ExecStart"])[1])
        self.assertGreaterEqual(float(trainer["TimeoutStartSec"]), connect + 600)
        self.assertEqual(trainer["NotifyAccess"], "all")
        self.assertEqual(trainer["SuccessExitStatus"].split(), ["75", "78"])
        for each in (teacher, trainer):
            self.assertEqual(each["Type"], "notify")
            self.assertGreater(float(each["WatchdogSec"]), 60)
            self.assertEqual(each["Restart"], "on-failure")
            self.assertGreaterEqual(int(each["LimitNOFILE"]), 65536)
