"""A case of the benchmark: a program that both sides run, the shape of its input, and a commit interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bench.outputs import Verdict

WINDOW_MS = 60_000
GRACE_MS = 5_000
GAP_MS = 30_000
APART_MS = 20_000
JOIN_GRACE_MS = 60_000
RETENTION_MS = 6 * 3_600_000
PARTITIONS = 4
INPUT_TOPIC = "pulse-events"
BREATH_TOPIC = "breath-events"
OUTPUT_TOPIC = "pulse-counts"

# For every client of the benchmark: "coordinator load in progress" is normal on a new broker and is not logged.
QUIET = {"log_level": 3}

# The sides.
OURS = "tidemark"
PEER = "kafka-streams"
AT_LEAST_ONCE = "at-least-once"
QUIX = "quix-streams"
SPARK = "spark"
CONSUMER = "raw-consumer"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Consecutive records of one topic in the order of event time."""

    topic: str
    keys: list[bytes]
    values: list[bytes]


class Output(Protocol):
    """Collects the records of the output topic, and compares them with what is computed from the event numbers alone."""

    @property
    def records(self) -> int:
        """The number of records so far."""

    def add(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        """Add records of one or more partitions, those of each partition in the order of their offsets."""

    def verdict(self) -> Verdict:
        """Compare all that was added with what must be there."""


@dataclass(frozen=True)
class Program:
    """One computation, written for both sides, with its input and a check of its output.

    `topology` is a module in `bench/topologies` with this `application_id`; `peer` is a class in `bench/peers`, or None where
    the other side is not Kafka Streams. Both read the topics `sources` and write the topic `sink`. `records` makes the records
    with these event numbers, one block per topic, and `output` an empty collection; both get the case and the start of its
    first window in epoch milliseconds.
    """

    topology: str
    application_id: str
    peer: str | None
    records: Callable[[Case, int, Integers], list[Block]]
    output: Callable[[Case, int], Output]
    sources: tuple[str, ...] = (INPUT_TOPIC,)
    sink: str = OUTPUT_TOPIC


def in_turn(case: Case, number: Integers) -> Integers:
    """Give each patient one event in turn."""
    return number % case.keys


GOAL = 1.2
"""The ratio of rates that a case should reach at least, unless it has a goal of its own."""


@dataclass(frozen=True)
class Case:
    """A case with `keys` patients, on average one event per `interval_ms` of event time and patient, and `events` events.

    `patient` maps event numbers to patients. Tidemark is compared with the side `against`; `goal` is the least ratio of their
    steady rates to reach, or None if there is none to reach. Each side runs as `instances` processes of one application.
    """

    name: str
    about: str
    keys: int
    interval_ms: int
    events: int
    commit_interval_ms: int
    max_batch_records: int
    program: Program
    patient: Callable[[Case, Integers], Integers] = in_turn
    goal: float | None = GOAL
    against: str = PEER
    instances: int = 1

    @property
    def span_ms(self) -> int:
        """The event time from the first event to the last in milliseconds, rounded up to whole windows."""
        return self.windows * WINDOW_MS

    @property
    def windows(self) -> int:
        """The number of windows that contain events."""
        last_ms = (self.events - 1) * self.interval_ms // self.keys
        return last_ms // WINDOW_MS + 1

    def offset_ms(self, number: Integers) -> Integers:
        """Return the event times of these event numbers in milliseconds since the start of the first window."""
        return number * self.interval_ms // self.keys

    def sized(self, events: int | None) -> Case:
        """Return this case with another number of events, or unchanged if `events` is None."""
        return self if events is None else replace(self, events=events)

    def with_keys(self, keys: int) -> Case:
        """Return this case with another number of patients, named after it."""
        return replace(self, name=f"{self.name}-{keys}", about=f"the case {self.name} with {keys:,} keys", keys=keys)

    def with_instances(self, instances: int) -> Case:
        """Return this case with another number of processes on each side, named after it. One is the case itself."""
        if instances == 1:
            return self
        name, about = f"{self.name}-{instances}-instances", f"{self.about}, in {instances} instances"
        return replace(self, name=name, about=about, instances=instances)

    def described(self) -> dict[str, Any]:
        """Return the fields for a file of results, with functions and programs by name."""
        fields = asdict(replace(self, program=None))  # type: ignore[arg-type]
        return {**fields, "program": self.program.topology, "patient": self.patient.__name__}
