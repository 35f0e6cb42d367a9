"""Puts the client of deploy/python, and the modules of tests/deploy, on the path of its tests."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "deploy/python"), str(HERE.parent)]
