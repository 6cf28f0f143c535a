"""Waiting for a condition, also when this thread stands still."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark import processes
from tidemark.processes import wait_until


def test_should_look_once_more_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    # Of this module alone, as other threads of this process use the clock, too.
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def holds() -> bool:
        was_late = clock[0] > 1.0
        # The thread stands still after its first look, and the condition holds when it goes on.
        clock[0] = 100.0
        return was_late

    assert wait_until(holds, 1.0)


def test_should_give_up_after_its_time() -> None:
    looks: list[int] = []
    assert not wait_until(lambda: bool(looks.append(1)), 0.1, every_s=0.01)
    assert len(looks) >= 2
