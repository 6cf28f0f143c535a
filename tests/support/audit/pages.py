"""The tables of docs/audit.md, as the code has them: `.venv/bin/python -m tests.support.audit.pages` prints them."""

from __future__ import annotations

from tests.support.audit.faults import FAULTS

from tidemark.audit.expectations import CHECKS

APPLICATION = "payments"
"""What the page calls the application into which faults are planted."""


def expectations() -> list[str]:
    """A row per expectation."""
    rows = ["| expectation | looks at | holds if | under at_least_once |", "|---|---|---|---|"]
    for check in CHECKS:
        weaker = "not claimed" if check.exactly_once else "the same"
        name = f"`{check.name}`" + (" (a warning)" if check.is_warning else "")
        rows.append(f"| {name} | `{check.asset}` | {check.says} | {weaker} |")
    return rows


def faults() -> list[str]:
    """A row per fault."""
    rows = ["| fault | caught by |", "|---|---|"]
    return rows + [f"| {fault.name} | `{fault.caught_by.format(app=APPLICATION)}` |" for fault in FAULTS]


if __name__ == "__main__":
    print("\n".join([*expectations(), "", *faults()]))
