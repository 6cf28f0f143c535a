"""Windows that the broker has deleted from a changelog, on a real broker: left out, counted, and never an excuse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.standby import count, in_window

from tidemark.clock import wall_clock_ms
from tidemark.drill.comparison import StoreComparator
from tidemark.drill.rebuild import Built, DrillRebuilder, SavedState
from tidemark.names import TaskId, changelog_topic
from tidemark.operations.context import OperationContext
from tidemark.operations.drill_history.report import RebuildMethod
from tidemark.recovery.evidence import StateCopy, Watermarks
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.bounds import Keeping
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.stores.protocol import Writes
from tidemark.stores.rocksdb import RocksStore
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.values import value_layouts, value_signature
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

DAY, MINUTE = 86_400_000, 60_000
TASK = TaskId(0, 0)


@dataclass(frozen=True)
class _Saved(DrillRebuilder):
    """Has the savepoint's store at hand."""

    def fetch(self, state: SavedState) -> Path:
        return self.folder / "saved"


def test_should_leave_out_keys_whose_records_the_broker_deleted_but_compare_those_with_a_tombstone(
    settings, create_topic, unique, tmp_path, admin
):
    app, now = unique("windows"), wall_clock_ms()
    topology = Topology(app)
    source = topology.stream(f"{app}-in", schema="id STRING, ts BIGINT", key="id", timestamp="ts")
    source.group_by_key().windowed_by(tumbling("60s")).count(name="n", store="n", retention="30d").to(f"{app}-out")
    plan = topology.plan()
    topic = create_topic(changelog_topic(app, "n"))
    spec = plan.stores[0]
    old, young = ((now - age) // MINUTE * MINUTE for age in (20 * DAY, MINUTE))
    windows = [(b"deleted", old), (b"gone", old), (b"kept", old), (b"missing", young), (b"there", young)]
    held = {in_window(key, at): count(n) for n, (key, at) in enumerate(windows, 1)}
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    keys = list(held)
    # The young `missing` was never written; a stranger deletes `gone`; the broker forgets the first record.
    # Each was written in its window, as brokers count.
    for key, value in [(keys[0], held[keys[0]]), *((k, held[k]) for k in (keys[1], keys[2], keys[4])), (keys[1], None)]:
        producer.produce(topic, value, key, timestamp=int.from_bytes(key[-8:], "big"))
    assert producer.flush(60) == 0
    for done in admin.delete_records([ClientPartition(topic, 0, 1)]).values():
        done.result(60)

    layout = value_layouts(plan.subtopologies[0])["n"]
    checkpoint = StoreCheckpoint(
        app, plan.version, "n", value_signature(spec, layout), 3, now, {f"{app}-in": 5}, now, 5
    )
    context = OperationContext.of(plan, settings, [], wall_clock_ms)
    rebuilder = _Saved(context, None, tmp_path, LoggingRestoreListener(), lambda: True)
    state = SavedState("s1", TASK, spec, StateCopy(SourceOfState.SAVEPOINT, checkpoint, "s1"), now)
    saved = RocksStore(tmp_path / "saved", write_buffer_bytes=1 << 20)
    for key, value in held.items():
        segment = int.from_bytes(key[-8:], "big") // spec.segment_ms
        saved.put_many([Writes(segment, [key], [value])], checkpoint, None)
    saved.close()
    built = rebuilder.whole(RebuildMethod.CHANGELOG.name, state, Watermarks(1, 5))
    assert built == Built(1, 5, 4, built.seconds, built.ended_ms)

    scales = StoreComparator(rebuilder, {topic: Keeping(topic, 600_000, 7 * DAY)})
    found = scales.weigh(RebuildMethod.CHANGELOG, RebuildMethod.CHANGELOG.name, state, built)
    assert (found.keys, found.altered, found.missing, found.extra, found.left_out) == (2, 0, 2, 0, 1)
    assert (found.compared, found.differing, found.deleted) == (4, 2, 0)
    assert found.verdict is Verdict.FAILED
    assert [line.split()[1] for line in found.first] == ["gone", "missing"]
    # Where the broker deletes nothing by age, somebody has purged it; what is newer than that is missing all the same.
    purged = StoreComparator(rebuilder, {topic: Keeping(topic, 600_000, None)})
    found = purged.weigh(RebuildMethod.CHANGELOG, RebuildMethod.CHANGELOG.name, state, built)
    assert (found.missing, found.left_out, found.deleted) == (2, 1, 1)
    # A savepoint brings what its changelog has lost.
    assert scales.weigh(RebuildMethod.SAVEPOINT, RebuildMethod.CHANGELOG.name, state, built).missing == 3
