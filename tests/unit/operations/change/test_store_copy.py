"""Copies of stores to other changelogs: each transaction is small enough to end before its time-out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tidemark.kafka.topic_config import changelog_policies
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.store_copy import Copier, KeyHeldTwice, limited
from tidemark.recovery import facts
from tidemark.recovery.evidence import CommittedProgress
from tidemark.recovery.facts import Witnesses
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology
from tidemark.topology.plan import StoreKind, StoreSpec
from tidemark.topology.windows import tumbling

MIB = 1 << 20
SPEC = StoreSpec("n", StoreKind.KEY_VALUE, None, None)
CHANGELOG = TopicPartition("app-n-changelog", 0)


class CountingProducer:
    """A `BatchProducer` that keeps the number of keys and bytes of each transaction."""

    def __init__(self):
        self.committed, self.aborted, self._keys, self._bytes = [], 0, 0, 0

    def begin(self):
        self._keys = self._bytes = 0

    def send_many(self, _topic, messages, _partition):
        self._keys += len(messages)
        self._bytes += sum(len(message["key"]) + len(message["value"]) for message in messages)

    def flush(self):
        return None

    def abort(self):
        self.aborted += 1

    def commit(self):
        self.committed.append((self._keys, self._bytes))


class LoadedStore:
    """Takes what is loaded into a store."""

    def load_many(self, _writes):
        return None

    def segments(self):
        return []


def entries(keys, value_bytes, at_once):
    for start in range(0, keys, at_once):
        names = [f"{n:08d}".encode() for n in range(start, min(start + at_once, keys))]
        yield names, [bytes(value_bytes)] * len(names)


def copied(keys, value_bytes, at_once):
    """Return the keys and bytes of each transaction."""
    producer = CountingProducer()
    copier = Copier(None, producer, None, lambda _point: None)
    sent = copier.copy(entries(keys, value_bytes, at_once), SPEC, CHANGELOG, LoadedStore())
    assert sent == keys == sum(keys for keys, _ in producer.committed)
    return producer.committed


def test_should_end_a_transaction_of_large_values_after_some_bytes():
    made = copied(keys=6_000, value_bytes=10_000, at_once=3_000)
    assert len(made) >= 3
    assert max(size for _, size in made) <= 20 * MIB


def test_should_end_a_transaction_of_small_values_after_some_keys():
    assert [keys for keys, _ in copied(keys=120_000, value_bytes=8, at_once=10_000)] == [50_000, 50_000, 20_000]


WINDOWED = StoreSpec("w", StoreKind.WINDOW, 60_000, 1_000)


def windows(*starts):
    """Keys of one key's windows."""
    return [b"k" + start.to_bytes(8, "big") for start in starts]


SESSIONS = StoreSpec("s", StoreKind.SESSION, 60_000, 1_000)


def sessions(*times, key=b"k"):
    """Keys of one key's sessions, each from a start to an end."""
    return [key + end.to_bytes(8, "big") + start.to_bytes(8, "big") for start, end in times]


@pytest.mark.parametrize(
    ("spec", "first", "second", "twice"),
    [
        (SPEC, [b"a", b"b"], [b"c", b"d"], None),
        (SPEC, [b"a", b"b"], [b"c", b"b"], b"b"),
        (WINDOWED, windows(0, 5_000), windows(1_000, 5_001), None),
        (WINDOWED, windows(0, 5_000), windows(1_000, 5_000), windows(5_000)[0]),
        (SESSIONS, sessions((10, 90), (4_000, 8_000)), sessions((91, 99), (3_000, 3_999), (8_001, 8_002)), None),
        (SESSIONS, sessions((10, 90)), sessions((10, 90), (20, 80), key=b"kk"), None),
        (SESSIONS, sessions((4_000, 8_000)), sessions((100, 200), (8_000, 9_000)), sessions((8_000, 9_000))[0]),
        (SESSIONS, sessions((4_000, 8_000)), sessions((100, 4_000)), sessions((100, 4_000))[0]),
        (SESSIONS, sessions((4_000, 8_000)), sessions((5_000, 6_000)), sessions((5_000, 6_000))[0]),
    ],
)
def test_should_refuse_to_load_a_key_that_an_earlier_task_has_loaded(tmp_path, spec, first, second, twice):
    producer = CountingProducer()
    copier = Copier(None, producer, tmp_path, lambda _point: None)
    halves = lambda keys: np.array([0 if spec is SESSIONS else key[-1] % 2 for key in keys])  # noqa: E731
    with copier.store(TaskId(0, 0), spec) as even, copier.store(TaskId(0, 1), spec) as odd:
        loaded = {0: even, 1: odd}
        copier.spread(iter([(first, first)]), spec, "changelog", loaded, halves)
        again = iter([(second, second)])
        if twice is None:
            assert sum(copier.spread(again, spec, "changelog", loaded, halves).values()) == len(second)
            return
        with pytest.raises(KeyHeldTwice) as raised:
            copier.spread(again, spec, "changelog", loaded, halves)
        assert raised.value.records == repr(twice)
        assert producer.aborted == 1


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4, 5], [[4, 5]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([11, 1, 11], [[11], [1], [11]]),
        ([3, 3, 3, 3], [[3, 3, 3], [3]]),
    ],
)
def test_should_part_items_by_their_size_and_keep_their_order(sizes, expected):
    keys, values = [b"k"] * len(sizes), [bytes(size - 1) for size in sizes]
    parts = list(limited(iter([(keys, values)]), 10))
    assert [[len(k) + len(v) for k, v in zip(*part, strict=True)] for part in parts] == expected


class Ends:
    """A changelog `w` that has lost what was before offset 10; everything else is there."""

    def of(self, partitions):
        return dict.fromkeys(partitions, 100)

    def beginnings(self, partitions):
        return {partition: 10 if partition.topic == "app-w-changelog" else 0 for partition in partitions}


def test_should_verify_a_new_changelog_without_a_search_for_what_another_has_lost(monkeypatch):
    topology = Topology("app", version="1")
    grouped = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at").group_by_key()
    grouped.count(name="n", store="n").to("out")
    grouped.windowed_by(tumbling("60s")).count(name="n", store="w", retention="6h").to("out")
    plan, task, searches, jobs = topology.plan(), TaskId(0, 0), [], []
    monkeypatch.setattr(facts, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(facts, "last_commit_records", lambda *_, **__: {})
    for search in ("oldest_writes", "last_lost_writes"):
        monkeypatch.setattr(facts, search, lambda *_, search=search, **__: searches.append(search) or {})
    witnesses = Witnesses(plan, Settings.load(), {}, Ends(), changelog_policies(plan), lambda: 0)

    def verify(_task, job, *_):
        jobs.append(job)
        return SimpleNamespace(is_equal=True)

    context = SimpleNamespace(
        plan=plan,
        clients=SimpleNamespace(clock=lambda: 0),
        evidence=SimpleNamespace(witnesses=witnesses),
        rebuilder=SimpleNamespace(verify=verify),
    )
    copier = Copier(context, None, Path("folder"), lambda _point: None)
    (new,) = (spec for spec in plan.stores if spec.name == "n")
    copier.verify(task, new, CommittedProgress({"in": 5}, 7, StreamTimes.none()))
    assert [(job.changelog.topic, job.target.changelog_offset) for job in jobs] == [("app-n-changelog", 100)]
    assert searches == []
