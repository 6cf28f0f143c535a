"""Faults of topics outside Tidemark's control: a topic is deleted, emptied or created again, or retention is too short.

No process can mend that by itself. Instances refuse to start, and say which command repairs it; the operator runs it. What
the application had processed stays, so that all must be right in the end.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient
from tests.support.truth.topics import Past, committed_offsets, read_all
from tests.system.chaos.feeding import PARTITIONS, QUEUE
from tests.system.chaos.kinds import Fault, When, kind
from tests.system.chaos.operating import Operator
from tests.system.chaos.world import World
from tests.system.restores.faults import Topics

from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.topology.plan import TopologyPlan

_UNREAD = 200
"""Offsets of the queue that nobody has read, when retention comes."""
_WAIT_S = 240


def _topic(name: str) -> Callable[[Fault], Fault]:
    return kind(f"topic: {name}", when=When.FREE, comes_alone=True)


@dataclass(frozen=True)
class _Application:
    """What `Topics` takes of an application."""

    bootstrap: str
    application_id: str
    plan: TopologyPlan
    past: Past
    admin: AdminClient
    partitions: int = PARTITIONS


def topics_of(world: World) -> Topics:
    """The application's topics, as the restores' tests act on them."""
    application = _Application(world.bootstrap, world.application_id, world.plan, world.past, world.admin)
    return Topics(application, Settings.load(bootstrap_servers=world.bootstrap))


def _a_changelog(world: World, chance: random.Random) -> str:
    return chance.choice(sorted(topics_of(world).changelogs().values()))


@_topic("a changelog deleted")
def _(world: World, chance: random.Random) -> None:
    with Operator(world):
        topics_of(world).delete([_a_changelog(world, chance)])


@_topic("a changelog made again")
def _(world: World, chance: random.Random) -> None:
    with Operator(world):
        topics_of(world).make_again(_a_changelog(world, chance))
        _restart(world)


@_topic("a changelog emptied")
def _(world: World, chance: random.Random) -> None:
    with Operator(world):
        changelog = _a_changelog(world, chance)
        topics_of(world).purge(dict.fromkeys(((changelog, number) for number in range(PARTITIONS)), -1))
        _restart(world)


@_topic("the repartition topic deleted")
def _(world: World, _chance: random.Random) -> None:
    """While nothing is in it that nobody has read: that would be lost."""
    topics = topics_of(world)
    between = [place for place in world.places if place[0] not in ("chaos-numbers", QUEUE)]
    with Operator(world), world.feeding.at(events=0, others=0):
        _wait(lambda: world.behind(world.ends(between)) == 0, "not all that is sent to the other topics is read")
        topics.delete([topics.repartition()])


@_topic("retention passes unread elements")
def _(world: World, _chance: random.Random) -> None:
    """Of the queue, while the application is stopped: what retention takes is missing, and nothing else."""
    places = [(QUEUE, number) for number in range(PARTITIONS)]
    with Operator(world):
        world.end_all()
        _wait(lambda: world.behind(world.ends(places)) > _UNREAD, f"nobody has fed {QUEUE}")
        held = read_all(world.bootstrap, [QUEUE], past=world.past)
        read = committed_offsets(world.bootstrap, world.application_id, places)
        unread = {place: [row for row in held[place] if row.offset >= read[place]] for place in places}
        until = {place: rows[len(rows) // 2].offset for place, rows in unread.items() if rows}
        world.past.kept |= held
        world.excused |= {
            json.loads(row.value or b"")["n"] for place in until for row in unread[place] if row.offset < until[place]
        }
        topics_of(world).purge(until)
        world.launch()


def _restart(world: World) -> None:
    """End the drivers as their batch is committed, as a deployment does: only a start compares topics."""
    for one in world.instances.values():
        one.send(signal.SIGTERM)


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    if not wait_until(condition, _WAIT_S, 0.2):
        raise RuntimeError(f"after {_WAIT_S} s {otherwise}")
