"""What is measured: each case is a shape of input and a commit interval, the same for both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW_MS = 60_000
GRACE_MS = 5_000
RETENTION_MS = 6 * 3_600_000
PARTITIONS = 4
INPUT_TOPIC = "pulse-events"
OUTPUT_TOPIC = "pulse-counts"

# For every client of the harness: a new broker's "coordinator load in progress" is no news to the reader.
QUIET = {"log_level": 3}


@dataclass(frozen=True)
class Case:
    """`keys` patients, each with one event per `interval_ms` of event time, `events` in all."""

    name: str
    about: str
    keys: int
    interval_ms: int
    events: int
    commit_interval_ms: int
    max_batch_records: int
    target_ratio: float

    @property
    def span_ms(self) -> int:
        """Event time from the first event to the last, rounded up to whole windows."""
        return self.windows * WINDOW_MS

    @property
    def windows(self) -> int:
        """Number of windows that hold events."""
        last_ms = (self.events - 1) * self.interval_ms // self.keys
        return last_ms // WINDOW_MS + 1

    def sized(self, events: int | None) -> Case:
        """The same case with another number of events; itself where `events` is None."""
        return self if events is None else replace(self, events=events)


CASES = {
    case.name: case
    for case in (
        Case(
            name="hot",
            about="windowed count, 50 000 keys at 1 Hz, commit per 1 M events or 2 s",
            keys=50_000,
            interval_ms=1_000,
            events=12_000_000,
            commit_interval_ms=2_000,
            max_batch_records=1_000_000,
            target_ratio=1.5,
        ),
        Case(
            name="wide",
            about="windowed count, 3.3 M window-keys with one event each, commit per 3 s",
            keys=50_000,
            interval_ms=WINDOW_MS,
            events=3_300_000,
            commit_interval_ms=3_000,
            max_batch_records=1_000_000,
            target_ratio=1.5,
        ),
    )
}
