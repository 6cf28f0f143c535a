"""Many unreadable records at once, and an instance that must process them with a small heap."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.watch import SAMPLE_EVERY_S, CommittedOffsets, Usage
from confluent_kafka import Producer
from tests.support.truth.topics import each_row, end_offsets, partitions
from tests.system.crash.bench import Bench

from tidemark.names import dlq_topic

HEAP = "1g"
MOST_COLLECTING = 0.1
"""Share of the time that garbage collections may take: a heap that is nearly full takes most of it."""
_BLOCK = 50_000
_MOST_QUEUED = 200_000
_STALLED_S = 180.0
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "GC overhead limit")


class ManyLetters(Bench):
    """Patient monitoring as a user runs it, with the settings' own sizes of batches."""

    heap = HEAP

    def environment(self, disk: str = "state") -> dict[str, str]:
        """Nothing that crash tests make small."""
        small = ("TIDEMARK_MAX_BATCH_RECORDS", "TIDEMARK_COMMIT_INTERVAL_MS", "JDK_JAVA_OPTIONS", "TIDEMARK_PROBE")
        found = {name: value for name, value in super().environment(disk).items() if name not in small}
        return found | {
            "TIDEMARK_SPARK_DRIVER_MEMORY": self.heap,
            "JDK_JAVA_OPTIONS": f"-Xlog:gc:file={self.gc_log}",
        }

    @property
    def gc_log(self) -> Path:
        """What the driver's collector did."""
        return self.folder / "gc.log"

    @property
    def topic(self) -> str:
        """The source that gets them."""
        return self.plan.subtopologies[0].lead.topic

    def fill(self, records: int) -> None:
        """Write so many records that are no JSON, of about 90 bytes, spread over the partitions."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 2 * _MOST_QUEUED,
            }
        )
        for first in range(0, records, _BLOCK):
            numbers = range(first, min(first + _BLOCK, records))
            messages = [{"key": b"p%04d" % (n % 500), "value": unreadable(n), "partition": n % 4} for n in numbers]
            while len(producer) > _MOST_QUEUED:
                producer.poll(0.05)
            if producer.produce_batch(self.topic, messages) != len(messages):
                raise RuntimeError(f"not all of {len(messages)} records were queued for {self.topic}")
        if left := producer.flush(60):
            raise RuntimeError(f"{left} records did not reach {self.topic} in a minute")

    def ends(self) -> dict[tuple[str, int], int]:
        """End offsets of the source."""
        return end_offsets(self.bootstrap, partitions(self.bootstrap, [self.topic]), "read_uncommitted")


def unreadable(number: int) -> bytes:
    """A record that was cut off, as a broken sender sends it."""
    return b'{"patient_id": "p%04d", "beat_ms": 17000000%05d, "ibi_ms": 800, "recording": "cut off here' % (
        number % 500,
        number % 100_000,
    )


@dataclass(frozen=True)
class Passed:
    """How an instance got through: seconds from its start to the last commit, and what it used.

    `live_mb` is the most that was left of the heap by a collection of all of it, `collecting` the share of the time that
    collections took.
    """

    seconds: float
    usage: Usage
    live_mb: int
    collecting: float


_COLLECTION = re.compile(r"Pause (\w+) .*?(\d+)M->(\d+)M\((\d+)M\) ([\d.]+)ms")


def collections(log: str) -> tuple[int, float]:
    """The most MB that were live behind a full collection, and the seconds that all collections took."""
    found = _COLLECTION.findall(log)
    full = [int(after) for kind, _, after, _, _ in found if kind == "Full"]
    return max(full, default=0), sum(float(ms) for *_, ms in found) / 1000


def get_through(bench: ManyLetters, report: Callable[[int], None]) -> Passed:
    """Launch an instance and wait until it has committed past all records, in one life. Blocks.

    Raises `RuntimeError` where the instance ends, stands still, or says that memory was short.
    """
    log, wanted, usage = bench.folder / "many.log", sum(bench.ends().values()), Usage()
    process = bench.launch(log=log.name)
    started = moved = time.monotonic()
    committed = 0
    with closing(CommittedOffsets(bench.bootstrap, bench.application_id, [bench.topic], bench.partitions)) as offsets:
        while committed < wanted:
            usage.take([process.pid])
            if (found := offsets.total()) > committed:
                committed, moved = found, time.monotonic()
                report(committed)
            if process.poll() is not None or time.monotonic() - moved > _STALLED_S:
                raise RuntimeError(f"the instance stands still at {committed} of {wanted} records: {said(log)}")
            time.sleep(SAMPLE_EVERY_S)
    seconds = time.monotonic() - started
    if code := bench.stop(process):
        raise RuntimeError(f"the instance ended with {code}: {said(log)}")
    if words := [words for words in _OUT_OF_MEMORY if words in log.read_text(errors="replace")]:
        raise RuntimeError(f"the instance was short of memory: {words}: {said(log)}")
    live_mb, collecting_s = collections(bench.gc_log.read_text())
    return Passed(seconds, usage, live_mb, collecting_s / seconds)


def said(log: Path) -> str:
    """The end of what the instance logged."""
    return log.read_text(errors="replace")[-3000:]


def wrong_letters(bench: ManyLetters) -> list[str]:
    """What is not as it must be: one letter for each record, with its bytes and its reason."""
    dlq = dlq_topic(bench.application_id)
    copies = {place: np.zeros(end, np.int32) for place, end in bench.ends().items()}
    found: list[str] = []
    for row in each_row(bench.bootstrap, partitions(bench.bootstrap, [dlq]), 600):
        summary = dict(row.headers)
        place = summary["tidemark.topic"].decode(), int(summary["tidemark.partition"])
        copies[place][int(summary["tidemark.offset"])] += 1
        if summary["tidemark.reason"] != b"unparsable" or not (row.value or b"").endswith(b"cut off here"):
            found.append(f"{dlq} {row.partition}:{row.offset}: {summary['tidemark.reason']!r} {row.value!r}")
    for place, counts in copies.items():
        if wrong := int((counts != 1).sum()):
            first = int(np.flatnonzero(counts != 1)[0])
            found.append(f"{place}: {wrong} records have not one letter, the first at {first}: {counts[first]}")
    return found
