"""The functions of C++ sources with their lengths, and the comments, for the rules of the architecture.

Relies on the tree's format (.clang-format): a function's closing brace stands in the column of its first line, and
members are indented by two.
"""

import re

SCOPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:typedef\s+)?(class|struct|union|namespace|extern \"C\")\b")
NOT_FUNCTION = re.compile(r"^(enum\b|using\b|typedef\b|#|//|\}|public:|private:|protected:|default:|case\b)")


def functions(lines):
    """[(number of the first line, number of lines)] of every function, of classes' members too."""
    return list(_functions(lines, 0, len(lines), 0))


def _functions(lines, begin, end, indent):
    i = begin
    while i < end:
        line = lines[i]
        text = line[indent:]
        if line[:indent].strip() or not text or text[0] in " \t" or NOT_FUNCTION.match(text):
            i += 1
            continue
        # A declaration or definition starts here: up to its ';' in the same or a deeper column, or up to the brace
        # that closes it.
        j, opened = i, False
        while j < end:
            stripped = lines[j].split("//")[0].rstrip()
            if opened and re.match(" {%d}[})]" % indent, lines[j]):
                break
            if not opened and stripped.endswith("{"):
                opened = True
            elif not opened and stripped.endswith((";", "}", ")")) and _balanced(lines[i:j + 1]):
                if not stripped.endswith(")") or j + 1 >= end or not re.match(" {%d,} *[:{]" % (indent + 2), lines[j + 1]):
                    break
            j += 1
        head = " ".join(part.strip() for part in lines[i:j + 1])
        if opened and SCOPE.match(text) and "(" not in text.split("{")[0].split(":")[0]:
            inner = indent if text.startswith(("namespace", "extern")) else indent + 2
            yield from _functions(lines, i + 1, j, inner)
        elif opened and "(" in head.split("{")[0] and not re.search(r"=\s*$", head.split("{")[0]):
            yield i + 1, j - i + 1
        i = j + 1


def _balanced(lines):
    text = "\n".join(re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", line.split("//")[0]) for line in lines)
    return text.count("(") == text.count(")") and text.count("{") == text.count("}")


def comment_blocks(lines):
    """[(number of the first line, [text of each line after the slashes])] of the blocks of // lines."""
    blocks, block, start = [], [], 0
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*//(.*)$", line)
        if match:
            if not block:
                start = number
            block.append(match.group(1))
        elif block:
            blocks.append((start, block))
            block = []
    if block:
        blocks.append((start, block))
    return blocks


def comments(lines):
    """[(line number, text)] of every comment of a line, trailing ones too."""
    found = []
    for number, line in enumerate(lines, 1):
        bare = re.sub(r'"(\\.|[^"\\])*"', lambda m: " " * len(m.group(0)), line)
        at = bare.find("//")
        if at >= 0:
            found.append((number, line[at + 2:]))
    return found
