"""What `make restores` draws: the kind of loss or fault, the application, its size, how it dies, where a restore is killed.

Kinds are dealt from a shuffled deck, so that each comes before any comes again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

APPS = ("patients", "nodes", "patients")
"""In turn. Batches of the nodes take Spark the longest."""
PARTITIONS = (1, 2, 3, 5)
INSTANCES = (1, 1, 1, 1, 1, 1, 2, 3)
"""For kinds that do not say how many. Each instance is a start of Spark."""
DEATHS = ("5-offsets", "6-commit", "7-one-store", "at random", "stopped")


class Family(StrEnum):
    """What kinds have in common."""

    HEALTHY = "healthy"
    """State is lost or old, and every source of state is whole: nothing may be refused."""
    TOPIC = "topic"
    """A topic is not what the application has left."""
    POISON = "poison"
    """A stranger has written to a changelog."""
    DISK = "disk"
    """There is no room from some step on."""


@dataclass(frozen=True)
class Kind:
    """One card of the deck.

    `restore` are the arguments of a `tidemark restore run`, None where the start of the instances restores. `loses_disk`:
    the state folders are gone before. `points` are where the restore may be killed.
    """

    name: str
    family: Family = Family.HEALTHY
    restore: tuple[str, ...] | None = None
    loses_disk: bool = False
    points: tuple[str, ...] = ()
    instances: int | None = None
    app: str | None = None


_WHOLE = ("restore-whole", "restore-before-rename")
_RUN = ("restore-built", "swap-between", "swap-one")

KINDS = (
    Kind("local store", points=("restore-tail",)),
    Kind("changelog", loses_disk=True, points=_WHOLE),
    Kind("savepoint", loses_disk=True, points=("restore-tail", "restore-before-rename")),
    Kind("standby", loses_disk=True, points=("restore-before-rename",)),
    Kind("two instances", instances=2, points=("restore-tail",)),
    Kind("three instances", instances=3),
    Kind("two instances, changelog", instances=2, loses_disk=True, points=_WHOLE),
    Kind("run", restore=(), points=_RUN),
    Kind("run --from changelog", restore=("--from", "changelog"), points=_RUN),
    Kind("run --from savepoint", restore=("--from", "savepoint"), loses_disk=True, points=_RUN),
    Kind("run, two instances", restore=(), instances=2, points=_RUN),
    Kind("run, three instances", restore=(), instances=3, points=_RUN),
    Kind("run, stale folders", restore=(), instances=2, points=_RUN),
    Kind("start, stale folders", instances=2),
    Kind("run, disk of a stale folder lost", restore=(), instances=2),
    Kind("run, one task", restore=(), points=_RUN),
    Kind("run, one store", restore=(), points=_RUN),
    Kind("plan file", restore=(), points=_RUN),
    Kind("plan file, of another id", restore=()),
    Kind("rolled back", restore=()),
    Kind("changelog deleted", Family.TOPIC),
    Kind("changelog made again", Family.TOPIC),
    Kind("changelog deleted, disk lost", Family.TOPIC, loses_disk=True),
    Kind("changelog truncated to its end", Family.TOPIC),
    Kind("changelog's beginning purged", Family.TOPIC),
    Kind("changelog's beginning purged, disk lost", Family.TOPIC, loses_disk=True),
    Kind("changelog's beginning purged, run", Family.TOPIC, restore=()),
    Kind("source purged below the commits", Family.HEALTHY),
    Kind("source purged past the commits", Family.TOPIC),
    Kind("source made again", Family.TOPIC),
    Kind("commits deleted", Family.TOPIC),
    Kind("description deleted", Family.TOPIC),
    Kind("repartition topic deleted", Family.TOPIC, app="nodes"),
    Kind("poisoned: existing key", Family.POISON),
    Kind("poisoned: new key", Family.POISON),
    Kind("poisoned: tombstone", Family.POISON),
    Kind("disk full: plan file", Family.DISK, restore=("--from", "changelog")),
    Kind("disk full: fetch", Family.DISK, restore=("--from", "savepoint")),
    Kind("disk full: build", Family.DISK, restore=("--from", "changelog")),
    Kind("disk full: tail", Family.DISK, restore=("--from", "savepoint")),
    Kind("disk full: verify", Family.DISK, restore=("--from", "changelog")),
    Kind("disk full: swap", Family.DISK, restore=("--from", "changelog")),
    Kind("disk full: commit", Family.DISK),
    Kind("disk full: start", Family.DISK, loses_disk=True),
)


@dataclass(frozen=True)
class Drawn:
    """One draw. `killed_at` names the point of the restore itself at which it is killed once.

    `running`: a topic's fault comes while the application runs. `begins`: with an application that has no past.
    """

    kind: Kind
    app: str
    partitions: int
    instances: int
    death: str
    killed_at: str | None = None
    running: bool = False
    begins: bool = True

    def __str__(self) -> str:
        size = f"{self.partitions} partitions, {self.instances} instance{'s' if self.instances > 1 else ''}"
        when = ", while it ran" if self.running else ""
        again = f", killed again at {self.killed_at}" if self.killed_at else ""
        return f"{self.kind.name}: {self.app}, {size}, died {self.death}{when}{again}"


def deck(chance: random.Random, kinds: tuple[Kind, ...] = KINDS) -> Iterator[Kind]:
    """Kinds for ever; none comes again before all have come."""
    while True:
        yield from chance.sample(kinds, len(kinds))


def deal(chance: random.Random, n: int, per_application: int, kinds: tuple[Kind, ...] = KINDS) -> list[Drawn]:
    """The draws of a run. So many of them in turn are of one application, if a fault does not end it sooner."""
    drawn: list[Drawn] = []
    apps = chance.sample(APPS, len(APPS))
    app, partitions = apps[0], 1
    cards = deck(chance, kinds)
    for number in range(n):
        kind = next(cards)
        begins = number % per_application == 0 or kind.app not in (None, app)
        if begins:
            # In turn, so that a short run has both.
            app = kind.app or apps[number // per_application % len(apps)]
            partitions = chance.choice(PARTITIONS)
        drawn.append(
            Drawn(
                kind,
                app,
                partitions,
                kind.instances or chance.choice(INSTANCES),
                chance.choice(DEATHS),
                chance.choice((None, *kind.points)),
                kind.family in (Family.TOPIC, Family.POISON) and chance.random() < 0.3,
                begins,
            )
        )
    return drawn
