"""Waiting for what another process does."""

import time

WAIT_S = 120


def wait_for(condition, what, process=None, wait_s=WAIT_S):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + wait_s
    while True:
        value = condition()
        if value:
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the program ended with {process.returncode}")
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {wait_s} s")
        time.sleep(0.02)
