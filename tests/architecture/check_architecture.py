"""The tree's rules that a compiler does not enforce.

Usage: check_architecture.py ROOT     prints each violation as FILE:LINE: what; exit code 1 on any

Rules:
  1. Arrows go down only: a folder includes what ALLOWED gives it and nothing else of the tree.
  2. No file sees both gRPC or protobuf (or fmt, spdlog) and LibTorch, directly or through headers of the
     tree: LibTorch's include directory carries other versions of them.
  3. LibTorch is included only where LIBTORCH_FOLDERS allows it.
  4. Source files have at most MAX_LINES lines and hold ASCII only.
  5. Headers start with #pragma once; includes are relative to the root and name files that exist.
"""

import pathlib
import re
import sys

MAX_LINES = 600
FOLDERS = ("common", "kernels", "proto", "server", "trainer", "deploy", "tests")
CODE = (".cc", ".h", ".cu", ".cuh")
TEXT = CODE + (".proto", ".cmake", ".py", ".sh", ".yaml", ".yml", ".env", ".md")

# Longest prefix wins. common/{base,...} and kernels/{include,cpu,cuda} know neither each other nor LibTorch.
BASE = ("common/base", "common/config", "common/io", "common/text", "common/metrics")
KERNELS = ("kernels/include", "kernels/cpu", "kernels/cuda")
MODEL = BASE + KERNELS + ("kernels/torch", "common/model", "common/dist", "common/cmake")
ALLOWED = {
    "kernels": KERNELS,
    "kernels/torch": KERNELS + BASE + ("kernels/torch",),
    "common": BASE,
    "common/cmake": ("common/cmake",),
    "common/model": MODEL,
    "common/dist": MODEL,
    "common/engine": MODEL + ("common/engine",),
    "proto": BASE + ("proto",),
    "server": MODEL + ("common/engine", "proto", "server"),
    "trainer": MODEL + ("common/engine", "proto", "trainer"),
    "tests": FOLDERS,
}
LIBTORCH_FOLDERS = ("kernels/torch", "common/cmake", "common/model", "common/dist", "common/engine", "server",
                    "trainer", "tests")

LIBTORCH = re.compile(r"^(ATen|torch|c10)/")
WIRE = re.compile(r"^(grpc|grpcpp|grpc\+\+|google/protobuf|fmt|spdlog)/|\.pb\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def in_folder(path, folder):
    return path == folder or path.startswith(folder + "/")


def longest_prefix(path, folders):
    return max((f for f in folders if in_folder(path, f)), key=len, default=None)


class Tree:
    """Code files of a tree and what they include."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts = {}      # relative path -> text, of every file that the rules on text concern
        self.includes = {}   # relative path of a code file -> [(line number, path of the tree or None, name)]
        for path in self._files():
            data = path.read_bytes()
            script = not path.suffix and data.startswith(b"#!")
            if path.suffix in TEXT or path.name == "CMakeLists.txt" or script:
                self.texts[str(path.relative_to(self.root))] = data
        for name, data in self.texts.items():
            if name.endswith(CODE):
                self.includes[name] = [self._resolve(name, number, match)
                                       for number, line in enumerate(data.decode("latin-1").split("\n"), 1)
                                       if (match := INCLUDE.match(line))]

    def _files(self):
        for path in sorted(self.root.iterdir()):
            if path.is_file():
                yield path
        for folder in FOLDERS:
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file():
                    yield path

    def _resolve(self, name, number, match):
        included = match.group(2)
        # kernels/include is an include directory of its own: "taopd/objective/objective.h".
        for candidate in (included, "kernels/include/" + included):
            if (self.root / candidate).is_file():
                return number, candidate, included
        return number, None, included

    def reaches(self, name, pattern):
        """The chain of files from `name` to the first include that matches, or None."""
        stack, seen = [(name, (name,))], {name}
        while stack:
            here, chain = stack.pop()
            for _, path, included in self.includes.get(here, ()):
                if pattern.search(included):
                    return chain + (included,)
                if path and path not in seen:
                    seen.add(path)
                    stack.append((path, chain + (path,)))
        return None


def check_arrows(tree):
    for name, includes in tree.includes.items():
        source = longest_prefix(name, ALLOWED)
        for number, path, included in includes:
            if path and source and not any(in_folder(path, f) for f in ALLOWED[source]):
                yield f"{name}:{number}: {source} must not include {path}"
            if LIBTORCH.search(included) and not longest_prefix(name, LIBTORCH_FOLDERS):
                yield f"{name}:{number}: LibTorch ({included}) is not for {source}"


def check_libtorch_meets_wire(tree):
    for name in tree.includes:
        libtorch, wire = tree.reaches(name, LIBTORCH), tree.reaches(name, WIRE)
        if libtorch and wire:
            yield f"{name}:1: sees LibTorch ({' > '.join(libtorch[1:])}) and {' > '.join(wire[1:])}"


def check_includes(tree):
    for name, includes in tree.includes.items():
        if name.endswith((".h", ".cuh")) and not re.search(rb"^#pragma once$", tree.texts[name], re.M):
            yield f"{name}:1: lacks #pragma once"
        for number, path, included in includes:
            if path is None and included.startswith(tuple(f + "/" for f in FOLDERS)) and not WIRE.search(included):
                yield f"{name}:{number}: {included} does not exist"
            if included.startswith("."):
                yield f"{name}:{number}: {included} is not relative to the root"


def check_text(tree):
    for name, data in tree.texts.items():
        num_lines = data.count(b"\n")
        if num_lines > MAX_LINES and not name.endswith(".md"):
            yield f"{name}:{num_lines}: {num_lines} lines, the limit is {MAX_LINES}"
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.isascii():
                yield f"{name}:{number}: not ASCII: {line.decode('utf-8', 'replace').strip()[:60]!r}"


def violations(root):
    tree = Tree(root)
    for rule in (check_arrows, check_libtorch_meets_wire, check_includes, check_text):
        yield from rule(tree)
    if len(tree.includes) == 0:
        yield f"{root}: no source files"


def main():
    found = list(violations(sys.argv[1]))
    for violation in found:
        print(violation)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
