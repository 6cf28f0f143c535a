"""A process that stays down once it is ended, however slowly it was being launched at that time."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.system.chaos import supervised
from tests.system.chaos.supervised import Supervised

from tidemark.processes import wait_until


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Supervised]:
    """A process that does nothing."""
    made = Supervised("one", ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, tmp_path / "log")
    yield made
    made.end()


def test_should_count_the_end_of_a_process_as_soon_as_it_is_ended(one: Supervised) -> None:
    one.look()
    assert one.process is not None
    assert one.end() == -signal.SIGTERM
    one.look()
    assert (one.process, one.ends) == (None, [-signal.SIGTERM])


def test_should_end_a_process_that_is_being_launched(one: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_launch = threading.Event(), threading.Event()

    def launch(*arguments: object, **options: object) -> object:
        begun.set()
        assert may_launch.wait(60)
        return subprocess.Popen(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(supervised, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": launch}))
    threads = [threading.Thread(target=one.look), threading.Thread(target=one.end)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    assert wait_until(lambda: not one.is_wanted, 60)
    may_launch.set()
    for thread in threads:
        thread.join(60)
    assert (one.process, one.ends) == (None, [-signal.SIGTERM])
