"""The machine of a benchmark: the place of the installed peers, its processor, and the load by other processes."""

import os
import pathlib
import platform
import re
import resource
import time


def dependencies():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("TAOPD_DEPS") or os.path.join(cache, "taopd"))


class Load:
    """How many cores others take while the children of this process run."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy_s = (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), busy_s - usage.ru_utime - usage.ru_stime

    def others(self):
        elapsed_s, busy_s = (b - a for a, b in zip(self.begin, self.now()))
        return max(0.0, busy_s / elapsed_s)


def processor():
    match = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{match.group(1) if match else platform.processor()}, {os.cpu_count()} cores"
