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
    "kernels/cpu/head.cc": '#include "taopd/objective/objective.h"\n',
    "kernels/torch/head.cc": '#include <ATen/ATen.h>\n#include "taopd/objective/objective.h"\n',
    "server/service.cc": '#include <grpcpp/grpcpp.h>\n#include "common/engine/engine.h"\n',
    "trainer/step.h": '#pragma once\n#include "common/model/decoder.h"\n',
    "trainer/client.cc": '#include "proto/taopd/v1/teacher.pb.h"\n#include "common/base/status.h"\n',
}


class CheckArchitectureTest(unittest.TestCase):
    def violations_with(self, **changes):
        """Violations of the good tree after `changes` (path -> text, or bytes)."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**GOOD, **changes.get("files", {})}.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text if isinstance(text, bytes) else text.encode())
            return list(check_architecture.violations(root))

    def expect_one(self, path, text, part):
        found = self.violations_with(files={path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ":"), found)
        self.assertIn(part, found[0])

    def test_good_tree(self):
        self.assertEqual(self.violations_with(), [])

    def test_empty_tree(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(list(check_architecture.violations(root)), [f"{root}: no source files"])

    def test_server_and_trainer(self):
        self.expect_one("server/a.cc", '#include "trainer/step.h"\n', "server must not include trainer/step.h")
        found = self.violations_with(files={"server/a.h": "#pragma once\n", "trainer/a.cc": '#include "server/a.h"\n'})
        self.assertEqual(len(found), 1, found)

    def test_common_knows_no_program(self):
        self.expect_one("common/engine/a.cc", '#include "trainer/step.h"\n', "must not include")

    def test_base_knows_no_engine(self):
        self.expect_one("common/text/a.cc", '#include "common/engine/engine.h"\n', "must not include")

    def test_model_knows_no_engine(self):
        self.expect_one("common/model/a.cc", '#include "common/engine/engine.h"\n', "must not include")

    def test_kernels_know_no_common(self):
        self.expect_one("kernels/cpu/a.cc", '#include "common/base/status.h"\n', "must not include")

    def test_kernels_know_no_libtorch(self):
        self.expect_one("kernels/cpu/a.cc", "#include <c10/util/Half.h>\n", "is not for kernels")

    def test_base_knows_no_libtorch(self):
        self.expect_one("common/io/a.cc", "#include <torch/torch.h>\n", "is not for common")

    def test_kernels_torch_knows_no_model(self):
        self.expect_one("kernels/torch/a.cc", '#include "common/model/decoder.h"\n', "must not include")

    def test_wire_meets_libtorch_directly(self):
        self.expect_one("trainer/a.cc", '#include <ATen/ATen.h>\n#include <grpcpp/grpcpp.h>\n', "sees LibTorch")

    def test_wire_meets_libtorch_through_headers(self):
        self.expect_one("server/a.cc", '#include "x.pb.h"\n#include "common/model/decoder.h"\n',
                        "common/model/decoder.h > ATen/ATen.h")

    def test_spdlog_counts_as_wire(self):
        self.expect_one("trainer/a.cc", '#include <spdlog/spdlog.h>\n#include "trainer/step.h"\n', "spdlog/spdlog.h")

    def test_long_file(self):
        self.expect_one("trainer/a.cc", "// x\n" * 601, "601 lines")
        self.assertEqual(self.violations_with(files={"trainer/a.cc": "// x\n" * 600}), [])

    def test_ascii(self):
        self.expect_one("common/base/a.cc", "// caf\u00e9\n", "not ASCII")
        self.expect_one("deploy/setup", b"#!/bin/sh\n# \xff\n", "not ASCII")

    def test_pragma_once(self):
        self.expect_one("common/base/a.h", "int x;\n", "lacks #pragma once")

    def test_missing_and_relative_includes(self):
        self.expect_one("common/base/a.cc", '#include "common/base/statsu.h"\n', "does not exist")
        self.expect_one("common/base/a.cc", '#include "../base/status.h"\n', "not relative to the root")


if __name__ == "__main__":
    unittest.main()
