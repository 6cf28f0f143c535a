"""The kinds of faults by name, with what is needed to inject each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tests.system.chaos.world import World

Fault = Callable[[World, random.Random], None]


class NothingToHarm(Exception):
    """What a fault acts on was not there, or did not come to the point where it is harmed: the fault did not happen."""


class Needs(StrEnum):
    """What a kind takes that is not always there."""

    DISKS = "disks"
    """A disk that can be full: mounting one takes root."""
    AIRFLOW = "Airflow"
    """A stream that a real Airflow keeps running."""


class When(StrEnum):
    """Whether a kind is brought about while a commit is held (`held.py`)."""

    ALWAYS = "always"
    FREE = "free"
    """Only while none is."""
    HELD = "held"
    """Only while one is."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    `acts_on` is the part of the system that it harms: two faults on one part could undo each other, or the second could find
    nothing left to harm. `spares` says why it ends no commit that is held, and is empty where it ends one. No other fault may
    come with one that `comes_alone`.
    """

    fault: Fault
    acts_on: str
    spares: str = ""
    when: When = When.ALWAYS
    comes_alone: bool = False
    needs: Needs | None = None


KINDS: dict[str, Kind] = {}
"""All of them, by name; each module of faults adds its own."""


def kind(
    name: str,
    acts_on: str | None = None,
    *,
    spares: str = "",
    when: When = When.ALWAYS,
    comes_alone: bool = False,
    needs: Needs | None = None,
) -> Callable[[Fault], Fault]:
    """Add the function as a kind of that name, which acts on what stands before its colon if nothing else is given."""

    def added(fault: Fault) -> Fault:
        KINDS[name] = Kind(fault, acts_on or name.partition(":")[0], spares, when, comes_alone, needs)
        return fault

    return added
