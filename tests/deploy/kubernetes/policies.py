"""All rules beyond what the schemas check, a cluster's and our own, and what they find."""

import lifecycle_rules  # noqa: F401  (fills the table)
import object_rules  # noqa: F401
import webhook_rules  # noqa: F401
from rules import RULES


def findings(objects, rules=None):
    """All findings, or those of one rule, as "rule: finding"."""
    return [f"{name}: {finding}" for name in (rules or RULES) for finding in RULES[name](objects)]
