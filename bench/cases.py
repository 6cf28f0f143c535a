"""The cases of the benchmark: each is a shape of input and a commit interval, the same for both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW_MS = 60_000
GRACE_MS = 5_000
RETENTION_MS = 6 * 3_600_000
PARTITIONS = 4
INPUT_TOPIC = "pulse-events"
OUTPUT_TOPIC = "pulse-counts"

# For every client of the benchmark: "coordinator load in progress" is normal on a new broker and is not logged.
QUIET = {"log_level": 3}


@dataclass(frozen=True)
class Case:
    """A case with `keys` patients, each with one event per `interval_ms` of event time, and `events` events in total."""

    name: str
    about: str
    keys: int
    interval_ms: int
    events: int
    commit_interval_ms: int
    max_batch_records: int

    @property
    def span_ms(self) -> int:
        """The event time from the first event to the last in milliseconds, rounded up to whole windows."""
        return self.windows * WINDOW_MS

    @property
    def windows(self) -> int:
        """The number of windows that contain events."""
        last_ms = (self.events - 1) * self.interval_ms // self.keys
        return last_ms // WINDOW_MS + 1

    def sized(self, events: int | None) -> Case:
        """Return this case with another number of events, or unchanged if `events` is None."""
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
        ),
        Case(
            name="wide",
            about="windowed count, 3.3 M window-keys with one event each, commit per 3 s",
            keys=50_000,
            interval_ms=WINDOW_MS,
            events=3_300_000,
            commit_interval_ms=3_000,
            max_batch_records=1_000_000,
        ),
    )
}
