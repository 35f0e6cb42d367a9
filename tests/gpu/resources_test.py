"""kernels/cuda/resources.py: what is read from ptxas's report, and which differences from the table are told."""

import contextlib
import io
import os
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernels/cuda"))
import resources  # noqa: E402

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN5taopd4cuda9ScaleRowsIffEEvPKT_lPKflPT0_l' for 'sm_90a'
ptxas info    : Function properties for _ZN5taopd4cuda9ScaleRowsIffEEvPKT_lPKflPT0_l
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 16 bytes cumulative stack size, 2052 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 2.454 ms
ptxas info    : Compiling entry function '_ZN3cub6detail4ScanEv' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers
"""
KEY = ("ScaleRows<float, float>", "sm_90a")


class ResourcesTest(unittest.TestCase):
    def test_a_report(self):
        self.assertEqual(resources.parse(REPORT), {KEY: (14, 2052, 16, 20)})

    def test_every_kernel_is_in_the_table_for_every_architecture(self):
        release, table = resources.read_table()
        self.assertRegex(release, r"^13\.")
        architectures = {arch for _, arch in table}
        self.assertEqual(architectures, {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"})
        self.assertEqual(len(table), len({kernel for kernel, _ in table}) * len(architectures))
        # Blocks of 512 threads, and 65,536 registers for all of them.
        for arch in architectures:
            self.assertLessEqual(table["ScoringRow", arch][0] * 512, 65536)

    def test_differences(self):
        table = {KEY: (14, 2052, 16, 20)}

        def said(numbers, same_release=True, strict=False, key=KEY):
            return resources.complaints({key: numbers}, table, same_release, strict)

        self.assertEqual(said((14, 2052, 16, 20)), [])
        self.assertIn("spills 24 bytes instead of 20", said((14, 2052, 16, 24), same_release=False)[0])
        self.assertIn("(15, 2052, 16, 20)", said((15, 2052, 16, 20))[0])
        self.assertEqual(said((15, 2052, 16, 20), same_release=False), [])
        self.assertEqual(said((13, 2052, 16, 20)), [])
        self.assertIn("(13, 4096, 16, 20)", said((13, 4096, 16, 20))[0])
        self.assertIn("(13, 2052, 32, 20)", said((13, 2052, 32, 20))[0])
        self.assertEqual(len(said((13, 2052, 16, 20), strict=True)), 1)
        self.assertIn("is not in resources.tsv", said((1, 0, 0, 0), key=("New", "sm_90a"))[0])
        self.assertEqual(said((1, 0, 0, 0), key=("New", "sm_121")), [])  # an architecture that the table lacks

    def test_the_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            nvcc, report, table = (pathlib.Path(folder, name) for name in ("nvcc", "report", "table.tsv"))
            report.write_text(REPORT + "real message\n", encoding="ascii")
            nvcc.write_text(f"#!/bin/sh\n[ \"$1\" != --version ] || {{ echo 'release 13.0, V13.0.88'; exit; }}\n"
                            f"cat {report} >&2\nexit $CODE\n", encoding="ascii")
            nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
            for strict, code, spilled, expected in (("0", "0", 19, 0), ("1", "0", 19, 1), ("1", "0", 20, 0), ("0", "3", 20, 3)):
                table.write_text(f"# nvcc 13.0.88\n{resources.HEAD}\n{KEY[0]}\t{KEY[1]}\t14\t2052\t16\t{spilled}\n",
                                 encoding="ascii")
                errors = io.StringIO()
                with mock.patch.object(resources, "TABLE", table), contextlib.redirect_stderr(errors), \
                        mock.patch.dict(os.environ, TAOPD_CUDA_STRICT=strict, CODE=code):
                    self.assertEqual(resources.launch([str(nvcc), "-c", "x.cu"]), expected)
                self.assertIn("real message", errors.getvalue())
                self.assertNotIn("ptxas", errors.getvalue())
                self.assertEqual("spills 20 bytes instead of 19" in errors.getvalue(), spilled == 19)
