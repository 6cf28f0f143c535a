"""The failpoint of crash tests for an instance that must take a standby's copy.

An instance waits five seconds for the copy, then reads the changelog. On a busy machine the standby may need longer to hand it
over: with this failpoint the instance waits for a minute.
"""

from __future__ import annotations

from functools import partial

from tests.system.crash.probe import kill

from tidemark.instance import assembly
from tidemark.standby.copies import StandbyCopies

__all__ = ["kill"]

assembly.StandbyCopies = partial(StandbyCopies, answer_s=60.0)  # type: ignore[assignment,misc]
