"""The programs on a processor without AVX, which qemu-user stands in for: they generate the same tokens, serve and train."""

import os
import unittest

from environment import BIN_DIR, MODEL, ROOT, expect, temporary_path, tool
from programs import TINY, Teacher, copy_model, settings

NEHALEM = ("-cpu", "Nehalem")  # of 2008: SSE4.2 without AVX
WAIT_S = 600
# The programs start themselves again to set this variable, and the second start would be the machine's, not the emulator's.
ENVIRONMENT = {**os.environ, "GOMP_SPINCOUNT": "1000"}


class OldProcessorTest(unittest.TestCase):
    def setUp(self):
        self.emulator = [tool("qemu-x86_64-static"), *NEHALEM]
        self.path = temporary_path(self)

    def test_the_emulated_processor_has_no_avx(self):
        """Otherwise the other tests would show nothing."""
        source = self.path / "avx.c"
        source.write_text('int main(void) { return __builtin_cpu_supports("avx") ? 1 : 0; }\n')
        expect(0, ["gcc", source, "-o", self.path / "avx"])
        expect(0, [*self.emulator, self.path / "avx"])

    def test_generate(self):
        command = [BIN_DIR / "taopd-trainer", "generate", "--model", MODEL, "--prompt-ids", "1,403", "--max-new-tokens", "8",
                   "--temperature", "0", "--dtype", "float32"]
        done = [expect(0, [*prefix, *command], env=ENVIRONMENT) for prefix in (self.emulator, [])]
        self.assertEqual(len(done[0].stdout.split()), 8)
        self.assertEqual(done[0].stdout, done[1].stdout)

    def test_train(self):
        teacher = Teacher(self, self.path, "--max-logprobs", "512", prefix=self.emulator, wait_s=WAIT_S, env=ENVIRONMENT)
        values = TINY | {"run.dir": self.path / "run", "student.model": copy_model(self.path),
                         "teacher.endpoints": f"[{teacher.endpoint}]"}
        expect(0, [*self.emulator, BIN_DIR / "taopd-trainer", "train", "--config", "deploy/recipes/stories.yaml", *settings(values)],
               cwd=ROOT, timeout=WAIT_S, env=ENVIRONMENT)
        self.assertTrue((self.path / "run/model/model.safetensors").exists())
        self.assertEqual(teacher.stop(), 0)
