"""A commit that waits between its outputs and its offsets, so that a fault meets it there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.system.chaos.feeding import QUEUE
from tests.system.crash import probe

from tidemark.processes import wait_until

if TYPE_CHECKING:
    from tests.system.chaos.world import World

_POINT = "4-commit-records"
_WAIT_S = 240


@dataclass
class HeldCommit:
    """A commit of instance `number`, which waits as long as `file` is there; the process's other threads go on."""

    number: int
    file: Path

    def let_go(self) -> None:
        """Once more is a no-op."""
        self.file.unlink(missing_ok=True)


@contextmanager
def held_commit(world: World) -> Iterator[HeldCommit]:
    """Hold the next commit of the queue when its outputs are written and its offsets are not, until the end at the latest.

    Only the queue has input until it is held: of all outputs its elements alone show by themselves that they came again. A
    sum that holds a record twice holds it for ever.
    """
    file = probe.held_file(world.arm_file)
    world.wait_running(_WAIT_S)
    others = [place for place in world.places if place[0] != QUEUE]
    with world.feeding.at(numbers=0, events=0, others=0, aborted_share=0.0):
        if not wait_until(lambda: world.behind(world.ends(others)) == 0, _WAIT_S, 0.2):
            raise RuntimeError(f"after {_WAIT_S} s not everything but the elements of {QUEUE} is committed")
        probe.arm(world.arm_file, _POINT, how=probe.HOLD)
        if not wait_until(file.exists, _WAIT_S, 0.05):
            raise RuntimeError(f"nothing of {QUEUE} was committed within {_WAIT_S} s")
    pid = int(file.read_text())
    number = next(n for n, one in world.instances.items() if one.process is not None and one.process.pid == pid)
    world.held = HeldCommit(number, file)
    try:
        yield world.held
    finally:
        world.held.let_go()
        world.held = None
