"""Makes the pages of a package: those for users, without what only the source tree has.

Rules, applied to every Markdown file of the package:
  - Passages between <!-- source tree --> and <!-- end of source tree --> are left out.
  - build/cpu/bin becomes bin, where the package has the programs.
  - A link to a file that the package lacks becomes its text.
  - A path in backticks that the package lacks is followed by "(source tree)".

Run as a program, it does so to the pages below the directory that it is given.
"""

import pathlib
import re
import sys

DEVELOPERS = ("docs/develop/*", "docs/extending.md", "docs/gpu.md")  # pages about the sources, and their pictures
PASSAGE = re.compile(r"<!-- source tree -->\n.*?<!-- end of source tree -->\n\n?", re.S)
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
# Paths below these folders of the tree, anywhere in a page.
PATH = re.compile(r"(?<![\w/.~-])((?:build|common|deploy|docs|kernels|proto|server|tests|trainer)/[\w.*{},/-]*\w)")


def exists(tree, path):
    """Returns whether the package has the path, which may be a pattern."""
    return "{" in path or any(tree.glob(path.rstrip("/")))


def pack(text, page, tree):
    """Returns the text of a page as the package has it. `page` is its path in the package, from `tree`."""
    def link(match):
        target = match[2].partition("#")[0]
        if "://" in target or not target:
            return match[0]
        path = (tree / page).parent / target
        inside = path.resolve().is_relative_to(tree.resolve())
        if inside and path.exists():
            return match[0]
        return f"{match[1]} (source tree)" if PATH.fullmatch(match[1].strip("`")) else match[1]

    def span(match):
        path = PATH.match(match[1])  # a path, or a command with its arguments
        return match[0] if path is None or exists(tree, path[1]) else f"{match[0]} (source tree)"

    text = PASSAGE.sub("", text).replace("build/cpu/bin", "bin")
    parts, end = [], 0
    for block in [*FENCE.finditer(text), None]:
        words = text[end:block.start() if block else len(text)]
        words = LINK.sub(link, words)
        parts.append(re.sub(r"`([^`\n]+)`(?! \(source tree\))", span, words))
        if block:
            parts.append(block[0])
            end = block.end()
    return "".join(parts)


def pack_all(tree):
    """Removes the pages for developers from the package, and rewrites the others."""
    for pattern in DEVELOPERS:
        for page in tree.glob(pattern):
            page.unlink()
    for path in sorted(tree.rglob("*.md")):
        path.write_text(pack(path.read_text(encoding="ascii"), path.relative_to(tree), tree), encoding="ascii")


def missing_paths(tree):
    """Yields page:line: path for each path in the package's pages that the package lacks."""
    for path in sorted(tree.rglob("*.md")):
        for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
            for match in PATH.finditer(LINK.sub("", re.sub(r"(`[^`]+`|\S+) \(source tree\)", "", line))):
                if not exists(tree, match[1]):
                    yield f"{path.relative_to(tree)}:{number}: {match[1]}"


if __name__ == "__main__":
    pack_all(pathlib.Path(sys.argv[1]))
