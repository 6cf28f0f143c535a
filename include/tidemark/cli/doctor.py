"""Show whether this machine is fit to run Tidemark, and what to do about each thing that is missing."""

from __future__ import annotations

import sys

from rich.text import Text

from tidemark.cli.output import Output, console
from tidemark.errors import ExitCode
from tidemark.listing import Listing
from tidemark.operations.machine.diagnosis import Diagnosis, Health
from tidemark.operations.machine.examination import examine, examine_settings

_COLOURS = {Health.OK: "green", Health.WARNING: "yellow", Health.PROBLEM: "red"}


def show_diagnoses(output: Output) -> None:
    """Examine this machine and show a line for each subject. Blocks. Ends with 1 if there is a problem."""
    settings, line = examine_settings()
    with console(stderr=True).status("looking at this machine"):
        found = [line, *examine(settings)]
    problems = sum(each.health is Health.PROBLEM for each in found)
    warnings = sum(each.health is Health.WARNING for each in found)
    output.show(
        {"problems": problems, "warnings": warnings, "lines": found},
        _listing(found),
        f"problems: {problems}, warnings: {warnings}" if problems or warnings else "all is well",
    )
    if problems:
        sys.exit(ExitCode.FAILED)


def _listing(found: list[Diagnosis]) -> Listing:
    listing = Listing("", "what", "found", "what to do")
    for each in found:
        listing.add(Text(each.health, style=_COLOURS[each.health]), each.subject, each.found, each.remedy)
    return listing
