"""`make nightly` runs every harness of the Makefile, and shows the last line of each."""

from __future__ import annotations

import re

import pytest
from tests.system.nightly.run import HARNESSES, ROOT, last_line

NO_HARNESSES = {
    "registry",  # It needs a registry that runs.
    "help", "setup", "jars", "demo", "stop", "test", "unit", "docs", "bench", "restore-bench", "latency-bench", "reads-bench",
    "standby-bench", "audit-cost", "page", "page-demo", "fmt", "lint", "nightly",
}  # fmt: skip
"""Targets that set something up, are part of `make test`, or measure."""


def test_should_run_every_harness_of_the_makefile_nightly() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets - NO_HARNESSES == set(HARNESSES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nsmoke: events=1\n", "smoke: events=1"),
        ("smoke: events=1\nmake: *** [Makefile:40: smoke] Error 1\n\n", "smoke: events=1"),
        ("", "no output"),
    ],
)
def test_should_show_the_last_line_of_each_harness(text: str, expected: str) -> None:
    assert last_line(text) == expected
