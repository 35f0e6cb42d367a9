"""The tree's rules that a compiler does not enforce.

Usage: check_architecture.py ROOT     prints each violation as FILE:LINE: what; exit code 1 on any

Rules:
  1. Dependencies go down only: a folder includes what ALLOWED gives it and nothing else of the tree.
  2. No file includes both gRPC or protobuf (or fmt, spdlog) and LibTorch, directly or through headers of the
     tree: LibTorch's include directory carries other versions of them.
  3. LibTorch is included only where LIBTORCH_FOLDERS allows it.
  4. Source files have at most MAX_LINES lines and hold ASCII only; folders hold at most MAX_FILES files; lines with
     comments, and those of CMake lists, have at most MAX_COLUMNS columns.
  5. Headers have #pragma once; includes are relative to the root and name files that exist.
  6. Inside the folders of LAYERS, a subfolder includes subfolders of lower layers, and nothing else of that folder.
  7. Functions have at most MAX_FUNCTION_LINES lines.
  8. A file of the programs other than its own source includes each header of the programs: a header that only tests
     include is dead.
  9. A file that a comment names exists, in the tree or in EXTERNAL_FILES.
 10. A list in a comment has more than one item; no line of a comment stands indented alone.
 11. Tests mirror the tree: the test of X/NAME.cc is tests/X/NAME_test.cc, and every folder of tests has the path of
     a folder of sources. A folder of sources has tests there or in a folder above, unless TESTED_ELSEWHERE names it.
     TESTED_ELSEWHERE names no folder that has tests. Sources in kernels/include/taopd/X are tested in tests/kernels/X.
 12. A source includes the header of each name of NAMES_BY_HEADER that it uses, directly or through headers of the
     tree. The build does not check this: sources of a target are compiled together, with precompiled headers.
 13. The sources of a target of the programs have no functions of the same name in their anonymous namespaces. They are
     compiled as one, so such functions would be overloads, and a call might find that of the other file.
 14. Every NAME_test.cc is in a CMake list.
 15. Inline functions in headers that *_isa.h files include are TAOPD_ALWAYS_INLINE (kernels/cpu/isa/isa.h).
"""

import os
import pathlib
import re
import sys

import cpp_source
from names_by_header import NAMES_BY_HEADER

MAX_LINES = 500
MAX_FILES = 20
MAX_FUNCTION_LINES = 80
MAX_COLUMNS = 100
FOLDERS = ("common", "kernels", "proto", "server", "trainer", "deploy", "tests")
CODE = (".cc", ".h", ".cu", ".cuh")
LISTS = ("CMakeLists.txt", ".cmake")
TEXT = CODE + (".proto", ".cmake", ".py", ".sh", ".yaml", ".yml", ".env", ".md")

# The longest prefix decides. common/{base,...} and kernels/{include,cpu,cuda} include neither each other nor LibTorch.
BASE = ("common/base", "common/wire", "common/config", "common/io", "common/text", "common/metrics")
KERNELS = ("kernels/include", "kernels/cpu", "kernels/cuda")
MODEL = BASE + KERNELS + ("kernels/torch", "common/model", "common/dist")
ENGINE = MODEL + ("common/memory", "common/engine")
ALLOWED = {
    "kernels": KERNELS,
    "kernels/torch": KERNELS + ("kernels/torch",),
    "common": BASE,
    "common/pch": ("common/pch",),
    "common/model": MODEL,
    "common/memory": BASE + ("common/model/config", "common/memory", "kernels/include"),
    "common/engine": ENGINE,
    "common/dist": BASE + ("common/dist",),
    "deploy": (),  # taopd-probe needs only libc
    "proto": ("proto",),
    "server": ENGINE + ("proto", "server"),
    "trainer": ENGINE + ("proto", "trainer"),
    "tests": FOLDERS,
}
MIRRORED = ("common", "kernels", "server", "trainer")
LIBTORCH_FOLDERS = ("kernels/torch", "common/pch", "common/model", "common/dist", "common/engine",
                    "trainer", "tests")

# The subfolders of a folder by layer, lowest first. "." stands for the files of the folder itself, and "a+b" for two
# subfolders that may include each other. Other subfolders of a layer may not.
LAYERS = {
    "common": ("base pch", "io wire", "config dist metrics text", "model", "memory", "engine"),
    "common/text": ("unicode", "bpe jinja .", "tokenizer", "chat"),
    "common/model": ("config+architectures", "parallel", "layers+weights+."),
    "kernels": ("include", "cpu cuda", "torch"),
    "kernels/include/taopd": ("base", "attention objective layers sampling", "head"),
    "kernels/cpu": ("isa", "math", "gemm layers", "attention", "head"),
    "kernels/cuda": (".", "attention gemm", "head layers sampling"),
    "kernels/torch": (".", "composed gemm", "attention layers sampling", "head", "self_check"),
    "server": ("net structured", "options security", "serving", "generation metrics", "grpc http", "app", "."),
    "trainer": ("net", "bandit checkpoint control data grading objective teacher", "config report", "rollout", "guard optim reward", "dist",
                "step", "pipeline", "eval student", "run", "setup", "cli loop", "commands", "."),
    "trainer/setup": (".", "plan", "training"),
}
# Headers that tests, the build or LibTorch's headers include.
INCLUDED_FROM_OUTSIDE = ("tests", "common/pch", "common/dist/gloo_headers")
# Files of other programs that comments cite as sources.
EXTERNAL_FILES = (
    "core/framework/summary.proto", "core/util/event.proto", "lib/hash/crc32c.h",  # TensorFlow
    "evaluation/verifier.py",                                                        # verl's and Qwen's graders
    "modeling_rope_utils.py",                                                        # transformers
    "sysexits.h", "test_all.py", "that/header.h",
)

# Folders without a folder of tests, and what tests them.
TESTED_ELSEWHERE = {
    "common/pch": "the build",
    "common/wire": "both sides of the protocol: tests/server/grpc and tests/trainer/teacher",
    "kernels/cuda/gemm": "tests/gpu, on a GPU",
    "trainer/cli": "tests/integration, with the real program",
    "trainer/commands": "tests/integration, with the real program",
    "trainer/rollout": "tests/integration, with the real program",
}

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
        for name, lines in self.lines(CODE):
            self.includes[name] = [self._resolve(name, number, match) for number, line in enumerate(lines, 1)
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

    def lines(self, endings):
        """(name, lines) of every file whose name ends with one of the endings."""
        for name, data in self.texts.items():
            if name.endswith(endings):
                yield name, data.decode("latin-1").split("\n")

    def included_by(self, name):
        """The names of all files that `name` includes, directly or through files of the tree."""
        stack, seen, names = [name], {name}, set()
        while stack:
            for _, path, included in self.includes.get(stack.pop(), ()):
                names.add(included)
                if path and path not in seen:
                    seen.add(path)
                    stack.append(path)
        return names

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


def check_dependencies(tree):
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


def subfolder_of(path, folder, subfolders):
    """The one of `subfolders` of `folder` that holds `path`, as LAYERS writes it, or None."""
    rest = path[len(folder) + 1:]
    name = rest.split("/")[0] if "/" in rest else "."
    return next((subfolder for subfolder in subfolders if name in subfolder.split("+")), None)


def check_layers(tree):
    for folder, layers in LAYERS.items():
        layer_of = {subfolder: number for number, layer in enumerate(layers) for subfolder in layer.split()}
        for name, includes in tree.includes.items():
            if not in_folder(name, folder):
                continue
            source = subfolder_of(name, folder, layer_of)
            if source is None:
                yield f"{name}:1: LAYERS of {folder} does not name this subfolder"
                continue
            for number, path, _ in includes:
                target = subfolder_of(path, folder, layer_of) if path and in_folder(path, folder) else source
                if target != source and (target is None or layer_of[target] >= layer_of[source]):
                    yield f"{name}:{number}: {folder}/{source} must not include {path}"


def check_functions(tree):
    for name, lines in tree.lines(CODE):
        for number, length in cpp_source.functions(lines):
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{number}: a function of {length} lines, the limit is {MAX_FUNCTION_LINES}"


def check_headers_are_used(tree):
    users = {}
    for name, includes in tree.includes.items():
        if not in_folder(name, "tests"):
            for _, path, _ in includes:
                users.setdefault(path, set()).add(name)
    # The build compiles NAME_isa.h by itself where a CMake list says taopd_isa_sources(NAME ...).
    for name, lines in tree.lines("CMakeLists.txt"):
        for source in re.findall(r"^taopd_isa_sources\(([\w/]+)", "\n".join(lines), re.M):
            users.setdefault(name.replace("CMakeLists.txt", f"{source}_isa.h"), set()).add(name)
    for name in tree.includes:
        if name.endswith((".h", ".cuh")) and not any(in_folder(name, f) for f in INCLUDED_FROM_OUTSIDE):
            own = re.sub(r"\.\w+$", "", name)
            if not any(re.sub(r"\.\w+$", "", user) != own for user in users.get(name, ())):
                yield f"{name}:1: no other file of the programs includes this header"


COMMENT_FILE = re.compile(r"(?<![\w*<{}$/.-])([\w./-]+\.(?:h|cc|cu|py|proto|sh|css|js|cmake|md))\b(?![:*{(])")


def check_comment_files(tree):
    basenames = {pathlib.Path(name).name for name in tree.texts} | {
        path.name for folder in FOLDERS for path in (tree.root / folder).rglob("*.*")}
    for name, lines in tree.lines(CODE):
        here = pathlib.PurePath(name).parent
        for number, text in cpp_source.comments(lines):
            for match in COMMENT_FILE.finditer(text):
                cited = match.group(1)
                # NAME_command.cc and X_isa.h stand for several files.
                found = re.match(r"[A-Z]+_", cited) or cited in EXTERNAL_FILES or ("/" not in cited and cited in basenames) or any(
                    (tree.root / parent / cited).exists()
                    for parent in (pathlib.PurePath("kernels/include"), here, *here.parents))
                if not found:
                    yield f"{name}:{number}: the comment names {cited}, which does not exist"


ITEM = re.compile(r"\s+([-*]|\d+[.)])\s")


def check_lists(tree):
    for name, lines in tree.lines(CODE):
        for start, block in cpp_source.comment_blocks(lines):
            items = [i for i, line in enumerate(block) if ITEM.match(line)]
            if len(items) == 1 and (items[0] > 0 or ITEM.match(block[0]).group(1) in "-*"):
                yield f"{name}:{start + items[0]}: a list of one item"
            for i in range(1, len(block)):
                alone = not (i + 1 < len(block) and re.match(r" {2,}\S", block[i + 1]))
                if (re.match(r" {2,3}\S", block[i]) and not ITEM.match(block[i]) and alone
                        and re.match(r" \S", block[i - 1]) and not ITEM.match(block[i - 1])
                        and not block[i - 1].rstrip().endswith((":", ";", ","))):
                    yield f"{name}:{start + i}: a comment's line is indented alone"


def check_folders(tree):
    counts = {}
    for name in tree.texts:
        parent = str(pathlib.PurePath(name).parent)
        counts[parent] = counts.get(parent, 0) + 1
    for folder, count in counts.items():
        if count > MAX_FILES:
            yield f"{folder}:1: {count} files, the limit is {MAX_FILES}"


# clang-format breaks code at MAX_COLUMNS and leaves comments and CMake lists alone.
def check_width(tree):
    for name, lines in tree.lines(CODE + LISTS):
        for number, text in cpp_source.comments(lines) if name.endswith(CODE) else enumerate(lines, 1):
            width = len(lines[number - 1])
            if width > MAX_COLUMNS and "://" not in text:
                yield f"{name}:{number}: a line of {width} columns, the limit is {MAX_COLUMNS}"


def mirrored(folder):
    """The path in tests/ of a folder of sources."""
    return folder.replace("kernels/include/taopd", "kernels", 1)


def check_tests_mirror(tree):
    top_of = lambda folder: folder.split("/")[0]
    sources = {}     # folder in tests/ -> the first source that is tested there
    folders_of = {}  # (top folder, name of a source without its suffix) -> folders in tests/
    tests = {}       # folder in tests/ -> its tests
    for name in tree.includes:
        folder, base = name.rsplit("/", 1)
        if in_folder(name, "tests"):
            if base.endswith("_test.cc") and top_of(folder[len("tests/"):]) in MIRRORED:
                tests.setdefault(folder[len("tests/"):], []).append(name)
        elif top_of(folder) in MIRRORED:
            if name.endswith((".cc", ".cu")):
                sources.setdefault(mirrored(folder), name)
            source = (top_of(folder), re.sub(r"(_isa)?\.\w+$", "", base))
            folders_of.setdefault(source, set()).add(mirrored(folder))
    for folder, names in tests.items():
        if not any(folder in found for found in folders_of.values()):
            yield f"{names[0]}:1: there is no folder {folder}"
        for name in names:
            own = folders_of.get((top_of(folder), re.sub(r".*/|_test\.cc$", "", name)), {folder})
            if folder not in own:
                yield f"{name}:1: is in another folder than its source in {', '.join(sorted(own))}"
    for folder, name in sources.items():
        around = [str(path) for path in (pathlib.PurePath(folder), *pathlib.PurePath(folder).parents)][:-2]
        if around and not any(path in tests or path in TESTED_ELSEWHERE for path in around):
            yield f"{name}:1: there are no tests in tests/{folder}; TESTED_ELSEWHERE does not name it"
        if folder in TESTED_ELSEWHERE and folder in tests:
            yield f"{tests[folder][0]}:1: TESTED_ELSEWHERE names {folder}, which has tests"


def check_tests_are_listed(tree):
    lists = {name: "\n".join(lines) for name, lines in tree.lines(LISTS)}
    for name in tree.includes:
        if name.startswith("tests/") and name.endswith("_test.cc"):
            paths = [f"/{name}"] + [name[len(folder) + 1:] for folder in map(str, pathlib.PurePath(name).parents)]
            if not any(re.search(rf"(?<!\w){re.escape(path)}\b", text) for path in paths for place, text in lists.items()
                       if path[0] == "/" or f"{place.rpartition('/')[0]}/{path}" == name):
                yield f"{name}:1: no CMake list has this test, so nothing runs it"


HEADER_BY_NAME = {space + name: header for header, names in NAMES_BY_HEADER.items()
                  for space, listed in (names.rstrip(")").split("("),) for name in listed.split()}
USED_NAME = re.compile(r"(?<![\w:])(?:std|absl)::\w+")


def check_names_are_included(tree):
    for name, lines in tree.lines((".cc", ".h")):
        if name.split("/")[0] not in MIRRORED + ("deploy",):
            continue
        included, missing = tree.included_by(name), {}
        for number, line in enumerate(lines, 1):
            for used in USED_NAME.findall(re.sub(r'//.*|"(\\.|[^"\\])*"', "", line)):
                header = HEADER_BY_NAME.get(used)
                if header and header not in included:
                    missing.setdefault(header, (number, used))
        for header, (number, used) in missing.items():
            yield f"{name}:{number}: uses {used} without <{header}>"


TARGET = re.compile(r"^ *(?:taopd_(?:library|binary|test)|target_sources)\(([\w-]+)([^)]*)\)", re.M)


def anonymous_functions(lines):
    """{(the namespaces around, name): line number} of the functions in the anonymous namespaces of a source."""
    starts, around, found = {number for number, _ in cpp_source.functions(lines)}, [], {}
    for number, line in enumerate(lines, 1):
        if match := re.match(r"namespace (?:([\w:]+) )?\{$", line):
            around.append(match.group(1))
        elif line.startswith("}  // namespace"):
            around.pop()
        elif number in starts and None in around and line[0] != " ":
            head = re.match(r"[^(]*?(?<![\w:])([A-Z]\w*[a-z]\w*)\(", " ".join(lines[number - 1:number + 4]))
            if head:
                found.setdefault((*around, head.group(1)), number)
    return found


def check_names_of_joined_sources(tree):
    seen, apart = {}, set()
    for name, data in tree.texts.items():
        for target, listed in TARGET.findall(data.decode("latin-1")) if name.endswith("CMakeLists.txt") else ():
            apart |= {target} if re.search(r"\bPLAIN\b", listed) else set()
            for source in re.findall(r"(?<![\w./}])[\w./]+\.cc\b", listed) if not in_folder(name, "tests") else ():
                path = os.path.normpath(os.path.join(os.path.dirname(name), source))
                if path not in tree.texts:
                    yield f"{name}:1: the list of {target} has {source}, which does not exist"
                    continue
                lines = tree.texts[path].decode("latin-1").split("\n")
                for key, number in anonymous_functions(lines).items():
                    seen.setdefault((target, key), []).append((path, number))
    for (target, key), places in seen.items():
        for path, number in places[1:] if target not in apart else ():
            yield f"{path}:{number}: {key[-1]} is in an anonymous namespace of {places[0][0]}, too; both are of {target}"


INLINE_FUNCTION = re.compile(r"\s*(static )?(inline|constexpr)\b[^=;]*\(")


def check_functions_of_loops(tree):
    included = set().union(*(tree.included_by(name) for name in tree.includes if name.endswith("_isa.h")))
    for name, lines in tree.lines(CODE):
        if name.removeprefix("kernels/include/") in included and not name.endswith("_isa.h"):
            for number, line in enumerate(lines, 1):
                if INLINE_FUNCTION.match(line) and "TAOPD_ALWAYS_INLINE" not in line:
                    yield f"{name}:{number}: a *_isa.h file includes this inline function, which lacks TAOPD_ALWAYS_INLINE"


RULES = (check_dependencies, check_layers, check_libtorch_meets_wire, check_includes, check_text, check_folders,
         check_functions, check_headers_are_used, check_comment_files, check_lists, check_width,
         check_tests_mirror, check_tests_are_listed, check_names_are_included, check_names_of_joined_sources,
         check_functions_of_loops)


def violations(root, rules=RULES):
    tree = Tree(root)
    for rule in rules:
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
