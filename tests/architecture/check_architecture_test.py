"""Each rule of check_architecture.py finds a planted violation and is silent on a good tree."""

import pathlib
import tempfile
import unittest

import check_architecture

GOOD = {
    "common/base/status.h": "#pragma once\n#include <string>\n",
    "common/model/decoder.h": '#pragma once\n#include <ATen/ATen.h>\n#include "common/base/status.h"\n',
    "common/engine/engine.h": '#pragma once\n#include "common/base/status.h"\n',
    "common/engine/torch_engine.cc": '#include "common/model/decoder.h"\n',
    "kernels/include/taopd/objective/objective.h": "#pragma once\n#include <cmath>\n",
    "kernels/cpu/head/head.cc": '#include "taopd/objective/objective.h"\n',
    "kernels/torch/head/head.cc": '#include <ATen/ATen.h>\n#include "taopd/objective/objective.h"\n',
    "server/grpc/service.cc": '#include <grpcpp/grpcpp.h>\n#include "common/engine/engine.h"\n',
    "trainer/step/step.h": '#pragma once\n#include "common/model/decoder.h"\n',
    "trainer/run/run.cc": '#include "trainer/step/step.h"\n',
    "trainer/teacher/client.cc": '#include "proto/taopd/v1/teacher.pb.h"\n#include "common/base/status.h"\n',
    **{f"tests/{folder}/some_test.cc": "" for folder in (
        "common/base", "common/engine", "common/model", "kernels/cpu/head", "kernels/torch/head", "server/grpc",
        "trainer/run", "trainer/step", "trainer/teacher")},
}
DEPENDENCIES = (check_architecture.check_dependencies,)


class CheckArchitectureTest(unittest.TestCase):
    def violations_with(self, **changes):
        """Violations of the good tree after `changes` (path -> text, or bytes)."""
        with tempfile.TemporaryDirectory() as root:
            files = {**GOOD, **changes.get("files", {})}
            files.setdefault("tests/CMakeLists.txt", "\n".join(path.removeprefix("tests/") for path in files))
            for path, text in files.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text if isinstance(text, bytes) else text.encode())
            return list(check_architecture.violations(root, changes.get("rules", check_architecture.RULES)))

    def expect_one(self, path, text, part, rules=check_architecture.RULES):
        """One violation, which names `path` and says `part`: of `rules`, where a planted fault breaks several."""
        found = self.violations_with(files={path: text}, rules=rules)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ":"), found)
        self.assertIn(part, found[0])

    def test_good_tree(self):
        self.assertEqual(self.violations_with(), [])

    def test_empty_tree(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(list(check_architecture.violations(root)), [f"{root}: no source files"])

    def test_server_and_trainer(self):
        self.expect_one("server/grpc/a.cc", '#include "trainer/step/step.h"\n',
                        "server must not include trainer/step/step.h")
        self.expect_one("trainer/run/a.cc", '#include "server/grpc/a.h"\n', "does not exist")
        found = self.violations_with(files={"server/grpc/a.h": "#pragma once\n",
                                            "trainer/run/a.cc": '#include "server/grpc/a.h"\n'}, rules=DEPENDENCIES)
        self.assertEqual(len(found), 1, found)

    def test_what_a_folder_does_not_know(self):
        for path, included, part in (("common/engine/a.cc", '"trainer/step/step.h"', "must not include"),
                                     ("deploy/probe/a.cc", '"common/base/status.h"', "deploy must not include"),
                                     ("common/metrics/a.cc", '"common/engine/engine.h"', "must not include"),
                                     ("common/model/a.cc", '"common/engine/engine.h"', "must not include"),
                                     ("kernels/cpu/head/a.cc", '"common/base/status.h"', "must not include"),
                                     ("kernels/cpu/head/a.cc", "<c10/util/Half.h>", "is not for kernels"),
                                     ("common/base/a.cc", "<torch/torch.h>", "is not for common"),
                                     ("kernels/torch/head/a.cc", '"common/model/decoder.h"', "must not include")):
            rules = DEPENDENCIES if "engine.h" in included else check_architecture.RULES
            with self.subTest(path, included=included):
                self.expect_one(path, f"#include {included}\n", part, rules)

    def test_layers_of_a_folder(self):
        layers = (check_architecture.check_layers,)
        self.expect_one("trainer/step/a.cc", '#include "trainer/run/x.h"\n', "does not exist")
        for path, included in (("trainer/step/a.cc", "trainer/run/x.h"), ("server/grpc/a.cc", "server/http/x.h"),
                               ("common/model/a.cc", "common/engine/x.h"), ("kernels/cpu/math/a.cc", "kernels/cpu/head/x.h"),
                               ("kernels/include/taopd/base/a.h", "kernels/include/taopd/head/x.h")):
            found = self.violations_with(files={path: f'#include "{included}"\n', included: ""}, rules=layers)
            self.assertEqual(len(found), 1, found)
            self.assertIn(f"must not include {included}", found[0])
            found = self.violations_with(files={included: f'#include "{path}"\n', path: ""}, rules=layers)
            self.assertEqual(len(found), 1 if "http" in included else 0, found)

    def test_unknown_subfolder(self):
        self.expect_one("trainer/attic/a.cc", "", "does not name this subfolder",
                        rules=(check_architecture.check_layers,))

    def test_tests_mirror(self):
        self.expect_one("tests/trainer/step/client_test.cc", "", "is in another folder than its source in trainer/teacher")
        self.expect_one("tests/trainer/attic/a_test.cc", "", "there is no folder trainer/attic")
        self.expect_one("trainer/guard/guard.cc", "", "there are no tests in tests/trainer/guard")
        found = self.violations_with(files={"trainer/cli/cli.cc": "", "tests/trainer/cli/cli_test.cc": ""})
        self.assertEqual(found, ["tests/trainer/cli/cli_test.cc:1: TESTED_ELSEWHERE names trainer/cli, which has tests"])
        found = self.violations_with(files={"tests/trainer/teacher/cache_test.cc": "",
                                            "trainer/teacher/cache/cache.cc": ""})
        self.assertEqual(len(found), 1, found)

    def test_a_test_in_no_list(self):
        tests = {path: "" for path in ("tests/trainer/run/a_test.cc", "tests/trainer/run/b_test.cc", "tests/trainer/step/c_test.cc")}
        lists = {"tests/CMakeLists.txt": "\n".join(GOOD).replace("tests/", ""),
                 "tests/trainer/CMakeLists.txt": "taopd_test(run_test SRCS run/a_test.cc ${PROJECT_SOURCE_DIR}/tests/trainer/step/c_test.cc)\n"}
        found = self.violations_with(files={**tests, **lists})
        self.assertEqual(found, ["tests/trainer/run/b_test.cc:1: no CMake list has this test, so nothing runs it"])

    def test_names_of_joined_sources(self):
        def source(name, namespace="taopd"):
            return f"namespace {namespace} {{\nnamespace {{\n\nint {name}(int a) {{\n  return a;\n}}\n\n}}  // namespace\n}}  // namespace {namespace}\n"
        def check(first, second, target="taopd_library(taopd_run SRCS a.cc b.cc)\n"):
            return self.violations_with(files={"trainer/run/a.cc": first, "trainer/run/b.cc": second,
                                               "trainer/run/CMakeLists.txt": target})
        found = check(source("Add"), "\n" + source("Add"))
        self.assertEqual(found, ["trainer/run/b.cc:5: Add is in an anonymous namespace of trainer/run/a.cc, too; "
                                 "both are of taopd_run"])
        added = {"trainer/CMakeLists.txt": "taopd_library(taopd_training\n  SRCS run/run.cc)\n",
                 "trainer/run/run.cc": GOOD["trainer/run/run.cc"] + source("Add"), "trainer/run/b.cc": source("Add"),
                 "trainer/run/CMakeLists.txt": "if(TRUE)\n  target_sources(taopd_training PRIVATE b.cc)\nendif()\n"}
        self.assertEqual(len(self.violations_with(files=added)), 1)
        self.assertEqual(check(source("Add"), source("Sum")), [])
        self.assertEqual(check(source("Add"), source("Add", "taopd::other")), [])
        self.assertEqual(check(source("Add"), source("Add").replace("namespace {\n", "").replace("}  // namespace\n", "")), [])
        self.assertEqual(check(source("Add"), source("Add"), "taopd_library(taopd_run PLAIN SRCS a.cc b.cc)\n"), [])
        above = {"trainer/b.cc": source("Add"), "trainer/run/a.cc": source("Add"),
                 "trainer/run/CMakeLists.txt": "taopd_library(taopd_run SRCS a.cc ../b.cc)\n"}
        rules = (check_architecture.check_names_of_joined_sources,)
        self.assertEqual(len(self.violations_with(files=above, rules=rules)), 1)
        self.expect_one("trainer/run/CMakeLists.txt", "taopd_library(taopd_run\n  SRCS absent.cc ${B}/made.cc)\n",
                        "the list of taopd_run has absent.cc, which does not exist")

    def test_long_function(self):
        def function(length):
            return "int F(int a,\n      int b) {\n" + "  a += b;\n" * (length - 4) + "  return a;\n}\n"
        self.expect_one("trainer/run/a.cc", function(81), "a function of 81 lines")
        self.expect_one("trainer/run/a.cc", "namespace taopd {\n\n" + function(81) + "\n}  // namespace taopd\n", ":3: ")
        member = "class A {\n public:\n  void G() {\n" + "    Use();\n" * 79 + "  }\n};\n"
        self.expect_one("trainer/run/a.cc", member, ":3: a function of 81 lines")
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": function(80)}), [])
        table = "constexpr int kTable[] = {\n" + "    1,\n" * 200 + "};\n"
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": table}), [])

    def test_header_of_tests_alone(self):
        self.expect_one("common/base/queue.h", "#pragma once\n", "no other file of the programs")
        found = self.violations_with(files={"common/base/queue.h": "#pragma once\n",
                                            "common/base/queue.cc": '#include "common/base/queue.h"\n',
                                            "tests/common/base/queue_test.cc": '#include "common/base/queue.h"\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn("common/base/queue.h:1: no other file of the programs", found[0])

    def test_header_that_the_build_compiles(self):
        loops = {"kernels/cpu/math/a_isa.h": "#pragma once\n"}
        self.assertEqual(len(self.violations_with(files=loops)), 1)
        named = {**loops, "kernels/cpu/CMakeLists.txt": "taopd_isa_sources(math/a FUSED)\n"}
        self.assertEqual(self.violations_with(files=named), [])

    def test_inline_functions_of_loops(self):
        loops = {"kernels/cpu/math/a_isa.h": '#include "taopd/base/b.h"\ninline int F() { return 1; }\n'}
        for function, expected in (("inline int F() {", 1), ("constexpr int F() {", 1),
                                   ("TAOPD_ALWAYS_INLINE constexpr int F() {", 0), ("inline constexpr int kF = G();", 0)):
            found = self.violations_with(files={**loops, "kernels/include/taopd/base/b.h": function + "\n"},
                                         rules=(check_architecture.check_functions_of_loops,))
            self.assertEqual(len(found), expected, found)

    def test_comment_names_a_file(self):
        self.expect_one("trainer/run/a.cc", "int x;  // as statsu.h says\n", "statsu.h, which does not exist")
        self.expect_one("trainer/run/a.cc", "// See common/base/state.h.\n", "common/base/state.h")
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": "// See common/base/status.h, status.h.\n"}), [])

    def test_lists_of_comments(self):
        self.expect_one("trainer/run/a.cc", "// What follows:\n//  - one\n// and more.\n", ":2: a list of one item")
        self.expect_one("trainer/run/a.cc", "// One sentence.\n//  Another one,\n// which ends.\n", ":2: a comment's line")
        good = "// What follows:\n//  - one,\n//    in two lines\n//  - two\n//\n//   taopd-trainer train\n// 1. A phase.\n"
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": good}), [])
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": "// 1. A phase alone.\n"}), [])

    def test_wide_lines(self):
        self.expect_one("trainer/run/a.cc", "int x;  // " + "x " * 45 + "\n", "a line of 101 columns")
        self.expect_one("trainer/run/a.cc", "\n// " + "x" * 98 + "\n", ":2: a line of 101")
        for width, text in ((100, "// " + "x" * 97), (101, 'f("//' + "x" * 90 + '");  '), (120, "// https://" + "x" * 109)):
            self.assertEqual(self.violations_with(files={"trainer/run/a.cc": text + "\n"}), [], width)
        self.expect_one("common/cmake/a.cmake", "set(name " + "x" * 91 + ")\n", ":1: a line of 101")

    def test_wire_meets_libtorch(self):
        """Directly, through headers, and with spdlog, which counts as wire."""
        self.expect_one("trainer/run/a.cc", '#include <ATen/ATen.h>\n#include <grpcpp/grpcpp.h>\n', "sees LibTorch")
        self.expect_one("server/grpc/a.cc", '#include "x.pb.h"\n#include "common/model/decoder.h"\n',
                        "common/model/decoder.h > ATen/ATen.h")
        self.expect_one("trainer/run/a.cc", '#include <spdlog/spdlog.h>\n#include "trainer/step/step.h"\n',
                        "spdlog/spdlog.h")

    def test_long_file(self):
        self.expect_one("trainer/run/a.cc", "// x\n" * 501, "501 lines")
        self.assertEqual(self.violations_with(files={"trainer/run/a.cc": "// x\n" * 500}), [])

    def test_crowded_folder(self):
        files = {f"trainer/run/{i}.cc": "" for i in range(21)}
        found = self.violations_with(files=files)
        self.assertEqual(len(found), 1, found)
        self.assertIn("trainer/run:1: 22 files", found[0])

    def test_ascii(self):
        self.expect_one("common/base/a.cc", "// caf\u00e9\n", "not ASCII")
        self.expect_one("deploy/setup", b"#!/bin/sh\n# \xff\n", "not ASCII")

    def test_pragma_once(self):
        self.expect_one("common/base/a.h", "int x;\n", "lacks #pragma once", (check_architecture.check_includes,))

    def test_missing_and_relative_includes(self):
        self.expect_one("common/base/a.cc", '#include "common/base/statsu.h"\n', "does not exist")
        self.expect_one("common/base/a.cc", '#include "../base/status.h"\n', "not relative to the root")

    def test_names_are_included(self):
        self.expect_one("common/base/a.cc", "std::vector<int> a;\nstd::vector<int> b;\n", "a.cc:1: uses std::vector without <vector>")
        self.expect_one("common/base/a.cc", "#include <map>\nabsl::StatusOr<int> a();\n", "without <absl/status/statusor.h>")
        through_a_header = {"common/base/a.cc": '#include "common/base/status.h"\nstd::string a;  // not std::vector\n'}
        self.assertEqual(self.violations_with(files=through_a_header), [])
