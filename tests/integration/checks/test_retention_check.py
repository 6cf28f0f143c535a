"""The retention check on a real broker that really deletes."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest
from tests.support.counting import CountingApp, CountingSource
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.topics import read_all

from tidemark.checks.compaction_sampling import check_compaction
from tidemark.checks.durability_sampling import check_durability
from tidemark.checks.lag_sampling import check_lag
from tidemark.checks.retention_sampling import check_retention
from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.preflight import preflight
from tidemark.names import TopicPartition
from tidemark.operations.topic_changes import apply_changes, plan_changes
from tidemark.processes import wait_until
from tidemark.tasks.partials import Partial, Status
from tidemark.topology.builder import Topology
from tidemark.topology.windows import tumbling
from tidemark.verdict import Verdict

pytestmark = pytest.mark.broker
MINUTE = 60_000


def in_windows(name: str) -> Topology:
    topology = Topology(name)
    source = topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key()
    source.windowed_by(tumbling("1m")).count(name="n", store="n", retention="10m").to(f"{name}-out")
    return topology


class MinuteSource(CountingSource):
    """Everything that is fed at once falls into one minute, which a test sets."""

    minute_ms = 0

    def counted(self, messages):
        rows = [
            (m.partition(), Status.GOOD, 1, self.minute_ms, m.offset(), m.key().decode(), self.minute_ms, 1)
            for m in messages
        ]
        names = (*PARTIAL_HEAD, Partial.WINDOW, "n")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture
def app(eager, eager_admin, unique):
    return CountingApp(eager, eager_admin, unique("kept"), topology=in_windows, source=MinuteSource)


def fill(app, ago_ms, monkeypatch):
    monkeypatch.setattr(MinuteSource, "minute_ms", (wall_clock_ms() - ago_ms) // MINUTE * MINUTE)
    app.feed(60, keys=20)
    app.run()


def test_should_find_windows_that_too_short_a_retention_has_deleted(app, eager_admin, alter_topic, monkeypatch):
    changelog = f"{app.name}-n-changelog"
    judge = partial(check_retention, app.plan, app.settings, "kept")

    def lost(partition):
        place = TopicPartition(changelog, partition)
        ends = EndOffsets(eager_admin, 60)
        return ends.beginnings([place])[place] == ends.of([place])[place] > 0

    fill(app, 9 * MINUTE, monkeypatch)
    (fine,) = judge()
    assert fine.verdict is Verdict.OK, fine.message
    assert fine.evidence["tasks"]["0_0"]["expired_records"] == 0
    assert fine.evidence["copies"]["0/0_0"]["segments"] == 1

    alter_topic(changelog, retention_ms="500")
    (short,) = judge()
    assert (short.verdict, short.evidence["topic_retention_ms"]) == (Verdict.FAILED, 500)
    assert "a restore lacks windows that are still live; `tidemark topics run kept`" in short.message
    assert wait_until(lambda: all(lost(partition) for partition in (0, 1)), 60, every_s=0.1)

    changes = plan_changes(app.plan, app.settings, eager_admin)
    assert [(change.topic, change.setting) for change in changes] == [(changelog, "retention.ms")]
    apply_changes(changes, app.settings, eager_admin)
    # The setting is right again, what it has done is not: a start does not go on beside a changelog that was truncated.
    with pytest.raises(StartRefused, match="the changelog was truncated"):
        fill(app, 0, monkeypatch)
    (gone,) = judge()
    assert gone.verdict is Verdict.FAILED
    assert "they are deleted there and would be lost with the disk; run `tidemark savepoint take kept`" in gone.message


def test_should_give_no_ok_for_a_store_before_anything_is_committed(app, eager_admin):
    preflight(app.plan, app.settings, eager_admin)
    (unknown,) = check_retention(app.plan, app.settings, "kept")
    assert unknown.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "no task has committed a record yet" in unknown.message


def test_should_give_no_ok_in_any_check_when_an_application_has_never_run(app):
    for found in (
        check_retention(app.plan, app.settings, "kept"),
        check_compaction(app.plan, app.settings, "kept"),
        check_durability(app.plan, app.settings),
        check_lag(app.plan, app.settings, "kept"),
    ):
        assert [(f.subject, f.verdict) for f in found] == [(app.name, Verdict.NOT_ENOUGH_EVIDENCE)]
        assert f"there is no topic {app.name}-commits; start an instance" in found[0].message


def test_should_count_records_of_expired_windows_that_the_topic_still_holds(app, monkeypatch):
    def written():
        changelog = read_all(app.settings.bootstrap_servers, [f"{app.name}-n-changelog"])
        return sum(map(len, changelog.values()))

    fill(app, 30 * MINUTE, monkeypatch)
    of_expired_windows = written()
    fill(app, 0, monkeypatch)
    (finding,) = check_retention(app.plan, app.settings, "kept")
    assert finding.verdict is Verdict.OK, finding.message
    tasks = finding.evidence["tasks"].values()
    # A key has a record for each batch that it was in, and each round may come in several.
    scanned, expired = (sum(t[what] for t in tasks) for what in ("scanned_records", "expired_records"))
    assert (scanned, expired) == (written(), of_expired_windows)
    assert scanned > expired >= 20
    found = f"{expired} of the first {scanned} records in the topic are past the store's retention"
    assert found in finding.message
    assert [c["expired_segments"] for c in finding.evidence["copies"].values()] == [0, 0]
