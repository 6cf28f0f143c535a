"""Reads the output of a side with a read_committed consumer, to compare it with what must be there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.case import PARTITIONS, QUIET, Case, Integers
from bench.errors import BenchFailed
from bench.load import end_offsets

_PATIENCE = 30
_BATCH = 100_000


@dataclass(frozen=True)
class Verdict:
    """The comparison of an output with the expected one: `results` of `records` remain when later ones replace earlier ones.

    `digest` covers all results.
    """

    records: int
    results: int
    missing: int
    wrong: int
    unexpected: int
    digest: str

    @property
    def right(self) -> bool:
        """Whether nothing is missing, wrong or unexpected."""
        return not (self.missing or self.wrong or self.unexpected)


def parsed(values: list[bytes | None], schema: pa.Schema) -> pa.Table:
    """Return JSON values as columns. Raises `BenchFailed` for a value that is absent, or not of this schema."""
    # Checked first: pyarrow's reader crashes on a line `null`.
    if any(value is None for value in values):
        raise BenchFailed("the output has a record without a value, which no side should write")
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    try:
        return pyarrow.json.read_json(BytesIO(b"\n".join(value for value in values if value)), parse_options=options)
    except pa.ArrowInvalid as error:
        raise BenchFailed(f"the output has a record that no side should write: {error}") from None


def numbers(patients: pa.Array, keys: list[bytes | None]) -> Integers:
    """Return the numbers in names like `p00007`, or -1 where a record has another key. Raises `BenchFailed`."""
    try:
        number = pc.utf8_slice_codeunits(patients, 1).cast(pa.int64()).fill_null(-1).to_numpy()
    except pa.ArrowInvalid as error:
        raise BenchFailed(f"the output has a record whose key is no patient: {error}") from None
    is_own = pc.equal(pa.array(keys, pa.binary()), patients.cast(pa.binary())).fill_null(False)
    return np.where(is_own.to_numpy(zero_copy_only=False), number, -1)


def digest(results: Integers) -> str:
    """Return a short digest of the results of an output."""
    return hashlib.sha256(np.ascontiguousarray(results).tobytes()).hexdigest()[:16]


def verify(bootstrap: str, case: Case, start_ms: int, sink: str) -> Verdict:
    """Read the whole topic `sink` up to its current end and compare it with what must be there. Blocks.

    The end is the read_uncommitted one: a commit returns before its markers are on every partition, so the end that a
    read_committed reader sees first may hide records. Raises `BenchFailed` if no more records arrive before that end.
    """
    output = case.program.output(case, start_ms)
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
        consumer.assign([TopicPartition(sink, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        ends = end_offsets(bootstrap, sink)
        ended: set[int] = set()
        silent = 0
        while len(ended) < PARTITIONS:
            messages = consumer.consume(_BATCH, timeout=1.0)
            ended.update(m.partition() for m in messages if m.error() and m.offset() >= ends[m.partition()])
            records = [m for m in messages if not m.error()]
            if records:
                output.add([m.key() for m in records], [m.value() for m in records])
            silent = 0 if messages else silent + 1
            if silent == _PATIENCE:
                raise BenchFailed(f"{sink} returned nothing for {_PATIENCE} s after {output.records} records")
    finally:
        consumer.close()
    return output.verdict()
