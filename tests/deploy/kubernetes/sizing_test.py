"""Sizes: the table of docs/deploy/operations.md is what the teacher plans, and the overlays' pods hold their teachers."""

import os
import re
import unittest

import manifests
from environment import ROOT, load_script, loaded_bin_dir, temporary_path
from manifests import find, of_kind, quantity
from rules import flag

# The teacher takes this share of its control group; and an overlay's largest teacher (docs/deploy/operations.md).
SHARE = 0.9
LARGEST = {"laptop": "Qwen3-0.6B", "single-gpu": "Qwen3-1.7B", "cluster": "Qwen3-8B"}
GIB = 2**30


sizing = load_script("deploy/tools/sizing_table")


def setUpModule():
    os.environ["TAOPD_BIN_DIR"] = str(loaded_bin_dir())  # for sizing_table


class SizingTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.path = temporary_path(cls)

    def model(self, name):
        path = self.path / name
        return path if path.exists() else sizing.write_model(self.path, name)

    def test_table(self):
        text = (ROOT / "docs/deploy/operations.md").read_text()
        table = re.search(r"^\| teacher \| weights .*?(?=\n\n)", text, re.M | re.S)[0]
        self.assertEqual(table.splitlines(), list(sizing.lines()))

    def problems(self, overlay, objects):
        """Parts of the largest teacher that do not fit into the pod, or into a GPU of 24 GB."""
        template = find(objects, "Deployment", "teacher")["spec"]["template"]["spec"]
        settings = next(thing["data"] for thing in of_kind(objects, "ConfigMap")
                        if thing["metadata"]["name"].startswith("teacher-settings"))
        limit = quantity(template["containers"][0]["resources"]["limits"]["memory"]) / GIB
        messages = int(settings["MAX_MESSAGE_MEMORY_BYTES"]) / GIB
        found = []
        flags = ("--kv-cache-memory-bytes", settings["KV_CACHE_MEMORY_BYTES"], "--gpu-memory-utilization",
                 flag(template["containers"][0], "gpu-memory-utilization") or "0.9")
        host = 0.5  # code, data and buffers beside a GPU; the pages of the weights' files are given back
        if settings["DEVICE"] == "cuda":
            if not sizing.plan(self.model(LARGEST[overlay]), "cuda:24GB", *flags)[1]:
                found.append("the GPU is too small")
        else:
            host = sizing.plan(self.model(LARGEST[overlay]), f"cpu:{limit}GiB", *flags)[0]
        if host + messages > SHARE * limit:
            found.append(f"{host} + {messages} GiB do not fit into {SHARE} of {limit} GiB")
        return found

    def test_overlays(self):
        for overlay in LARGEST:
            with self.subTest(overlay):
                objects = manifests.render(overlay)
                self.assertEqual(self.problems(overlay, objects), [])
                if overlay == "single-gpu":  # the rest of the GPU is the trainer's
                    self.assertLess(float(flag(find(objects, "Deployment", "teacher")["spec"]["template"]["spec"]["containers"][0],
                                               "gpu-memory-utilization")), 0.5)
                pod = find(objects, "Deployment", "teacher")["spec"]["template"]["spec"]
                pod["containers"][0]["resources"]["limits"]["memory"] = "1500Mi"
                self.assertNotEqual(self.problems(overlay, objects), [])
