"""tests/gpu/run says so where nothing can run, instead of passing with every test skipped."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "deploy"))
from environment import write_script

NOTHING_RAN = 77


def run_with_tools(tools, *arguments):
    """Runs tests/gpu/run with these programs (name to shell script) before all others in PATH."""
    with tempfile.TemporaryDirectory() as directory:
        for name, script in tools.items():
            write_script(pathlib.Path(directory, name), script)
        environment = dict(os.environ, PATH=directory + ":" + os.environ["PATH"])
        environment.pop("TAOPD_TORCH_DIR", None)
        return subprocess.run([HERE / "run", *arguments], env=environment, capture_output=True, text=True,
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
        root = HERE.parents[1]
        sources = [path.relative_to(root) for path in (root / "kernels/cuda").rglob("*") if path.suffix in (".cu", ".cc")]
        self.assertGreater(len(sources), 0)
        for source in sources:
            self.assertIn(f"{source} for", result.stdout)

    def test_a_source_that_does_not_compile_fails(self):
        result = run_with_tools({"nvcc": "exit 2"}, "--compile")
        self.assertEqual(result.returncode, 2)
