"""The pace of an audit: it works in turns and pauses after each, so that other processes get processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.processes import cpu_seconds


@dataclass(frozen=True)
class Throttle:
    """Limits work to the share `share` of one core's time, counted over each turn and the pause after it.

    Only the time in which a turn had a core counts, not how long it took: time spent waiting for a busy core is a pause, too.
    With a share of 1 there are no pauses.
    """

    share: float
    used_s: Callable[[], float] = cpu_seconds
    now_s: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run one turn and pause at its end for as long as `share` requires. Blocks."""
        began_s, used_s = self.now_s(), self.used_s()
        yield
        if self.share < 1:
            self.rest(max(0.0, (self.used_s() - used_s) / self.share - (self.now_s() - began_s)))
