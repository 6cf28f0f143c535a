"""Versions of an application that counts: what `tests/support/counting.py` runs, with another topology each time."""

from __future__ import annotations

import json
import shlex
from collections import Counter

import pyarrow as pa
from tests.support.counting import AT_MS, PARTITIONS, CountingApp, CountingSource
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.topics import read_all

from tidemark.commit.history import last_commit_records
from tidemark.commit.record import CommitRecord
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TaskId
from tidemark.stores.protocol import WHOLE
from tidemark.stores.rocksdb import opened
from tidemark.tasks.partials import Status
from tidemark.tasks.values import value_layouts
from tidemark.topology.builder import Topology


class CountingAndSumming(CountingSource):
    """Partial results for any of the aggregates below: `n` and `total` count, `twos` is twice the count."""

    def counted(self, messages) -> pa.Table:
        counted = Counter((message.partition(), message.key().decode()) for message in messages)
        rows = [
            (p, Status.GOOD, n, AT_MS, i, key, n, n, 2 * n) for i, ((p, key), n) in enumerate(sorted(counted.items()))
        ]
        names = (*PARTIAL_HEAD, "n", "total", "twos")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


class BesideATable(CountingAndSumming):
    """Hands over nothing of the table, whose tasks only commit where they begin."""

    def start(self, next_offsets, max_batch_records):
        super().start({p: at for p, at in next_offsets.items() if p.topic == self._topic}, max_batch_records)


def advised(shown: str) -> list[str]:
    """The arguments of the command with which the last line of a plan ends, as a shell passes them to `tidemark`."""
    program, *arguments = shlex.split(shown.strip().splitlines()[-1].split("`")[1])
    assert program == "tidemark"
    return arguments


def version_one(name: str) -> Topology:
    """Counts by key in the store `n`."""
    return version(name, "1", "n", n="count(*)")


def version(name: str, number: str, store: str, guarantee: str = "exactly_once", **aggregates: str) -> Topology:
    """One store of aggregates, sent to `<name>-out`."""
    topology = Topology(name, version=number, guarantee=guarantee)
    source = topology.stream(f"{name}-in", schema="id STRING, v BIGINT", key="id")
    source.group_by_key().aggregate(store=store, **aggregates).to(f"{name}-out")
    return topology


class ChangingApp(CountingApp):
    """Runs whatever version it is given."""

    def __init__(self, settings, admin, name) -> None:
        super().__init__(settings, admin, name, topology=version_one, source=CountingAndSumming)

    def become(self, topology: Topology) -> None:
        """The module is another one from now on."""
        self.plan = topology.plan()

    def last_records(self) -> dict[TaskId, CommitRecord]:
        """Of each task."""
        client = {"bootstrap.servers": self.settings.bootstrap_servers}
        tasks = [TaskId(0, number) for number in range(PARTITIONS)]
        return last_commit_records(client, EndOffsets(self.admin, 60), self.name, tasks, stalled_after_s=60)

    def last_outputs(self) -> dict[str, dict[str, int | None]]:
        """The last row of each key in the sink."""
        rows = read_all(self.settings.bootstrap_servers, [f"{self.name}-out"])
        found = {row.key.decode(): json.loads(row.value) for listed in rows.values() for row in listed}
        return {key: {name: value for name, value in row.items() if name != "id"} for key, row in found.items()}

    def counts(self) -> dict[str, int]:
        """What the store `n` holds on disk."""
        layout, found = value_layouts(self.plan.subtopologies[0])["n"], {}
        for partition in range(PARTITIONS):
            with opened(self.store_folder(partition)) as store:
                items = list(store.items(WHOLE))
            decoded = layout.decode([value for _, value in items])
            found |= {key.decode(): int(n) for (key, _), n in zip(items, decoded["f0"], strict=True)}
        return found
