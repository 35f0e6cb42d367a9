"""tests/gpu/run says so where nothing can run, instead of passing with every test skipped."""

import os
import stat
import subprocess
import tempfile
import unittest

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
NOTHING_RAN = 77


def run_with_tools(tools, *arguments):
    """Runs tests/gpu/run with these programs (name to shell script) before all others in PATH."""
    with tempfile.TemporaryDirectory() as directory:
        for name, script in tools.items():
            path = os.path.join(directory, name)
            with open(path, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n" + script + "\n")
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        environment = dict(os.environ, PATH=directory + ":" + os.environ["PATH"])
        environment.pop("TAOPD_TORCH_DIR", None)
        return subprocess.run([RUN, *arguments], env=environment, capture_output=True, text=True,
                              timeout=60, check=False)


class GpuRunTest(unittest.TestCase):
    def test_without_a_gpu_nothing_runs_and_the_exit_code_says_so(self):
        # A driver without a device, and one that does not answer.
        for nvidia_smi in ("exit 0", "echo 'No devices were found' >&2; exit 6"):
            for arguments in ([], ["--limit", "60"], ["--tests"], ["--bench"], ["--sanitize"]):
                with self.subTest(nvidia_smi=nvidia_smi, arguments=arguments):
                    result = run_with_tools({"nvidia-smi": nvidia_smi, "nvcc": "exit 99"}, *arguments)
                    self.assertEqual(result.returncode, NOTHING_RAN, result.stderr)
                    self.assertIn("nothing ran", result.stderr)
                    self.assertEqual(result.stdout, "")

    def test_with_a_gpu_it_goes_on(self):
        # It gets as far as looking for LibTorch.
        tools = {"nvidia-smi": "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'", "nvcc": "exit 0", "python3": "exit 1"}
        result = run_with_tools(tools, "--tests")
        self.assertEqual(result.returncode, 1)
        self.assertIn("LibTorch is not found", result.stderr)

    def test_compile_needs_no_gpu_and_takes_every_source(self):
        tools = {"nvidia-smi": "exit 6", "nvcc": "exit 0"}
        result = run_with_tools(tools, "--compile")
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = os.path.join(os.path.dirname(RUN), "../../kernels/cuda")
        sources = [os.path.join(directory, name) for directory, _, names in os.walk(folder)
                   for name in names if name.endswith((".cu", ".cc"))]
        self.assertGreater(len(sources), 0)
        for source in sources:
            self.assertIn("kernels/cuda/" + os.path.relpath(source, folder) + " for", result.stdout)

    def test_a_source_that_does_not_compile_fails(self):
        result = run_with_tools({"nvcc": "exit 2"}, "--compile")
        self.assertEqual(result.returncode, 2)
