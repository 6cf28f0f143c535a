"""Reads the output of a side with a read_committed consumer and compares it with an independent count."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.cases import OUTPUT_TOPIC, PARTITIONS, QUIET, WINDOW_MS, Case
from bench.errors import BenchFailed
from bench.events import Integers, expected_counts
from bench.load import end_offsets

_SCHEMA = pa.schema(
    [
        ("patient_id", pa.string()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("pulses", pa.int64()),
    ]
)
_PARSING = pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="error")
_PATIENCE = 30
_BATCH = 100_000


@dataclass(frozen=True)
class Verdict:
    """The comparison of the last value per key and window with the expected one. `digest` covers all values."""

    records: int
    window_keys: int
    missing: int
    wrong: int
    unexpected: int
    digest: str

    @property
    def right(self) -> bool:
        """Whether nothing is missing, wrong or unexpected."""
        return not (self.missing or self.wrong or self.unexpected)


class LastCounts:
    """Collects the last count per window (rows) and key (columns). It is 0 if there was none."""

    def __init__(self, case: Case, start_ms: int) -> None:
        self._case = case
        self._start_ms = start_ms
        self.counts = np.zeros((case.windows, case.keys), dtype=np.int64)
        self.records = 0
        self.unexpected = 0

    def add(self, keys: list[bytes | None], values: list[bytes]) -> None:
        """Add records of one or more partitions, those of each partition in the order of their offsets."""
        try:
            table = pyarrow.json.read_json(BytesIO(b"\n".join(values)), parse_options=_PARSING)
            patient = table["patient_id"].combine_chunks()
            key = pc.utf8_slice_codeunits(patient, 1).cast(pa.int64()).fill_null(-1).to_numpy()
            same_key = pc.equal(pa.array(keys, pa.binary()), patient.cast(pa.binary())).fill_null(False)
        except pa.ArrowInvalid as error:
            raise BenchFailed(f"{OUTPUT_TOPIC} has a record that no side should write: {error}") from None
        self.records += len(values)
        start, end, pulses = (table[name].fill_null(-1).to_numpy() for name in ("window_start", "window_end", "pulses"))
        window, into_window_ms = np.divmod(start - self._start_ms, WINDOW_MS)
        legal = same_key.to_numpy(zero_copy_only=False) & (into_window_ms == 0) & (end == start + WINDOW_MS)
        legal &= (window >= 0) & (window < self._case.windows) & (key >= 0) & (key < self._case.keys) & (pulses > 0)
        self.unexpected += int(len(values) - np.count_nonzero(legal))
        self._keep_last(window[legal] * self._case.keys + key[legal], pulses[legal])

    def _keep_last(self, place: Integers, pulses: Integers) -> None:
        """Keep the last of several values for one place. (Assigned directly, numpy would not define which one is kept.)"""
        places, from_end = np.unique(place[::-1], return_index=True)
        self.counts.ravel()[places] = pulses[::-1][from_end]

    def verdict(self, expected: Integers) -> Verdict:
        """Compare the counts with `expected`, which has the same shape."""
        return Verdict(
            records=self.records,
            window_keys=int(np.count_nonzero(self.counts)),
            missing=int(np.count_nonzero((self.counts == 0) & (expected > 0))),
            wrong=int(np.count_nonzero((self.counts != expected) & (self.counts > 0))),
            unexpected=self.unexpected,
            digest=hashlib.sha256(self.counts.tobytes()).hexdigest()[:16],
        )


def verify(bootstrap: str, case: Case, start_ms: int) -> Verdict:
    """Read the whole output topic up to its current end and compare it with the expected counts. Blocks.

    The end is the read_uncommitted one: a commit returns before its markers are on every partition, so the end that a
    read_committed reader sees first may hide records. Raises `BenchFailed` if no more records arrive before that end.
    """
    last = LastCounts(case, start_ms)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "group.id": "bench-verify",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 1 << 16,
        }
    )
    try:
        consumer.assign([TopicPartition(OUTPUT_TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        ends = end_offsets(bootstrap, OUTPUT_TOPIC)
        ended: set[int] = set()
        silent = 0
        while len(ended) < PARTITIONS:
            messages = consumer.consume(_BATCH, timeout=1.0)
            ended.update(m.partition() for m in messages if m.error() and m.offset() >= ends[m.partition()])
            records = [m for m in messages if not m.error()]
            if records:
                last.add([m.key() for m in records], [m.value() for m in records])
            silent = 0 if messages else silent + 1
            if silent == _PATIENCE:
                raise BenchFailed(f"{OUTPUT_TOPIC} returned nothing for {_PATIENCE} s after {last.records} records")
    finally:
        consumer.close()
    return last.verdict(expected_counts(case))
