"""One case on both sides, compared."""

from __future__ import annotations

import traceback

from tests.system.fuzz import tidemark_side
from tests.system.fuzz.case import Case
from tests.system.fuzz.compare import Verdict, compare
from tests.system.fuzz.java_side import JavaSide
from tests.system.fuzz.results import Results, SideFailed


def compared(case: Case, java: JavaSide) -> Verdict:
    """The verdict; a side that fails is a difference, too."""
    java.send(case)
    ours: Results | str
    try:
        ours = tidemark_side.run(case)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = f"Tidemark failed: {type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
    try:
        theirs = java.receive()
    except SideFailed as error:
        return Verdict(frozenset(), str(error) if isinstance(ours, Results) else f"{error}\n{ours}")
    return compare(case, ours, theirs) if isinstance(ours, Results) else Verdict(frozenset(), ours)
