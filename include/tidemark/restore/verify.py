"""A rebuilt store against an independent fold of its changelog: every key, every value (issue of trust, not of speed).

The fold is DuckDB's: the last value of each key by position, tombstones left out. Nothing of the restore's own code has a
part in it except the reader, which rule 1 fixes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidemark.errors import StoreFailed
from tidemark.restore.changelog import larger, read_committed_until
from tidemark.restore.restore import RestoreJob, RestoreSuspended
from tidemark.stores.protocol import Store, in_chunks
from tidemark.stores.rocksdb import opened
from tidemark.tasks.values import segments_of

_ROWS_AT_ONCE = 100_000
_EXAMPLES = 5


@dataclass(frozen=True)
class Difference:
    """One key that differs; values as hexadecimal text, None where there is none."""

    key: str
    in_changelog: str | None
    in_store: str | None


@dataclass(frozen=True)
class Verdict:
    """`checksum` is the order-free sum of hashes of keys and values of the store, equal for equal contents.

    `left_out` counts keys that differ and may: windows past the store's retention, which either side may have dropped, and
    keys without any record in a changelog whose beginning the broker has deleted.
    """

    task: str
    store: str
    keys: int
    checksum: str
    left_out: int
    different: int
    examples: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every key has the value that the changelog says."""
        return self.different == 0

    @property
    def told(self) -> str:
        """What differs, naming the first key; of a verdict that is not equal."""
        first = self.examples[0]
        return (
            f"store {self.task}/{self.store} differs from its changelog in {self.different} keys, first {first.key}: "
            f"changelog {first.in_changelog}, store {first.in_store}"
        )


def verify_folder(
    client_config: Mapping[str, Any],
    task: str,
    job: RestoreJob,
    folder: Path,
    *,
    stalled_after_s: float,
    go_on: Callable[[], bool],
) -> Verdict:
    """`verify_store` of a RocksDB folder that nobody has open. Raises `TaskCorrupted`, too."""
    scratch = folder.with_name(f"{folder.name}.verify")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        with opened(folder) as store:
            return verify_store(client_config, task, job, store, scratch, stalled_after_s=stalled_after_s, go_on=go_on)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def verify_store(
    client_config: Mapping[str, Any],
    task: str,
    job: RestoreJob,
    store: Store,
    scratch: Path,
    *,
    stalled_after_s: float,
    go_on: Callable[[], bool],
) -> Verdict:
    """Fold the changelog up to `job.target.changelog_offset` and compare. Blocks; spills to `scratch`, which exists.

    Raises `OutcomeUnknown` where the changelog cannot be read to its end, `RestoreSuspended` when `go_on` says no, and
    `StoreFailed` where the disk is full.
    """
    try:
        with duckdb.connect(str(scratch / "verify.duckdb")) as database:
            database.execute("set threads = 2")
            database.execute("create table log (position bigint, segment bigint, key blob, value blob)")
            database.execute("create table store (segment bigint, key blob, value blob)")
            for rows in _changelog_rows(client_config, job, stalled_after_s, go_on):
                database.register("rows", rows)
                database.execute("insert into log select * from rows")
            for rows in _store_rows(store):
                database.register("rows", rows)
                database.execute("insert into store select * from rows")
            return _compare(database, task, job)
    except duckdb.Error as error:
        raise StoreFailed(f"store {job.spec.name} of task {task} cannot be verified: {error}") from error


def _changelog_rows(
    client_config: Mapping[str, Any], job: RestoreJob, stalled_after_s: float, go_on: Callable[[], bool]
) -> Iterator[pa.Table]:
    position, reached = 0, job.low_offset
    batches = read_committed_until(
        client_config,
        job.changelog,
        job.low_offset,
        job.target.changelog_offset,
        stalled_after_s=stalled_after_s,
        go_on=go_on,
    )
    for batch in larger(batches, _ROWS_AT_ONCE):
        reached = batch.next_offset
        count = len(batch.keys)
        yield pa.table(
            {
                "position": pa.array(range(position, position + count), pa.int64()),
                "segment": pa.array(segments_of(job.spec, batch.keys)),
                "key": pa.array(batch.keys, pa.binary()),
                "value": pa.array(batch.values, pa.binary()),
            }
        )
        position += count
    if reached < job.target.changelog_offset:
        raise RestoreSuspended(f"verifying {job.changelog} at {reached} of {job.target.changelog_offset}")


def _store_rows(store: Store) -> Iterator[pa.Table]:
    for segment in store.segments():
        for keys, values in in_chunks(store, segment, _ROWS_AT_ONCE):
            yield _store_table(segment, keys, values)


def _store_table(segment: int, keys: list[bytes], values: list[bytes]) -> pa.Table:
    segments = pa.array([segment] * len(keys), pa.int64())
    return pa.table({"segment": segments, "key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _compare(database: duckdb.DuckDBPyConnection, task: str, job: RestoreJob) -> Verdict:
    # A struct, as max_by passes over a value that is null: a tombstone.
    live = job.first_live_segment if job.first_live_segment is not None else -(1 << 62)
    database.execute(
        """
        create table pairs as
        select coalesce(f.key, s.key) as key, f.last.v as expected, s.value as found,
               coalesce(f.segment, s.segment) < $live or (f.key is null and $low > 0) as left_out
        from (select key, any_value(segment) as segment, max_by({'v': value}, position) as last from log group by key) f
        full join store s on f.key = s.key
        """,
        {"live": live, "low": job.low_offset},
    )
    keys, checksum, left_out, different = database.execute(
        """
        select count(*) filter (found is not null), sum(hash(key, found)::hugeint) filter (found is not null),
               count(*) filter (left_out and expected is distinct from found),
               count(*) filter (not left_out and expected is distinct from found)
        from pairs
        """
    ).fetchall()[0]
    examples = database.execute(
        f"select key, expected, found from pairs where not left_out and expected is distinct from found "  # noqa: S608
        f"order by key limit {_EXAMPLES}"
    ).fetchall()
    return Verdict(
        task,
        job.spec.name,
        keys,
        f"{int(checksum or 0) & (2**128 - 1):032x}",
        left_out,
        different,
        tuple(Difference(_hex(key) or "", _hex(expected), _hex(found)) for key, expected, found in examples),
    )


def _hex(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).hex()
