"""The programs under a service manager: what they say to NOTIFY_SOCKET while they live, hang and end, and what /healthz says."""

import os
import pathlib
import signal
import socket
import unittest
import urllib.request

from environment import BIN_DIR, ROOT, temporary_path
from programs import TINY, Program, Teacher, copy_model, fetch, free_port, is_alive, settings, teacher_command, wait_for

WATCHDOG_S = 0.4
STALL_S = 2


class Manager:
    """The socket of a service manager."""

    def __init__(self, test, directory):
        self.path = str(pathlib.Path(directory, "notify"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        test.addCleanup(self.socket.close)
        self.socket.bind(self.path)

    def environment(self):
        """For `sh`, which becomes the service, so that its process id is the service's."""
        return {**os.environ, "NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}

    @staticmethod
    def command(*words):
        return ["sh", "-c", 'export WATCHDOG_PID=$$; exec "$@"', "sh", *words]

    def next(self, timeout_s=60):
        """The next message, or None."""
        self.socket.settimeout(timeout_s)
        try:
            return self.socket.recv(256).decode()
        except TimeoutError:
            return None

    def drain(self):
        while self.next(0.001):
            pass


class ServiceLifeTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_path(self)
        self.manager = Manager(self, self.path)
        self.port = free_port()

    def train(self, teacher, *launcher, flags=(), **changes):
        if not (self.path / "student").exists():
            copy_model(self.path)
        values = TINY | {"trainer.total_steps": 100000, "eval.measure": "none", "run.dir": self.path / "run",
                         "trainer.http_port": self.port, "student.model": self.path / "student",
                         "trainer.stall_timeout_s": STALL_S, "teacher.timeout_s": 600,
                         "teacher.endpoints": f"[{teacher.endpoint}]"} | changes
        command = self.manager.command(BIN_DIR / "taopd-trainer", *launcher, "train", "--config", "deploy/recipes/stories.yaml",
                                       *settings(values), *flags)
        return Program(self, command, self.path, "trainer", cwd=ROOT, env=self.manager.environment())

    def health(self):
        return fetch(f"http://127.0.0.1:{self.port}/healthz")

    def check_stop(self, program, code):
        """Ends the program, which first tells the manager and then ends with this exit code."""
        program.process.send_signal(signal.SIGTERM)
        while (message := self.manager.next()) == "WATCHDOG=1":
            pass
        self.assertEqual(message, "STOPPING=1")
        self.assertEqual(program.process.wait(60), code)

    def test_the_teacher(self):
        command = self.manager.command(*teacher_command("--port", "0", "--grpc-port", "0"))
        teacher = Program(self, command, self.path, "teacher", env=self.manager.environment())
        messages = [self.manager.next() for _ in range(4)]
        self.assertEqual(sorted(set(messages)), ["READY=1", "WATCHDOG=1"], teacher.log.read_text())
        self.assertEqual(messages.count("READY=1"), 1)
        self.check_stop(teacher, 0)

    def test_a_step_that_hangs(self):
        """The teacher is stopped while a step waits for it; the trainer is healthy again when it continues."""
        teacher = Teacher(self, self.path)
        trainer = self.train(teacher)
        self.assertEqual(self.manager.next(), "READY=1", trainer.log.read_text())
        self.assertEqual(self.manager.next(), "WATCHDOG=1")
        self.assertEqual(self.health(), (200, "ok\n"))
        teacher.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: self.health()[0] == 503, "a stall", trainer.process)
            self.assertRegex(self.health()[1], r"no progress for \d+ s, more than trainer.stall_timeout_s 2")
            self.manager.drain()
            self.assertIsNone(self.manager.next(5 * WATCHDOG_S))
        finally:
            teacher.process.send_signal(signal.SIGCONT)
        self.assertEqual(self.manager.next(), "WATCHDOG=1")
        wait_for(lambda: self.health()[0] == 200, "health", trainer.process)
        self.check_stop(trainer, 75)

    def test_a_pause_is_no_stall(self):
        teacher = Teacher(self, self.path)
        trainer = self.train(teacher)
        self.assertEqual(self.manager.next(), "READY=1", trainer.log.read_text())
        trainer_url = f"http://127.0.0.1:{self.port}"
        self.assertEqual(self.post("pause"), 202)
        wait_for(lambda: '"paused"' in fetch(trainer_url + "/status")[1], "a pause", trainer.process)
        self.manager.drain()
        # For longer than the limit, the watchdog is fed.
        for _ in range(int(2 * STALL_S / (WATCHDOG_S / 2))):
            self.assertEqual(self.manager.next(), "WATCHDOG=1")
        self.assertEqual(self.health()[0], 200)
        # A request of a person is on the page for as long as the run lives.
        self.assertIn("\ntaopd_trainer_stop_code 0\n", fetch(trainer_url + "/metrics")[1])
        self.assertEqual(self.post("stop"), 202)
        self.assertEqual(trainer.process.wait(60), 78)

    def post(self, action):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{action}", b"", {"X-Taopd-Control": "1"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status

    def test_a_finished_run(self):
        """A unit with Type=notify that ends without READY=1 has failed, and is started again."""
        teacher = Teacher(self, self.path)
        for name in ("first", "again"):
            trainer = self.train(teacher, flags=["--resume=auto"], **{"trainer.total_steps": 1, "trainer.http_port": 0})
            self.assertEqual(trainer.process.wait(60), 0, trainer.log.read_text())
            messages = []
            while message := self.manager.next(0.001):
                messages.append(message)
            self.assertEqual(messages.count("READY=1"), 1, name)

    def ranks(self, launcher):
        text = pathlib.Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text(encoding="utf-8")
        return [int(pid) for pid in text.split()]

    def test_ranks(self):
        """The first rank speaks for all. When launch is killed, the ranks save and end."""
        teacher = Teacher(self, self.path)
        launcher = self.train(teacher, "launch", "--nproc", "2", "--")
        messages = [self.manager.next() for _ in range(5)]
        self.assertEqual(messages, ["READY=1"] + ["WATCHDOG=1"] * 4, launcher.log.read_text())
        ranks = self.ranks(launcher)
        self.assertEqual(len(ranks), 2)
        os.kill(launcher.process.pid, signal.SIGKILL)
        launcher.process.wait(60)
        wait_for(lambda: not any(map(is_alive, ranks)), f"the end of the ranks {ranks}")
        self.assertTrue(list((self.path / "run/checkpoints").glob("step-*")), launcher.log.read_text())
