"""Comparison of a rebuilt store with an independent fold of its changelog: every key, every value.

DuckDB does the fold: the last value of each key by position, without tombstones. It shares no code with the restore
except for the reader (see invariant: end of a restore). `restore.bounds` decides which keys are compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidemark import verdict as checks
from tidemark.errors import StoreFailed
from tidemark.kafka.committed_reader import larger, read_committed_until
from tidemark.restore.bounds import Absence, EvidenceBounds, Figures
from tidemark.restore.restorer import RestoreJob, RestoreSuspended, changelog_segments
from tidemark.stores.protocol import Store, in_chunks
from tidemark.stores.rocksdb import opened

_ROWS_AT_ONCE = 100_000
_DIFFERING_AT_ONCE = 1_000
"""Few enough that large values fit into memory."""
_EXAMPLES = 5
_COMPARED = f"evidence in ('present', '{Absence.DIFFERENCE}')"
_DIFFERS = f"{_COMPARED} and expected is distinct from found"

Differing = Callable[[Sequence[tuple[bytes, bytes | None]]], None]
"""Called with many differing keys at a time, each with the store's value, or None if the store does not hold it."""


@dataclass(frozen=True)
class KeyMismatch:
    """One key that differs; values as hexadecimal text, None if there is none."""

    key: str
    in_changelog: str | None
    in_store: str | None


@dataclass(frozen=True)
class StoreVerification:
    """The result for one store: `compared`, `left_out` and `different` keys, see `restore.bounds.Figures`.

    `keys` counts the store's keys. `checksum` is the sum of the hashes of its keys and values, in any order, and equal
    for equal contents. `left_out` are windows past the store's retention, which either side may have dropped, and keys
    without a record in a changelog whose beginning is deleted; `deleted` counts those of them whose deletion no
    retention explains.
    """

    task: str
    store: str
    keys: int
    checksum: str
    compared: int
    left_out: int
    different: int
    deleted: int
    is_whole: bool
    examples: tuple[KeyMismatch, ...]

    @property
    def figures(self) -> Figures:
        """The figures that the verdict is based on."""
        return Figures(self.compared, self.left_out, self.different, self.deleted, self.is_whole)

    @property
    def is_equal(self) -> bool:
        """Whether every key that was compared has the changelog's value; see `is_proven`."""
        return self.different == 0

    @property
    def is_proven(self) -> bool:
        """Whether enough was compared to prove the store right."""
        return self.figures.verdict is checks.Verdict.OK

    @property
    def differences(self) -> str:
        """The first keys that differ, with both values: a line for each, in hexadecimal."""
        return "\n".join(f"{one.key}: changelog {one.in_changelog}, store {one.in_store}" for one in self.examples)

    @property
    def summary(self) -> str:
        """The result in one line, without keys and values."""
        name = f"store {self.task}/{self.store}"
        if self.examples:
            return f"{name} differs from its changelog in {self.different} keys"
        if self.is_proven:
            return f"{name} equals its changelog: {self.figures.summary}"
        return (
            f"{name}: {self.figures.verdict}: its changelog has lost its beginning, so {self.left_out} keys cannot be "
            f"compared with it ({self.figures.summary})"
        )


def verify_folder(
    client_config: Mapping[str, Any],
    task: str,
    job: RestoreJob,
    bounds: EvidenceBounds,
    folder: Path,
    *,
    stalled_after_s: float,
    memory_bytes: int,
    should_continue: Callable[[], bool],
    differing: Differing | None = None,
) -> StoreVerification:
    """Run `verify_store` on a RocksDB folder that no process has open. Also raises `TaskCorrupted`."""
    scratch = folder.with_name(f"{folder.name}.verify")
    # A comparison that was killed leaves its database, with tables of the same names.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        with opened(folder) as store:
            return verify_store(
                client_config, task, job, bounds, store, scratch,
                stalled_after_s=stalled_after_s, memory_bytes=memory_bytes, should_continue=should_continue,
                differing=differing,
            )  # fmt: skip
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def verify_store(
    client_config: Mapping[str, Any],
    task: str,
    job: RestoreJob,
    bounds: EvidenceBounds,
    store: Store,
    scratch: Path,
    *,
    stalled_after_s: float,
    memory_bytes: int,
    should_continue: Callable[[], bool],
    differing: Differing | None = None,
) -> StoreVerification:
    """Fold the changelog up to `job.target.changelog_offset` and compare the store with it.

    Blocks. What needs more than `memory_bytes` is written to `scratch`, which must exist. `differing` is called with
    the keys that differ, in the order of the keys.

    Raises `OutcomeUnknown` if the changelog cannot be read to its end, `StartRefused` if it holds keys that do not
    belong to this store, `RestoreSuspended` if `should_continue` returns False, and `StoreFailed` if the disk is full or the
    memory is too small.
    """
    try:
        with scratch_database(scratch, memory_bytes) as database:
            database.execute("create table log (position bigint, segment bigint, key blob, value blob)")
            database.execute("create table store (segment bigint, key blob, value blob)")
            for rows in _changelog_rows(client_config, job, stalled_after_s, should_continue):
                database.register("rows", rows)
                database.execute("insert into log select * from rows")
            for rows in _store_rows(store):
                database.register("rows", rows)
                database.execute("insert into store select * from rows")
            verdict = _compare(database, task, job, bounds)
            if differing is not None and not verdict.is_equal:
                rows = database.execute(f"select key, found from pairs where {_DIFFERS} order by key")  # noqa: S608
                while found := rows.fetchmany(_DIFFERING_AT_ONCE):
                    differing(found)
            return verdict
    except duckdb.OutOfMemoryException as error:
        raise StoreFailed(
            f"store {job.spec.name} of task {task} cannot be verified in {memory_bytes} bytes of memory: raise "
            "TIDEMARK_VERIFY_MEMORY_BYTES, or free disk space"
        ) from error
    except duckdb.Error as error:
        raise StoreFailed(f"store {job.spec.name} of task {task} cannot be verified: {error}") from error


def scratch_database(scratch: Path, memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Open a database in a folder, to which it also writes what does not fit into its memory."""
    return duckdb.connect(
        str(scratch / "verify.duckdb"),
        config={
            "threads": 2,
            "memory_limit": f"{memory_bytes // 1024}KiB",
            "temp_directory": str(scratch / "spilled"),
            # Keeping the order costs memory and is not needed.
            "preserve_insertion_order": False,
        },
    )


def _changelog_rows(
    client_config: Mapping[str, Any], job: RestoreJob, stalled_after_s: float, should_continue: Callable[[], bool]
) -> Iterator[pa.Table]:
    position, reached = 0, job.low_offset
    batches = read_committed_until(
        client_config,
        job.changelog,
        job.low_offset,
        job.target.changelog_offset,
        stalled_after_s=stalled_after_s,
        should_continue=should_continue,
    )
    for batch in larger(batches, _ROWS_AT_ONCE):
        reached = batch.next_offset
        count = len(batch.keys)
        yield pa.table(
            {
                "position": pa.array(range(position, position + count), pa.int64()),
                "segment": pa.array(changelog_segments(job, batch.keys)),
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


def _compare(
    database: duckdb.DuckDBPyConnection, task: str, job: RestoreJob, bounds: EvidenceBounds
) -> StoreVerification:
    segments = [
        row[0] for row in database.execute("select segment from log union select segment from store").fetchall()
    ]
    database.register(
        "bounds",
        pa.table(
            {
                "segment": pa.array(segments, pa.int64()),
                "has_expired": pa.array([bounds.has_expired(segment) for segment in segments], pa.bool_()),
                "absence": pa.array([str(bounds.absence(segment)) for segment in segments], pa.string()),
            }
        ),
    )
    # Wrapped in a struct, because max_by skips nulls, which are tombstones here. A key that neither side holds is left out.
    database.execute(
        """
        create table pairs as
        select coalesce(f.key, s.key) as key, f.last.v as expected, s.value as found,
               case when b.has_expired then 'expired' when f.key is null then b.absence else 'present' end as evidence
        from (select key, any_value(segment) as segment, max_by({'v': value}, position) as last from log group by key) f
        full join store s on f.key = s.key
        join bounds b on b.segment = coalesce(f.segment, s.segment)
        where f.last.v is not null or s.value is not null
        """
    )
    keys, checksum, counted, left_out, deleted, different = database.execute(
        f"""
        select count(*) filter (found is not null), sum(hash(key, found)::hugeint) filter (found is not null),
               count(*) filter ({_COMPARED}), count(*) filter (not ({_COMPARED})),
               count(*) filter (evidence = '{Absence.DELETED}'), count(*) filter ({_DIFFERS})
        from pairs
        """  # noqa: S608
    ).fetchall()[0]
    examples = database.execute(
        f"select key, expected, found from pairs where {_DIFFERS} order by key limit {_EXAMPLES}"  # noqa: S608
    ).fetchall()
    return StoreVerification(
        task=task,
        store=job.spec.name,
        keys=keys,
        checksum=f"{int(checksum or 0) & (2**128 - 1):032x}",
        compared=counted,
        left_out=left_out,
        different=different,
        deleted=deleted,
        is_whole=bounds.is_whole,
        examples=tuple(KeyMismatch(_hex(key) or "", _hex(expected), _hex(found)) for key, expected, found in examples),
    )


def _hex(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).hex()
