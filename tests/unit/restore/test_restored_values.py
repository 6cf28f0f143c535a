"""The values of a changelog are checked against the store's layout before they are used."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemark.errors import StartRefused
from tidemark.kafka.committed_reader import ChangelogBatch
from tidemark.names import TopicPartition
from tidemark.restore.restorer import RestoreJob, changelog_writes
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.fold import fold_into
from tidemark.topology.plan import Aggregate, Fold, Number, StoreKind, StoreSpec

COUNT = Aggregate("n", Fold.COUNT, None, Number.LONG)
LAST = Aggregate("last", Fold.COLLECT, "x", Number.TEXT, 3)
PARTIALS = pa.table({"__max_ts": [1], "n": pa.array([1], pa.int64()), "last": pa.array([[7, 8]], pa.list_(pa.int64()))})


def value_of(*aggregates):
    layout = ValueLayout(slots_of(aggregates))
    return layout.encode(fold_into(layout, layout.empty(1), PARTIALS))[0]


def writes(value, *aggregates):
    layout = ValueLayout(slots_of(aggregates))
    spec = StoreSpec("s", StoreKind.KEY_VALUE, None, None)
    target = StoreCheckpoint("app", "1", "s", layout.signature, 1, 1, {}, 1, 1)
    changelog = TopicPartition("app-s-changelog", 0)
    job = RestoreJob(spec, changelog, 0, target, layout.value_bytes, None, layout)
    return changelog_writes(job, ChangelogBatch([b"k", b"gone"], [value, None], 2))


@pytest.mark.parametrize("aggregates", [(COUNT,), (LAST,), (COUNT, LAST)], ids=["fixed", "variable", "both"])
def test_should_accept_values_that_the_store_keeps(aggregates):
    (written,) = writes(value_of(*aggregates), *aggregates)
    assert written.values == [value_of(*aggregates), None]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [((COUNT,), (LAST,)), ((LAST,), (COUNT,)), ((LAST,), (COUNT, LAST)), ((COUNT, LAST), (LAST,))],
    ids=["fixed, then variable", "variable, then fixed", "one added", "one removed"],
)
def test_should_refuse_values_of_other_aggregates(stored, wanted):
    with pytest.raises(StartRefused, match="bring the old aggregates back"):
        writes(value_of(*stored), *wanted)
