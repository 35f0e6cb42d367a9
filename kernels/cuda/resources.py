#!/usr/bin/env python3
"""Registers, shared memory and spills of the kernels, compared with resources.tsv beside this file.

    resources.py launch NVCC ARGUMENTS...    runs the compiler with -Xptxas=-v and compares what ptxas reports
    resources.py write LOG...                writes the table from the output of nvcc -Xptxas=-v

CMake uses the first form for each .cu file. A kernel that needs more than the table says, or that the table lacks, is a
warning. With TAOPD_CUDA_STRICT=1 in the environment it is an error, and so is one that needs less. With another release of
nvcc than the one that wrote the table, only spills are compared, because the other numbers differ between releases."""

import os
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("resources.tsv")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
HEAD = "kernel\tarchitecture\tregisters\tshared memory, bytes\tstack, bytes\tspilled, bytes"


def short_names(mangled):
    """{mangled: name and template arguments, without namespaces and parameters}."""
    text = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    names = {}
    for symbol, full in zip(mangled, text.splitlines()):
        name = re.sub(r"\(anonymous namespace\)::|taopd::cuda::|^void |\((?:int|bool)\)", "", full)
        names[symbol] = re.sub(r"\(.*$", "", name)  # the parameters
    return names


def parse(output):
    """{(kernel, architecture): (registers, shared, stack, spilled)}; library kernels (CUB's) are left out."""
    found, entry, stack = {}, None, (0, 0)
    for line in output.splitlines():
        if match := ENTRY.search(line):
            entry = match.groups()
        elif entry and (match := STACK.search(line)):
            stack = (int(match.group(1)), int(match.group(2)) + int(match.group(3)))
        elif entry and (match := USED.search(line)):
            shared = SHARED.search(line)
            found[entry] = (int(match.group(1)), int(shared.group(1)) if shared else 0, *stack)
            entry = None
    names = short_names(sorted({symbol for symbol, _ in found}))
    return {(names[symbol], arch): numbers for (symbol, arch), numbers in found.items()
            if not names[symbol].startswith("cub::")}


def read_table():
    """The release of nvcc, and the rows as parse() gives them."""
    lines = TABLE.read_text(encoding="ascii").splitlines()
    rows = {}
    for line in lines[2:]:
        kernel, arch, *numbers = line.split("\t")
        rows[kernel, arch] = tuple(map(int, numbers))
    return lines[0].removeprefix("# nvcc "), rows


def release_of(nvcc):
    found = re.search(r"release ([\d.]+), V([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True,
                                                                     check=True).stdout)
    return found.group(2) if found else "unknown"


def complaints(found, table, same_release, strict):
    """Sentences about the kernels that differ from the table."""
    said = []
    for (kernel, arch), numbers in sorted(found.items()):
        expected = table.get((kernel, arch))
        if expected is None:
            known = {row_arch for _, row_arch in table}
            if arch in known:
                said.append(f"{kernel} on {arch} is not in resources.tsv")
        elif numbers[3] > expected[3]:
            said.append(f"{kernel} on {arch} spills {numbers[3]} bytes instead of {expected[3]}")
        elif same_release and (any(n > e for n, e in zip(numbers, expected)) or (strict and numbers != expected)):
            said.append(f"{kernel} on {arch} takes registers, shared memory, stack and spills of {numbers} instead of "
                        f"{expected}")
    return said


def launch(command):
    result = subprocess.run([*command, "-Xptxas=-v"], stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    is_info = re.compile(r"ptxas info |^\s+\d+ bytes stack frame")
    sys.stderr.write("".join(line for line in result.stderr.splitlines(True) if not is_info.search(line)))
    if result.returncode != 0 or not ENTRY.search(result.stderr):
        return result.returncode
    strict = os.environ.get("TAOPD_CUDA_STRICT") == "1"
    release, table = read_table()
    said = complaints(parse(result.stderr), table, release_of(command[0]) == release, strict)
    for sentence in said:
        print(f"{'error' if strict else 'warning'}: {sentence}", file=sys.stderr)
    return 1 if said and strict else 0


def write(release, outputs):
    found = {}
    for output in outputs:
        found.update(parse(output))
    rows = ["\t".join([kernel, arch, *map(str, numbers)]) for (kernel, arch), numbers in sorted(found.items())]
    TABLE.write_text("\n".join([f"# nvcc {release}", HEAD, *rows]) + "\n", encoding="ascii")


if __name__ == "__main__":
    if sys.argv[1:2] == ["launch"]:
        sys.exit(launch(sys.argv[2:]))
    if sys.argv[1:2] != ["write"] or not sys.argv[2:]:
        sys.exit(__doc__)
    write(release_of("nvcc"), [pathlib.Path(path).read_text(encoding="utf-8", errors="replace") for path in sys.argv[2:]])
