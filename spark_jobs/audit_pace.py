"""How an audit leaves time to others: it works in turns, and rests behind each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.local.processes import cpu_seconds


@dataclass(frozen=True)
class Pace:
    """Turns of work that take at most `share` of one core's time, counted over the turn and the rest behind it.

    What counts is the time that a turn had a core, not how long it took: where others want all cores, the waiting for one
    is rest enough. With a share of 1 there is none.
    """

    share: float
    used_s: Callable[[], float] = cpu_seconds
    now_s: Callable[[], float] = time.monotonic
    rest: Callable[[float], None] = time.sleep

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn; rests at its end for as long as `share` asks. Blocks."""
        began_s, used_s = self.now_s(), self.used_s()
        yield
        if self.share < 1:
            self.rest(max(0.0, (self.used_s() - used_s) / self.share - (self.now_s() - began_s)))
