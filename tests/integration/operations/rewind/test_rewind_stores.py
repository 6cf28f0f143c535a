"""Points in time with other stores and sources: windows that have expired since, savepoints, and the commands."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.integration.operations.rewind.test_rewind import TASKS, builder_of, last_commit_ms, last_records, rewind
from tests.integration.restore.test_restore_run import counts_of
from tests.support.counting import PARTITIONS, CountingApp, CountingSource, counting
from tests.support.partials import PARTIAL_HEAD
from tests.support.truth.replay import compare_replay, replay
from tests.support.truth.topics import read_all
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.record import CommitKind
from tidemark.errors import StartRefused
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, changelog_topic
from tidemark.operations.rewind.plan import require_rewindable
from tidemark.operations.savepoint import SavepointCommand
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.registry.reader import recorded
from tidemark.store_rows import StoreRow, rows_of
from tidemark.stores.directory import folder_of
from tidemark.stores.layout import split_window_key
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import opened
from tidemark.stores.session_keys import session_keys
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.partials import Partial, Status
from tidemark.tasks.values import value_layouts
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import session, tumbling

MINUTE = 60_000
SEGMENT_MS = 5 * MINUTE
RETENTION_MS = 2 * SEGMENT_MS


# --- windows


def in_windows(name: str) -> Topology:
    topology = Topology(name)
    source = topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key()
    source.windowed_by(tumbling("1m")).count(name="n", store="n", retention="10m").to(f"{name}-out")
    return topology


class SecondsSource(CountingSource):
    """A record's offset is its time in seconds."""

    def counted(self, messages):
        windows: dict[tuple[int, str, int], list[int]] = {}
        for message in messages:
            at_ms = message.offset() * 1000
            windows.setdefault((message.partition(), message.key().decode(), at_ms // MINUTE * MINUTE), []).append(
                at_ms
            )
        rows = [
            (p, Status.GOOD, len(at), max(at), max(at) // 1000, key, w, len(at))
            for (p, key, w), at in sorted(windows.items())
        ]
        names = (*PARTIAL_HEAD, Partial.WINDOW, "n")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def windows_of(app, folder):
    """(key, window) and count, of all tasks."""
    layout = value_layouts(app.plan.subtopologies[0])["n"]
    found = {}
    for task in TASKS:
        with opened(folder(task)) as store:
            items = [item for segment in store.segments() for item in store.items(segment)]
        numbers = layout.decode([value for _, value in items])["f0"].tolist()
        found |= {split_window_key(key): n for (key, _), n in zip(items, numbers, strict=True)}
    return {(key.decode(), start): n for (key, start), n in found.items()}


def live_windows(app, ends):
    """What a store holds that has read each partition up to `ends`, expired segments left out."""
    rows = read_all(app.settings.bootstrap_servers, [f"{app.name}-in"])
    found = Counter()
    for task in TASKS:
        read = [row for row in rows[f"{app.name}-in", task.partition] if row.offset < ends[task]]
        first_live = (read[-1].offset * 1000 - RETENTION_MS) // SEGMENT_MS
        for row in read:
            window = row.offset * 1000 // MINUTE * MINUTE
            if window // SEGMENT_MS >= first_live:
                found[row.key.decode(), window] += 1
    return found


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_bring_back_windows_that_have_expired_since(settings, admin, unique, tmp_path):
    app = CountingApp(settings, admin, unique("windows"), topology=in_windows, source=SecondsSource)

    def ends():
        return {task: record.end_offsets[f"{app.name}-in"] for task, record in last_records(app).items()}

    def on_disk(task):
        return app.state / str(task) / "rocksdb" / "n"

    app.feed(1200, keys=40)
    app.run()
    then_ms, then_ends = last_commit_ms(app), ends()
    app.feed(1800, keys=50)
    app.run()
    then, now = live_windows(app, then_ends), live_windows(app, ends())
    # The test is of use only where windows have expired since, and others came.
    assert then.keys() - now.keys()
    assert now.keys() - then.keys()
    assert windows_of(app, on_disk) == now
    folder = tmp_path / "past"
    builder_of(app).build(then_ms, folder)
    assert windows_of(app, lambda task: folder_of(folder, task, "n")) == then
    rewind(app, at_ms=then_ms)
    assert windows_of(app, on_disk) == then
    # Another machine builds the same from the changelog alone.
    kept = app.settings.state_dir
    app.settings = app.settings.model_copy(update={"state_dir": kept.with_name("another")})
    app.run()
    assert windows_of(app, on_disk) == now
    shutil.rmtree(app.settings.state_dir)
    app.run()
    assert windows_of(app, on_disk) == now


# --- savepoints


def set_compaction_lag(app, lag_ms):
    change = TopicChange(changelog_topic(app.name, "n"), "min.compaction.lag.ms", "", str(lag_ms))
    apply_changes([change], app.settings, app.admin)


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_need_a_savepoint_of_exactly_that_batch_when_values_may_be_compacted_away(
    settings, admin, unique, tmp_path
):
    app = CountingApp(settings, admin, unique("saved"))
    app.settings = app.settings.model_copy(update={"savepoint_location": str(tmp_path / "savepoints")})
    app.feed(600)
    app.run()
    early_ms = last_commit_ms(app)
    app.feed(600)
    app.run()
    then_ms, then = last_commit_ms(app), Counter(app.expected)
    SavepointCommand(app.plan, app.settings, app.admin, TASKS, lambda _copied: None, wall_clock_ms).take()
    app.feed(600)
    app.run()
    set_compaction_lag(app, 0)
    with pytest.raises(StartRefused, match="may be compacted away"):
        builder_of(app).build(early_ms, tmp_path / "early")
    said = []
    builder_of(app, said=said).build(then_ms, tmp_path / "then")
    assert counts_of(app, lambda number: folder_of(tmp_path / "then", TaskId(0, number), "n")) == then
    assert len([line for line in said if "by its checksums" in line]) == PARTITIONS
    set_compaction_lag(app, 600_000)
    rewind(app, at_ms=then_ms)
    assert counts_of(app) == then
    app.run()
    assert counts_of(app) == app.expected


def with_short_lag(name: str) -> Topology:
    """Counts by key in a store whose changelog may be compacted after a moment."""
    topology = Topology(name)
    grouped = topology.stream(f"{name}-in", schema="id STRING", key="id").group_by_key()
    grouped.count(name="n", store=Materialized("n", topic_config={"min.compaction.lag.ms": "1"})).to(f"{name}-out")
    return topology


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_not_go_back_before_the_compaction_lag_was_raised(settings, admin, unique, tmp_path):
    app = CountingApp(settings, admin, unique("raised"), topology=with_short_lag)
    app.feed(600)
    app.run()
    then_ms = last_commit_ms(app)
    app.feed(600)
    app.run()
    set_compaction_lag(app, 600_000)
    for _ in ("before a start has seen it", "after"):
        with pytest.raises(StartRefused, match=r"may be compacted away, as .* keeps only those superseded since"):
            builder_of(app).build(then_ms, tmp_path / "then")
        app.feed(100)
        app.run()
    (kept,) = recorded(app.settings, admin, app.plan, partition_counts(admin, app.settings)).kept_history.values()
    assert kept.min_compaction_lag_ms == 600_000
    assert kept.compacted_before_ms > then_ms


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_skip_a_damaged_savepoint(settings, admin, unique, tmp_path):
    app = CountingApp(settings, admin, unique("damaged"))
    app.settings = app.settings.model_copy(update={"savepoint_location": str(tmp_path / "savepoints")})
    app.feed(600)
    app.run()
    SavepointCommand(app.plan, app.settings, app.admin, TASKS, lambda _copied: None, wall_clock_ms).take()
    for file in (tmp_path / "savepoints" / app.name / "files").iterdir():
        file.write_bytes(b"nonsense")
    said = []
    builder_of(app, said=said).build(wall_clock_ms(), tmp_path / "past")
    assert counts_of(app, lambda number: folder_of(tmp_path / "past", TaskId(0, number), "n")) == app.expected
    assert len([line for line in said if "the next source of state is tried" in line]) == PARTITIONS


# --- the command


@pytest.mark.broker
@pytest.mark.timeout(300)
def test_should_show_the_plan_then_rewind_when_confirmed(settings, admin, unique, tmp_path, monkeypatch):
    app = CountingApp(settings, admin, unique("commanded"))
    app.feed(600)
    app.run()
    then_ms, then = last_commit_ms(app), Counter(app.expected)
    app.feed(600)
    app.run()
    app.for_commands(tmp_path, monkeypatch)

    def command(verb, *options, answer=None):
        done = CliRunner().invoke(
            build(), ["rewind", verb, "made_counting", "--to", str(then_ms), *options], input=answer
        )
        return done.exit_code, " ".join(done.output.split())

    code, shown = command("plan")
    assert code == 0, shown
    assert "emitted again to" in shown
    assert "nothing was changed" in shown
    code, shown = command("run", answer="n\n")
    assert code == 1
    assert "nothing was changed" in shown
    assert {record.kind for record in last_records(app).values()} == {CommitKind.BATCH}
    assert command("plan", "--yes")[0] == 2
    assert command("run", "--yes")[0] == 0
    assert counts_of(app) == then


# --- recomputation


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_should_equal_a_recomputation_from_the_commit_records(settings, admin, unique, spark):
    app = CountingApp(settings, admin, unique("recomputed"))

    def feed(records, keys):
        producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for number in range(records):
            key = f"k{number * 7919 % keys:05d}"
            producer.produce(f"{app.name}-in", json.dumps({"id": key}).encode(), key.encode())
        assert producer.flush(60) == 0

    feed(700, 30)
    app.run()
    then_ms = last_commit_ms(app)
    feed(700, 60)
    app.run()
    rewind(app, at_ms=then_ms)
    app.run()
    replayed = replay(settings.bootstrap_servers, app.plan, spark)
    found = compare_replay(settings.bootstrap_servers, app.plan, replayed)
    assert (found.lost, found.duplicated, found.wrong, found.report) == (0, 0, 0, [])
    # What was emitted after that time is expected twice.
    assert max(replayed.sinks[f"{app.name}-out"].values()) == 2


# --- what cannot be rewound


def refused(topology: Topology) -> str:
    with pytest.raises(StartRefused) as error:
        require_rewindable(topology.plan())
    return str(error.value)


def test_should_refuse_topologies_that_a_rewind_cannot_bring_back_as_a_whole():
    def stream(topology):
        return topology.stream("in", schema="id STRING, other STRING", key="id")

    rekeyed = Topology("app")
    stream(rekeyed).group_by("other", name="by-other").count(name="n", store="n").to("out")
    assert "sub-topologies progress independently" in refused(rekeyed)
    twice = Topology("app", guarantee="at_least_once")
    stream(twice).group_by_key().count(name="n", store="n").to("out")
    assert "at_least_once" in refused(twice)
    unlogged = Topology("app")
    stream(unlogged).group_by_key().count(name="n", store=Materialized("n", logging=False)).to("out")
    assert "store n is not logged" in refused(unlogged)
    table = Topology("app", optimised=True)
    table.table("users", schema="city STRING", store="users")
    stream(table).group_by_key().count(name="n", store="n").to("out")
    assert "has its source topic users as changelog" in refused(table)
    require_rewindable(counting("app").plan())


# --- rows as people read them


def rows(topology: Topology, name: str, items: dict[bytes, bytes]) -> list[StoreRow]:
    subtopology = topology.plan().subtopologies[0]
    spec = next(spec for spec in subtopology.stores if spec.name == name)
    store = MemoryStore()
    store.put_many(
        [Writes(WHOLE, list(items), list(items.values()))], StoreCheckpoint("a", "1", name, "", 0, 0, {}, 0, 0), None
    )
    return list(rows_of(subtopology, spec, store))


def test_should_show_keys_windows_and_values_by_name():
    count = bytes([3, 1]) + (900).to_bytes(8, "little") + (7).to_bytes(8, "little")
    assert rows(counting("app"), "n", {b"a": count}) == [StoreRow("a", None, None, {"n": 7})]
    (row,) = rows(in_windows("app"), "n", {b"a" + (MINUTE).to_bytes(8, "big"): count})
    assert row == StoreRow("a", MINUTE, None, {"n": 7})
    sessions = Topology("app")
    stream = sessions.stream("in", schema="id STRING", key="id").group_by_key()
    stream.windowed_by(session("5m")).count(name="n", store="n").to("out")
    (key,) = session_keys(pa.array([b"a"]), pa.array([900]).to_numpy(), pa.array([300]).to_numpy())
    assert rows(sessions, "n", {key: count}) == [StoreRow("a", 300, 900, {"n": 7})]
    table = Topology("app")
    table.table("users", schema="city STRING", store="users")
    assert rows(table, "users", {b"a": b'{"city": "Bern"}', b"\xff\x00": b'{"city": null}'}) == [
        StoreRow("a", None, None, {"city": "Bern"}),
        StoreRow("0xff00", None, None, {"city": None}),
    ]
