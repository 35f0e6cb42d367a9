"""Names runs after what tells them from the others of their sweep."""

import re


def _short(key):
    """optimizer.lr -> lr; objective.name -> objective"""
    return key.removesuffix(".name").rpartition(".")[2]


def run_name(settings):
    """Returns a name such as normalized_top_k=4 for [(key, value), ...], in characters that
    need no quotes in a path."""
    is_short = len({_short(key) for key, _ in settings}) == len(settings)
    parts = []
    for key, value in settings:
        text = re.sub(r"[^\w.+-]+", "-", value).strip("-")
        parts.append(text if key == "objective.name" else f"{_short(key) if is_short else key}={text}")
    return "_".join(parts)
