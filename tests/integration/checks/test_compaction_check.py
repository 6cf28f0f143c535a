"""The compaction check on a real broker whose cleaner is delayed by a setting, and works once that is corrected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Producer
from tests.support.counting import CountingApp

from tidemark.checks import compaction_sampling
from tidemark.checks.compaction import CompactionRules
from tidemark.checks.compaction_sampling import CompactionLook, check_compaction
from tidemark.errors import PreflightFailed
from tidemark.kafka.clients import librdkafka_config
from tidemark.operations.topic_changes import apply_changes, plan_changes
from tidemark.processes import wait_until
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.verdict import Verdict

pytestmark = pytest.mark.broker
RULES = CompactionRules(offsets_per_s=1000, least_superseded=500)


def kept(name: str, **more: str) -> Topology:
    """Segments that roll after half a second, none of their records too young for the cleaner."""
    config = {"min.compaction.lag.ms": "0", "segment.ms": "500", **more}
    topology = Topology(name)
    source = topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key()
    source.count(name="n", store=Materialized("n", topic_config=config)).to(f"{name}-out")
    return topology


@pytest.fixture
def app(eager, eager_admin, unique, monkeypatch):
    # A broker may stand still for seconds on a busy machine.
    monkeypatch.setattr(compaction_sampling, "_STALLED_S", 60.0)
    return CountingApp(eager, eager_admin, unique("dirty"), topology=kept)


def test_should_name_the_setting_that_delays_the_cleaner_and_pass_once_it_is_corrected(
    app, eager_admin, eager_broker, alter_topic
):
    changelog = f"{app.name}-n-changelog"
    app.feed(10, keys=5)
    app.run()
    alter_topic(changelog, min_cleanable_dirty_ratio="1.0")
    for _ in range(2):
        app.feed(4000)
        app.run()
    look = CompactionLook(log_dir=eager_broker.folder / "data")
    judge = partial(check_compaction, app.plan, app.settings, "dirty", rules=RULES)

    (lagging,) = judge()
    assert lagging.verdict is Verdict.WARNING, lagging.message
    assert "profile='aggressive_compaction' (min.cleanable.dirty.ratio=0.5), then `tidemark topics" in lagging.message
    assert lagging.evidence["proposal"] == {"min.cleanable.dirty.ratio": "0.5"}
    before = lagging.evidence["partitions"]
    assert sum(p["superseded"] for p in before.values()) > 1000
    assert all(p["restore_compacted_s"] < p["restore_now_s"] / 2 for p in before.values())
    assert all(p["dirty_ratio_is"].startswith("at least") and p["dirty_ratio"] > 0.5 for p in before.values())
    assert all(p["bytes"] > 1000 for p in before.values())

    (exact,) = judge(look)
    assert {p["dirty_ratio_is"] for p in exact.evidence["partitions"].values()} == {"exact, from the log folder"}
    assert all(p["active_segment_bytes"] > 0 for p in exact.evidence["partitions"].values())

    def is_aged():
        # A segment that a commit's marker has rolled holds no record yet, so it has no age.
        ages = [p["active_segment_age_ms"] for p in judge(look)[0].evidence["partitions"].values()]
        if None in ages:
            app.feed(10, keys=5)
            app.run()
        return None not in ages and min(ages) >= 0

    assert wait_until(is_aged, 60)

    # As the message says: into the topology, and from there to the topic.
    app.plan = kept(app.name, **{"min.cleanable.dirty.ratio": "0.5"}).plan()
    (asked,) = check_compaction(app.plan, app.settings, "dirty", rules=RULES)
    assert "The topology asks for min.cleanable.dirty.ratio=0.5: `tidemark topics run dirty`" in asked.message
    apply_changes(plan_changes(app.plan, app.settings, eager_admin), app.settings, eager_admin)
    found = []

    def is_clean():
        # The active segment rolls when something is written half a second after its first record.
        app.feed(10, keys=5)
        app.run()
        found[:] = judge()
        return found[0].verdict is Verdict.OK

    assert wait_until(is_clean, 60, every_s=0.6), found
    after = found[0].evidence["partitions"]
    assert sum(p["superseded"] for p in after.values()) < 500
    (position,) = {p["first_dirty_offset"] > 0 for p in judge(look)[0].evidence["partitions"].values()}
    assert position, "the cleaner's own file says that it has been there"


def test_should_not_judge_what_an_open_transaction_hides(app, monkeypatch):
    monkeypatch.setattr(compaction_sampling, "_STALLED_S", 5.0)
    app.feed(10, keys=5)
    app.run()
    writer = Producer({**librdkafka_config(app.settings), "transactional.id": f"{app.name}-stranger"})
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(f"{app.name}-n-changelog", b"v", b"k", partition=0)
    assert writer.flush(60) == 0
    (hidden,) = check_compaction(app.plan, app.settings, "dirty")
    assert hidden.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "an open transaction hides the rest; `tidemark check lag dirty` names it" in hidden.message
    writer.abort_transaction(60)
    assert check_compaction(app.plan, app.settings, "dirty")[0].verdict is Verdict.OK


def test_should_report_how_much_was_scanned(app):
    app.feed(2000)
    app.run()
    (finding,) = check_compaction(app.plan, app.settings, "dirty", CompactionLook(scanned_offsets=100))
    assert {p["scanned_offsets"] for p in finding.evidence["partitions"].values()} == {100}
    assert all(0 < p["scanned_records"] < 100 < p["offsets"] for p in finding.evidence["partitions"].values())


def test_should_refuse_a_folder_that_is_not_the_log_folder_of_a_broker(app, tmp_path):
    app.feed(10)
    app.run()
    with pytest.raises(PreflightFailed, match="is not a broker's log folder"):
        check_compaction(app.plan, app.settings, "dirty", replace(CompactionLook(), log_dir=tmp_path))
