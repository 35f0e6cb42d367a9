"""Markdown pages as the tests of the documentation see them: their links, code blocks, names and commands."""

import re

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
FOLDERS = "common|deploy|docs|kernels|proto|server|tests|trainer"


def read_pages(root):
    """Path from the root -> text, for every Markdown page that is not in a folder of build products."""
    pages = {}
    for path in sorted(root.rglob("*.md")):
        name = path.relative_to(root)
        if name.parts[0] not in ("build", "runs"):
            pages[str(name)] = path.read_text(encoding="utf-8")
    return pages


def prose(text):
    return FENCE.sub("", text)


def blocks(text, *languages):
    return [match[2] for match in FENCE.finditer(text) if match[1] in languages]


def anchors(text):
    """The names that GitHub gives the headings."""
    names = set()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        names.add(re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-"))
    return names


def broken_links(root, pages):
    """Links to files or headings that do not exist."""
    broken = []
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            file = (root / page).parent / path
            if path and not file.exists():
                broken.append(f"{page}: {target}: there is no such file")
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8") if path else text):
                broken.append(f"{page}: {target}: there is no such heading")
    return broken


def torn_rows(pages):
    """Rows of tables with another number of cells than the first row of their table."""
    torn = []
    for page, text in pages.items():
        num_cells = None
        for line in re.sub(r"`[^`\n]*`", "", prose(text)).splitlines():
            if not line.startswith("|"):
                num_cells = None
                continue
            num_here = len(re.findall(r"(?<!\\)\|", line)) - 1
            num_cells = num_cells or num_here
            if num_here != num_cells:
                torn.append(f"{page}: {num_here} cells, not {num_cells}: {line[:60]}")
    return torn


def expand(path):
    """`a/{b,c}.h` as a/b.h and a/c.h."""
    match = re.search(r"\{([^}]*)\}", path)
    if not match:
        return [path]
    before, after = path[: match.start()], path[match.end():]
    return [part for choice in match[1].split(",") for part in expand(before + choice + after)]


def missing_paths(root, pages):
    """Paths of the tree in backticks that name nothing; * is a pattern."""
    missing = []
    for page, text in pages.items():
        for written in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", prose(text)):
            for path in expand(written):
                if not any(root.glob(path.rstrip("/"))):
                    missing.append(f"{page}: {written}")
    return missing


def string_literals(root, folders):
    """All string literals of the C++ sources, with adjacent ones joined, one per line."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                code = re.sub(r"//[^\n]*", "", path.read_text(encoding="ascii"))
                for group in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', code):
                    found.append("".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', group)).replace('\\"', '"'))
    return "\n".join(found)


def blocks_with_names(text):
    """(name, text) of the code blocks whose first line is "# NAME.yaml" or "# NAME.py"."""
    for block in blocks(text, "yaml", "python"):
        match = re.match(r"# ([\w/.-]+\.(?:yaml|py))\n", block)
        if match:
            yield match[1], block
