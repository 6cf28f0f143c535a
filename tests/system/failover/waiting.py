"""Waits for the conditions of a case, and the error of one that does not come."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.processes import wait_until

READY_S = 180.0
BACK_S = 180.0
_LOOK_S = 0.02


class NotBack(Exception):
    """A condition of a case was not met in time, or a process that it needs has ended."""


def wait_for(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    """Block until the condition holds. Raises `NotBack` with `otherwise` if it does not in time."""
    if not wait_until(condition, timeout_s, every_s=_LOOK_S):
        raise NotBack(f"{otherwise} after {timeout_s:.0f} s")
