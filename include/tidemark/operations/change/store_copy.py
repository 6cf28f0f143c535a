"""Writing of a store to another changelog: its state is read and verified, each value converted, and the result compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemark.commit.producer import BatchProducer
from tidemark.errors import CopyUnusable, PreflightFailed, StartRefused, TidemarkError
from tidemark.failpoint import Probe
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.context import OperationContext
from tidemark.operations.evidence_reader import Found
from tidemark.operations.offline_transaction import aborting
from tidemark.recovery.evidence import CommittedProgress
from tidemark.registry.topic_identities import LostTopic
from tidemark.restore.listener import RestoreListener
from tidemark.restore.task_opener import restore_job
from tidemark.stores.directory import folder_of
from tidemark.stores.protocol import Writes, in_chunks
from tidemark.stores.rocksdb import RocksStore, opened
from tidemark.stores.session_keys import sessions_between, split_session_key
from tidemark.tasks.values import first_live_segment, segments_of
from tidemark.topology.plan import StoreKind, StoreSpec

_KEYS_AT_ONCE = 10_000
_KEYS_A_TRANSACTION = 50_000
_BYTES_AT_ONCE = 4 << 20
_BYTES_A_TRANSACTION = 16 << 20
"""A transaction must end before its time-out, however large the values are."""
_WRITE_BUFFER_BYTES = 32 << 20

Entries = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys and their values."""
Place = Callable[[Sequence[bytes]], npt.NDArray[np.integer[Any]]]
"""The function that returns the partition of each key."""


class KeyHeldTwice(TidemarkError):
    """A key that would be loaded is in the store already, from an earlier call, or a session overlaps with one of its key.

    `records` quotes the key.
    """


@dataclass(frozen=True)
class OldState:
    """Builds the stores of the version that ran, in `folder`, and compares each with its changelog.

    With `may_be_gone`, the sources may have deleted the next record to read.
    """

    context: OperationContext
    folder: Path
    listener: RestoreListener
    probe: Probe
    report: Callable[[str], None]
    may_be_gone: bool = False

    def build(self, found: Found, spec: StoreSpec) -> Path:
        """Build the store as the last commit left it, and return its folder. Blocks. Raises `StartRefused`."""
        task, context = found.facts.task, self.context
        folder = folder_of(self.folder, task, spec.name)
        candidates = context.evidence.candidates(found, None, may_be_gone=self.may_be_gone)
        if candidates is None:
            raise StartRefused(f"task {task} has never committed anything, so it has no state")

        def pass_over(error: CopyUnusable) -> None:
            self.report(f"store {task}/{spec.name}: {error}; the next source of state is tried")

        builder = context.rebuilder.builder(self.listener, self.probe, context.evidence.copies)
        job = context.rebuilder.build(
            builder, found, candidates, spec, folder, lambda: True, pass_over, may_be_gone=self.may_be_gone
        )
        verdict = context.rebuilder.verify(task, job, folder, lambda: True)
        if not verdict.is_equal:
            raise StartRefused(
                f"{verdict.summary}; nothing was changed; if the changelog is right, `tidemark restore run NAME --from "
                "changelog` repairs the store, otherwise `tidemark repair run NAME` repairs the changelog",
                records=verdict.differences,
            )
        if not verdict.is_proven:
            self.report(verdict.summary)
        self.probe("old-state-built")
        return folder


def live_items(store: RocksStore, spec: StoreSpec, committed: CommittedProgress) -> Iterator[Entries]:
    """Yield the keys and values that have not expired at the stream time of `committed`, some thousands at a time."""
    first = first_live_segment(spec, committed.stream_times.of(spec.name))
    for segment in store.segments():
        if first is not None and segment < first:
            continue
        yield from in_chunks(store, segment, _KEYS_AT_ONCE)


@dataclass(frozen=True)
class Copier:
    """Writes new changelogs through `producer`, in transactions of their own, because nothing refers to those topics yet."""

    context: OperationContext
    producer: BatchProducer
    folder: Path
    probe: Probe
    lost: Mapping[str, LostTopic] = field(default_factory=dict)
    """The topics that were lost before, and that the change leaves lost."""

    def copy(self, items: Iterator[Entries], spec: StoreSpec, changelog: TopicPartition, loaded: RocksStore) -> int:
        """Write the items to a changelog and load them into a store. Returns their number. Blocks."""
        number = changelog.partition
        return self.spread(items, spec, changelog.topic, {number: loaded}, lambda keys: np.full(len(keys), number))[
            number
        ]

    def spread(
        self, items: Iterator[Entries], spec: StoreSpec, topic: str, loaded: Mapping[int, RocksStore], place: Place
    ) -> dict[int, int]:
        """Write and load each item into the partition that `place` returns. Returns their number by partition. Blocks.

        `loaded` may hold what earlier calls have loaded. Raises `KeyHeldTwice` for a key that is among it, and for a session
        that overlaps with one of the same key.
        """
        sent, keys_sent, bytes_sent = dict.fromkeys(loaded, 0), 0, 0
        filled = [number for number, store in loaded.items() if store.segments()]
        self.producer.begin()
        with aborting(self.producer):
            for keys, values in limited(items, _BYTES_AT_ONCE):
                if keys_sent >= _KEYS_A_TRANSACTION or bytes_sent >= _BYTES_A_TRANSACTION:
                    self.producer.flush()
                    self.producer.commit()
                    self.producer.begin()
                    keys_sent = bytes_sent = 0
                places = place(keys)
                for number in np.unique(places).tolist():
                    rows = np.flatnonzero(places == number).tolist()
                    own_keys, own_values = [keys[i] for i in rows], [values[i] for i in rows]
                    if number in filled:
                        _require_new(spec, own_keys, own_values, loaded[number])
                    self._write(spec, TopicPartition(topic, number), own_keys, own_values, loaded[number])
                    sent[number] += len(rows)
                keys_sent += len(keys)
                bytes_sent += sum(map(len, keys)) + sum(map(len, values))
                self.probe("copying")
            self.producer.flush()
        self.producer.commit()
        return sent

    def _write(
        self,
        spec: StoreSpec,
        changelog: TopicPartition,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        loaded: RocksStore,
    ) -> None:
        messages = [{"key": k, "value": v} for k, v in zip(keys, values, strict=True)]
        self.producer.send_many(changelog.topic, messages, changelog.partition)
        loaded.load_many(_by_segment(spec, keys, values))

    @contextmanager
    def store(self, task: TaskId, spec: StoreSpec) -> Iterator[RocksStore]:
        """Provide an empty store that is loaded together with the changelog, to be compared with it."""
        folder = folder_of(self.folder, task, spec.name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        store = RocksStore(folder, write_buffer_bytes=_WRITE_BUFFER_BYTES)
        try:
            yield store
        finally:
            store.close()

    def verify(self, task: TaskId, spec: StoreSpec, committed: CommittedProgress) -> None:
        """Fold the new changelog and compare it with what was loaded. Raises `PreflightFailed`; then nothing was changed.

        Blocks.
        """
        facts = self.context.evidence.witnesses.current_offsets([task], self.lost)[task]
        job = restore_job(self.context.plan, facts, spec, committed, self.context.clients.clock())
        verdict = self.context.rebuilder.verify(task, job, folder_of(self.folder, task, spec.name), lambda: True)
        if not verdict.is_equal:
            raise PreflightFailed(
                f"{verdict.summary}; the new changelog differs from what was written to it; nothing was changed, try again",
                records=verdict.differences,
            )


def limited(items: Iterator[Entries], most_bytes: int) -> Iterator[Entries]:
    """Yield the same items in the same order, in parts of at most `most_bytes`; a larger item is a part of its own."""
    for keys, values in items:
        start, size = 0, 0
        for i, (key, value) in enumerate(zip(keys, values, strict=True)):
            own = len(key) + len(value)
            if i > start and size + own > most_bytes:
                yield keys[start:i], values[start:i]
                start, size = i, 0
            size += own
        if start < len(keys):
            yield keys[start:], values[start:]


def keys_of(folder: Path, spec: StoreSpec, committed: CommittedProgress) -> int:
    """Return the number of live keys in a built store."""
    with opened(folder) as store:
        return sum(len(keys) for keys, _ in live_items(store, spec, committed))


def _require_new(spec: StoreSpec, keys: Sequence[bytes], values: Sequence[bytes], store: RocksStore) -> None:
    for writes in _by_segment(spec, keys, values):
        for key, held in zip(writes.keys, store.get_many(writes.segment, writes.keys), strict=True):
            if held is not None:
                raise KeyHeldTwice("two stores hold the same key", records=repr(key))
    if spec.kind is not StoreKind.SESSION:
        return
    for key in keys:
        if _overlaps(key, store):
            raise KeyHeldTwice("two stores hold a session of the same key at the same time", records=repr(key))


def _overlaps(session: bytes, store: RocksStore) -> bool:
    """Return whether the store holds a session of the same key at the same time. Sessions of one task never overlap."""
    key, start, end = split_session_key(session)
    return any(True for segment in store.segments() for _ in sessions_between(store, segment, key, start, end))


def _by_segment(spec: StoreSpec, keys: Sequence[bytes], values: Sequence[bytes]) -> list[Writes]:
    found: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
    for segment, key, value in zip(segments_of(spec, keys).tolist(), keys, values, strict=True):
        held = found.setdefault(segment, ([], []))
        held[0].append(key)
        held[1].append(value)
    return [Writes(segment, *held) for segment, held in found.items()]
