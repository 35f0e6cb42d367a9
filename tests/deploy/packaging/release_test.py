"""deploy/release: the packed programs run where only a C library is, and everything in the package is accounted for."""

import json
import os
import pathlib
import re
import shutil
import sys
import unittest
import unittest.mock

import bare_root
from pages import broken_links
from environment import BIN_DIR, MODEL, ROOT, expect, load_script, project_version, run, temporary_path, tool, write_script
from programs import TINY_IN_A_PACKAGE, Teacher, fetch, settings

sys.path.insert(0, str(ROOT / "deploy/tools"))
import packed_pages  # noqa: E402
import shared_libraries  # noqa: E402


def release(*arguments, code=0, **environment):
    return expect(code, [ROOT / "deploy/release", *map(str, arguments)],
                  env={**os.environ, "TAOPD_BIN_DIR": str(BIN_DIR), **environment})


class TreeTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.root = bare_root.make(temporary_path(cls, "release-") / "root")
        cls.root.parent.chmod(0o755)
        cls.tree = cls.root / "opt/taopd"
        release("--tree", cls.tree)

    def inside(self, *words):
        return expect(0, bare_root.command(self.root, *words))

    def test_versions(self):
        for program in ("taopd-teacher", "taopd-trainer"):
            done = self.inside(f"/opt/taopd/bin/{program}", "--version")
            self.assertEqual(done.stdout.splitlines()[0], f"{program} {project_version()}")
        self.assertEqual((self.tree / "VERSION").read_text().strip(), project_version())
        self.assertEqual(release("--version").stdout.strip(), project_version())

    def test_a_run_in_a_bare_root(self):
        """Teacher and trainer from the package: two steps of training, an evaluation, a model."""
        work = self.root / "tmp/work"
        work.mkdir()
        work.chmod(0o777)
        shutil.copytree(MODEL, work / "model")
        teacher = Teacher(self, work, "--max-logprobs", "512", program="/opt/taopd/bin/taopd-teacher", model="/tmp/work/model",
                          inside="/tmp/work", prefix=bare_root.command(self.root))
        values = TINY_IN_A_PACKAGE | {"run.dir": "/tmp/work/run", "student.model": "/tmp/work/model",
                                      "teacher.endpoints": f"[{teacher.endpoint}]"}
        self.inside("/opt/taopd/bin/taopd-trainer", "train", "--config", "/opt/taopd/deploy/recipes/stories.yaml",
                    *settings(values))
        self.assertTrue((work / "run/model/model.safetensors").exists())

        def probe(*targets):
            return run(bare_root.command(self.root, "/opt/taopd/bin/taopd-probe", *targets)).returncode
        server = teacher.url.removeprefix("http://")
        self.assertEqual([probe(server + path) for path in ("/health", "/none", "")], [0, 1, 64])
        self.assertEqual(probe("127.0.0.1:1/health", server + "/health"), 0)
        self.assertEqual([probe("127.0.0.1:1/health"), probe(), probe("localhost:80/"), probe("127.0.0.1:0/")],
                         [1, 64, 64, 64])
        self.assertEqual(fetch(teacher.url + "/health")[0], 200)
        self.inside("/opt/taopd/bin/taopd-grammar", "--version")
        self.assertEqual(teacher.stop(), 0)

    def test_checksums(self):
        expect(0, ["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=self.tree)
        listed = {line.split("  ", 1)[1] for line in (self.tree / "SHA256SUMS").read_text().splitlines()}
        present = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*") if path.is_file()}
        self.assertEqual(present - listed, {"SHA256SUMS"})

    def test_bill_of_materials(self):
        """Every library belongs to a package with a version, and every package has its license."""
        document = json.loads((self.tree / "sbom.spdx.json").read_text())
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        packages = {package["name"]: package for package in document["packages"]}
        files = {file for package in packages.values() for file in
                 package.get("comment", "files: ").removeprefix("files: ").split(", ") if file}
        self.assertEqual(files, {path.name for path in (self.tree / "lib").iterdir()})
        for name, package in packages.items():
            self.assertTrue(package["versionInfo"], name)
            if name != "taopd":
                self.assertTrue(list((self.tree / "licenses" / name).iterdir()), name)
                self.assertIn(f"@{package['versionInfo']}", package["externalRefs"][0]["referenceLocator"])
        self.assertEqual(packages["torch"]["licenseDeclared"], "BSD-3-Clause")
        self.assertEqual(packages["nlohmann-json3-dev"]["licenseDeclared"], "MIT")
        self.assertIn("STATIC_LINK", {relation["relationshipType"] for relation in document["relationships"]
                                      if relation["relatedSpdxElement"] == packages["libcli11-dev"]["SPDXID"]})
        self.assertTrue([name for name in packages if re.fullmatch(r"libboost[\d.]*-dev", name)])
        self.assertEqual(packages["taopd"]["versionInfo"], project_version())
        known = {package["SPDXID"] for package in document["packages"]} | {"SPDXRef-DOCUMENT"}
        for relation in document["relationships"]:
            self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, known)
        self.assertEqual(len(known), len(packages) + 1)

    def test_experiment(self):
        """deploy/experiment works in the package, with its program and its manifests."""
        done = expect(0, [self.tree / "deploy/experiment", "x", "--config", self.tree / "deploy/recipes/stories.yaml", "--student",
                          "s", "--data-dir", "stories", "--overlay", "cluster", "--kubectl", tool("kubectl")],
                      env={name: os.environ[name] for name in ("PATH", "HOME")})
        self.assertIn("kind: JobSet", done.stdout)
        done = expect(0, [tool("kubectl"), "kustomize", self.tree / "deploy/kubernetes/overlays/cluster"])
        self.assertIn("kind: PrometheusRule", done.stdout)

    def test_pages(self):
        """Every path in the package's pages is in the package, or is said to be of the source tree."""
        self.assertEqual(list(packed_pages.missing_paths(self.tree)), [])
        pages = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*.md")}
        self.assertGreater(len(pages), 20)
        self.assertEqual([page for pattern in packed_pages.DEVELOPERS for page in self.tree.glob(pattern)], [])
        texts = {page: (self.tree / page).read_text(encoding="ascii") for page in pages}
        self.assertEqual(broken_links(self.tree, texts), [])
        self.assertNotIn("build/cpu", "".join(texts.values()))

    def test_quickstart(self):
        """The script finds the package's programs and recipes, and would not build."""
        done = expect(1, [self.tree / "deploy/quickstart", "--compare", "none"], cwd=self.root / "tmp")
        self.assertIn('there is no objective "none"', done.stderr)

    def test_nothing_points_to_this_machine(self):
        for program in ("taopd-teacher", "taopd-trainer"):
            libraries = shared_libraries.needed(self.tree / "bin" / program)
            outside = [path for path in libraries.values() if self.tree not in path.resolve().parents]
            self.assertEqual(outside, [])
        self.assertEqual([str(path) for path in self.tree.rglob("*") if path.is_symlink()], [])

    def test_libraries_of_nvidia(self):
        """The two that LibTorch of PyPI names, and no other: docs/deploy/one-machine.md says why they are there."""
        found = {path.name for path in (self.tree / "lib").iterdir() if re.match(r"lib(cu|nv|nccl)", path.name)}
        sections = expect(0, ["readelf", "-d", self.tree / "lib/libtorch_cpu.so"]).stdout
        self.assertEqual(found, set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^]]*)\]", sections)))
        self.assertLessEqual(found, {"libcudart.so.13", "libcupti.so.13"})
        page = (self.tree / "docs/deploy/one-machine.md").read_text(encoding="ascii")
        self.assertEqual([name for name in ("libcudart", "libcupti") if f"`{name}`" not in page], [])

    def test_size(self):
        """The teacher with its libraries has to fit an image of 560 MB."""
        teacher = shared_libraries.needed(self.tree / "bin/taopd-teacher")
        size = sum(path.stat().st_size for path in teacher.values()) + (self.tree / "bin/taopd-teacher").stat().st_size
        self.assertLess(size, 540e6)


class WheelsTest(unittest.TestCase):
    def test_hashes(self):
        """Every wheel has a version and a hash, and the versions are those of the directories that setup and CMake know."""
        lines = "".join(path.read_text().replace(" \\\n", "") for path in sorted((ROOT / "deploy/wheels").glob("*.txt")))
        wheels = [line for line in lines.splitlines() if not line.startswith("#")]
        self.assertGreater(len(wheels), 15)
        for wheel in wheels:
            self.assertRegex(wheel, r"^[\w-]+==[\w.]+(    --hash=sha256:[0-9a-f]{64})+$")
        directories = {"-".join(match) for match in re.findall(r"^(torch|pyarrow|xgrammar)==(\S+)", "\n".join(wheels), re.M)}
        self.assertEqual(len(directories), 3)
        for name in ("deploy/setup", "common/cmake/TaopdDependencies.cmake", "common/cmake/TaopdTorch.cmake"):
            named = set(re.findall(r"\b(?:torch|pyarrow|xgrammar)-\d[\d.]*\d", (ROOT / name).read_text()))
            self.assertLessEqual(named, directories, name)


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_path(self)

    def test_programs_that_do_not_fit(self):
        write_script(self.path / "taopd-teacher", "echo 9.9.9")
        done = release("--program", "taopd-teacher", "--tree", self.path / "tree", code=64, TAOPD_BIN_DIR=str(self.path))
        self.assertIn("9.9.9", done.stderr)
        done = release("--program", "taopd-trainer", "--tree", self.path / "tree2", code=64, TAOPD_BIN_DIR=str(self.path))
        self.assertIn("build it first", done.stderr)
        release("--tree", self.path, code=64)

    def test_without_the_probe(self):
        """The images' health check would be a program that is not there."""
        for name in ("taopd-teacher", "taopd-grammar"):
            (self.path / name).symlink_to(BIN_DIR / name)
        done = release("--program", "taopd-teacher", "--tree", self.path / "tree", code=64, TAOPD_BIN_DIR=str(self.path))
        self.assertIn("taopd-probe is not there", done.stderr)

    def test_c_library(self):
        """Programs that need a newer C library than the archive promises are refused."""
        done = release("--output", self.path / "out", "--glibc", "2.17", code=64)
        self.assertRegex(done.stderr, r"needs the C library 2\.\d+, which")
        self.assertEqual(list((self.path / "out").iterdir()), [])
        for program in ("taopd-teacher", "taopd-probe"):
            self.assertGreater(shared_libraries.needed_glibc(BIN_DIR / program), (2, 17))

    def test_pages_of_the_tree(self):
        (self.path / "docs").mkdir()
        (self.path / "docs/there.md").write_text("# There\n")
        text = ("Run `build/cpu/bin/taopd-teacher`; see [there](there.md#there), [away](away.md) and [sources](../common/x.h).\n"
                "<!-- source tree -->\n`tests/run`\n<!-- end of source tree -->\n\n`deploy/setup --tests` and [tests/bench](x.md)\n"
                "```sh\n{}\n```\n")
        packed = packed_pages.pack(text.format("docs/there.md"), "docs/page.md", self.path)
        self.assertEqual(packed, "Run `bin/taopd-teacher`; see [there](there.md#there), away and sources.\n"
                         "`deploy/setup --tests` (source tree) and tests/bench (source tree)\n```sh\ndocs/there.md\n```\n")
        (self.path / "docs/page.md").write_text(packed)
        self.assertEqual(list(packed_pages.missing_paths(self.path)), [])
        (self.path / "docs/page.md").write_text(packed_pages.pack(text.format("deploy/setup --tests"), "docs/page.md", self.path))
        self.assertEqual(list(packed_pages.missing_paths(self.path)), ["docs/page.md:4: deploy/setup"])

    def test_search_path(self):
        program = shutil.copy(BIN_DIR / "taopd-teacher", self.path / "program")
        with self.assertRaisesRegex(shared_libraries.LibraryError, "its search path has"):
            shared_libraries.search_in(program, "/x" * 500)
        shared_libraries.search_in(program, "$ORIGIN/none")
        with self.assertRaisesRegex(shared_libraries.LibraryError, "libtorch_cpu.so"):
            shared_libraries.needed(program)
        text = self.path / "text"
        text.write_text("no program at all")
        with self.assertRaisesRegex(shared_libraries.LibraryError, "not a 64-bit"):
            shared_libraries.search_in(text, "/x")

    def test_libraries_that_are_opened_at_run_time(self):
        program = BIN_DIR / "taopd-teacher"
        linked = shared_libraries.needed(program)
        name = next(name for name in linked if name.startswith("libicuuc.so."))
        beside = name.replace("icuuc", "icuio")
        self.assertNotIn(beside, linked)
        with unittest.mock.patch.object(shared_libraries, "OPENED", {name: beside}):
            self.assertIn(beside, shared_libraries.needed(program))

    def test_cuda(self):
        """What a package of the preset cuda would hold, where that was built; and the program without a GPU."""
        import sbom
        program = ROOT / "build/cuda/bin/taopd-teacher"
        if not program.exists():
            self.skipTest("build/cuda is not there: cmake --preset cuda, with nvcc 13 and deploy/setup --cuda")
        libraries = shared_libraries.needed(program)
        for name in ("libtorch_cuda.so", "libcudnn_graph.so.9", "libcudnn_engines_precompiled.so.9", "libcaffe2_nvrtc.so",
                     "libnvrtc-builtins.so.13.0"):
            self.assertIn(name, libraries)
        self.assertNotIn("libcuda.so.1", libraries)
        packages = sbom.packages_of(libraries)
        self.assertEqual([package.name for package in packages if not package.texts], [])
        self.assertIn("nvidia-cudnn-cu13", {package.name for package in packages})
        if pathlib.Path("/dev/nvidia0").exists():
            return
        done = expect(65, [program, "--model", MODEL, "--device", "cuda", "--port", "0", "--grpc-port", "0"], timeout=120)
        self.assertIn("this program sees 0 CUDA devices", done.stderr)

    def test_archives_are_reproducible(self):
        module = load_script("deploy/release")
        write_script(self.path / "git", "date +%N")  # every answer is another time, as if somebody commits meanwhile
        environment = unittest.mock.patch.dict(os.environ, {"PATH": f"{self.path}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": ""})
        self.enterContext(environment)
        sums = []
        for name in ("a", "b"):
            tree = self.path / name
            (tree / "docs").mkdir(parents=True)
            for file in ("docs/two", "docs/one", "three"):
                (tree / file).write_text(file)
                os.utime(tree / file, (len(sums), len(sums)))
            target = self.path / f"{name}.tar.gz"
            module.make_archive(tree, "taopd", target, 6)
            sums.append(re.match(r"\w{64}", target.with_name(target.name + ".sha256").read_text())[0])
        self.assertEqual(*sums)
        (tree / "three").write_text("four")
        module.make_archive(tree, "taopd", target, 6)
        self.assertNotEqual(module.checksum(target), sums[0])

    def test_a_library_without_a_license(self):
        import sbom
        own = self.path / "libown.so"
        own.touch()
        with self.assertRaisesRegex(ValueError, "belongs to no package"):
            sbom.packages_of({"libown.so": own})
