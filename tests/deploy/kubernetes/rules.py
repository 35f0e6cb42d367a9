"""The table of rules that rendered manifests keep. A rule takes the objects and yields findings."""

RULES = {}


def rule(check):
    RULES[check.__name__] = check
    return check


def flag(container, name):
    """The value of --NAME=VALUE in a container's arguments; None if it is not there."""
    for argument in container.get("args", []):
        if argument.startswith(f"--{name}="):
            return argument.split("=", 1)[1]
    return None
