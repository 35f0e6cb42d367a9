"""tests/gpu/cost_model.py: against an enumeration of all plans, and against times that others measured."""

import math
import pathlib
import unittest

import cost_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
BY_NAME = {device.name: device for device in cost_model.DEVICES}
# Published times are of whole programs, the model's of perfect overlap.
TOLERANCE = 0.15


class CostModelTest(unittest.TestCase):
    def test_no_plan_that_fits_is_faster_than_the_best_one(self):
        model = cost_model.Model("small", 64, 5000, 1, 4, 2, 16)
        device, rows = BY_NAME["H200"], 96
        for mib in (1, 2, 4):
            workspace = mib << 20
            best = cost_model.best_student_head(rows, model, workspace, device).seconds(device)
            # Chunks are any whole number of runs.
            for logits_rows in (1, 2, 4, 8, 16, 32, 64):
                for chunk in range(logits_rows, rows + 1, logits_rows):
                    size = logits_rows * model.vocabulary * 4 + chunk * (model.vocabulary * 2 + model.hidden * 6)
                    if size <= workspace:
                        other = cost_model.student_head(rows, model, (logits_rows, chunk)).seconds(device)
                        self.assertLessEqual(best, other * (1 + 1e-9), (mib, logits_rows, chunk))
        self.assertIsNone(cost_model.best_student_head(rows, model, 1000, device))

    def test_each_run_reads_lm_head_and_each_chunk_its_gradient_as_well(self):
        model = cost_model.Model("small", 64, 5000, 1, 4, 2, 16)
        traffic = lambda plan: cost_model.student_head(64, model, plan).memory_bytes  # noqa: E731
        elements = model.hidden * model.vocabulary
        self.assertEqual(traffic((8, 32)) - traffic((8, 64)), (2 + 4 + 4) * elements)
        self.assertEqual(traffic((4, 64)) - traffic((8, 64)), 8 * 2 * elements)

    def test_large_products_take_what_others_measured(self):
        llama = cost_model.Model("Llama head", 4096, 128256, 0, 32, 8, 128)
        head = cost_model.best_student_head(4096, llama, 4 << 30, BY_NAME["H200"])
        # QuACK's linear cross entropy, forward and backward, on an H200, as Liger reports it.
        self.assertLess(abs(head.seconds(BY_NAME["H200"]) / 17.33e-3 - 1), TOLERANCE)
        qwen = next(model for model in cost_model.MODELS if model.name == "Qwen3-8B")
        products = cost_model.Cost("three products", 6 * 8192 * qwen.hidden * qwen.vocabulary, launches=3)
        # The three products alone on an H100, as TRL reports them.
        self.assertLess(abs(products.seconds(BY_NAME["H100"]) / 42e-3 - 1), TOLERANCE)

    def test_a_larger_workspace_is_never_slower(self):
        qwen = cost_model.MODELS[2]
        times = [cost_model.best_student_head(8192, qwen, mib << 20, BY_NAME["H200"]).seconds(BY_NAME["H200"])
                 for mib in (64, 256, 1024, 2048, 8192)]
        self.assertEqual(times, sorted(times, reverse=True))

    def test_a_small_workspace_is_raised_to_512_rows(self):
        qwen = cost_model.MODELS[2]
        heads = [cost_model.costs(qwen, BY_NAME["H200"], 8192, 8192, mib << 20)[0] for mib in (1, 256, 600)]
        self.assertEqual(heads[0], heads[1])
        self.assertGreater(heads[1].memory_bytes, heads[2].memory_bytes)
        # 512 rows of 151,936 logits and exponentials in bfloat16, and of two hidden states.
        self.assertEqual(cost_model.least_head_workspace(8192, qwen), (40 << 20) + 512 * (151936 * 6 + 4096 * 6))
        constants = (ROOT / "kernels/include/taopd/head/logit_chunk.h").read_text(encoding="utf-8")
        self.assertIn(f"kMinStudentRows = {cost_model.MIN_STUDENT_ROWS};", constants)
        self.assertIn("kOtherBytes = int64_t{40} << 20;", constants)

    def test_the_table_has_every_kernel_on_every_device(self):
        for model in cost_model.MODELS:
            lines = cost_model.table(model, cost_model.DEVICES, 4096, 4096, 256 << 20).splitlines()[4:]
            self.assertEqual(len(lines), 8 * len(cost_model.DEVICES))
            for line in lines:
                ms = float(line.split("|")[3])
                self.assertTrue(math.isfinite(ms) and ms > 0, line)

    def test_the_slowest_part_is_named(self):
        device = BY_NAME["A100"]
        for cost, bound in ((cost_model.Cost("a", product_flop=1e15), "products"),
                            (cost_model.Cost("b", scalar_flop=1e15), "CUDA cores"),
                            (cost_model.Cost("c", memory_bytes=1e12), "memory"), (cost_model.Cost("d"), "launches")):
            self.assertEqual(cost.bound(device), bound)
