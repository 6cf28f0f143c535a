"""What `make crash` counts as a kill: an instance that a signal ended, not one that ended by itself."""

from __future__ import annotations

import random
import signal
from itertools import count
from pathlib import Path

import pytest
from tests.system.crash.scenarios import SCENARIOS, Tally

KILLS = {"random": 2, "restore": 5}


class Bench:
    """Its instances are numbers, in the order of their launch; the instance `early` has ended by itself with 30."""

    batch_records = 2000

    def __init__(self, folder: Path, early: int | None):
        self.folder, self.early, self.launched, self.feeder = folder, early, count(), self

    def launch(self) -> int:
        return next(self.launched)

    def kill(self, instance: int) -> int:
        return 30 if instance == self.early else -signal.SIGKILL

    wait_ended = kill

    def stop(self, _instance: int) -> int:
        return 0

    def differences(self, _holders: object) -> tuple[int, int, int, list[str]]:
        return 0, 0, 0, []

    def state_dir(self) -> Path:
        return self.folder

    def feed(self, _records: int) -> None: ...

    def arm(self, point: str, skip: int = 0) -> None: ...

    def wait_state(self, instance: int, state: str) -> None: ...

    def wait_drained(self) -> None: ...


class Chance(random.Random):
    """Waits for no time, and never for the state RUNNING."""

    def random(self) -> float:
        return 0.9

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@pytest.mark.parametrize("name", KILLS)
def test_should_count_every_instance_that_a_signal_ended(tmp_path, name):
    tally = Tally()
    SCENARIOS[name](Bench(tmp_path / "state", None), tally, Chance(1), 1)
    assert (tally.kills, tally.wrong) == (KILLS[name], 0), tally.report


# In both, the first instance is only killed from outside; in `restore`, the fourth is to be killed right after its commit.
@pytest.mark.parametrize(("name", "early"), [("random", 0), ("restore", 0), ("restore", 3)])
def test_should_not_count_an_instance_that_ended_by_itself_as_killed(tmp_path, name, early):
    tally = Tally()
    SCENARIOS[name](Bench(tmp_path / "state", early), tally, Chance(1), 1)
    assert (tally.kills, tally.wrong) == (KILLS[name] - 1, 1)
    assert tally.report[0].endswith("the instance was not killed, but ended with 30")
