"""Compares the answers of two programs field by field: keys and their order, texts, ids, ranks, and numbers within a tolerance."""

import base64
import math
import re
import struct

# Two programs sum in another order; the log-probs of the tiny model are between -30 and 0.
TOLERANCE = 1e-4
# These differ between processes or moments.
VOLATILE = {"id", "created", "request_id", "system_fingerprint", "root", "owned_by", "version"}


def kind_of(value):
    return "null or text" if value is None or isinstance(value, str) else type(value)


def unpacked(key, text):
    """The numbers of a packed array: integers if its key names ids."""
    kind = "i" if "ids" in key else "f"
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}{kind}", data))


def differences(ours, theirs, sampled=(), path=""):
    """Yields where and how an answer differs from another program's. Fields of one moment and those of `sampled` are compared by
    their type."""
    key = path.rsplit(".", 1)[-1]
    if key in VOLATILE or re.sub(r"\[\d+\]", "[]", path).lstrip(".") in sampled:
        if kind_of(ours) != kind_of(theirs):
            yield path, f"{ours!r} and {theirs!r}"
    elif isinstance(ours, dict) and isinstance(theirs, dict):
        if list(ours) != list(theirs):
            yield path, f"keys {list(ours)} and {list(theirs)}"
        for name in ours:
            if name in theirs:
                yield from differences(ours[name], theirs[name], sampled, f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield path, f"{len(ours)} and {len(theirs)} items"
        for i, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, sampled, f"{path}[{i}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if not (ours == theirs or math.isclose(ours, theirs, rel_tol=0, abs_tol=TOLERANCE)):
            yield path, f"{ours} and {theirs}"
    elif key.endswith("_b64") and isinstance(ours, str) and isinstance(theirs, str):
        yield from differences(unpacked(key, ours), unpacked(key, theirs), sampled, path + "[]")
    elif ours != theirs or type(ours) is not type(theirs):
        yield path, f"{ours!r} and {theirs!r}"
