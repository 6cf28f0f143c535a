"""Faults of Airflow's parts, while Airflow keeps a small stream running."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable

from tests.system.chaos.airflow_stream import AirflowStream
from tests.system.chaos.kinds import Fault, Needs, NothingToHarm, When, kind
from tests.system.chaos.world import World


def _airflow(name: str) -> Callable[[Fault], Fault]:
    return kind(f"Airflow: {name}", when=When.FREE, needs=Needs.AIRFLOW)


def _stream(world: World) -> AirflowStream:
    if world.airflow is None:
        raise RuntimeError("this run has no Airflow")
    return world.airflow


@_airflow("a part killed, back after 5 to 60 s")
def _(world: World, chance: random.Random) -> None:
    stream = _stream(world)
    with stream.part_killed(next(stream.parts)):
        _lasts(chance)


@_airflow("a part stopped for 5 to 60 s")
def _(world: World, chance: random.Random) -> None:
    stream = _stream(world)
    part = next(stream.parts)
    stream.airflow.send(part, signal.SIGSTOP)
    _lasts(chance)
    stream.airflow.send(part, signal.SIGCONT)


@_airflow("a part killed, back after 5 to 60 s, and the stream's driver")
def _(world: World, chance: random.Random) -> None:
    """While nobody is there to see it end, to decide what follows, or to launch another."""
    stream = _stream(world)
    with stream.part_killed(next(stream.parts)):
        is_killed = stream.kill_driver()
        _lasts(chance)
    if not is_killed:
        raise NothingToHarm("the stream's driver does not run")


def _lasts(chance: random.Random) -> None:
    threading.Event().wait(chance.uniform(5, 60))
