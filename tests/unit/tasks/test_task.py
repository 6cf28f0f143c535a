"""A task's update from partial results: lateness, stream time, segments, outputs."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from types import MappingProxyType, SimpleNamespace

import pyarrow as pa
import pytest
from tests.support.used_processors import BlocksInClose, CannotBeClosed

from tidemark.errors import InvalidTopology, RecordRefused, StateTooLarge, UserCodeFailed
from tidemark.events.event import failure_body
from tidemark.kafka.partitioner import partitions_of
from tidemark.kafka.record_sizes import SizeLimits, record_bytes
from tidemark.names import TaskId
from tidemark.stores.directory import CHECKPOINT_FILE, InstanceDirectory
from tidemark.stores.memory import MemoryStore
from tidemark.stream_times import NO_STREAM_TIME, StreamTimes
from tidemark.tasks import closing
from tidemark.tasks.refused_rows import RefusedRow
from tidemark.tasks.task import Task, TaskInput, _with_written, close_tasks
from tidemark.tasks.update import NO_KEY, DeadLetter
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized, store
from tidemark.topology.windows import tumbling

MINUTE = 60_000
GRACE = 5_000
WALL = 1_700_000_000_000


def a_plan(windowed_key=False):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    windows = tumbling("60s").grace("5s")
    stream.group_by_key().windowed_by(windows).count(name="n", store="counts", retention="6m").to(
        "out", windowed_key=windowed_key
    )
    return topology.plan()


def a_task(plan, directory, stores=None, partition=0, writers=MappingProxyType({})):
    return Task(
        application_id="app", topology_version="1", task_id=TaskId(0, partition), epoch=1, subtopology=plan.subtopologies[0],
        stores={"counts": MemoryStore()} if stores is None else stores, directory=directory.open_task(TaskId(0, partition)),
        next_offsets={"in": 0}, stream_times=StreamTimes.none(), batch=0, sink_partitions={"out": 4}, wall_ms=WALL,
        writers=writers,
    )  # fmt: skip


@pytest.fixture
def task(tmp_path):
    directory = InstanceDirectory(tmp_path, "app", 0)
    made = a_task(a_plan(), directory)
    yield made
    made.close()
    directory.close()


def rows(*given: tuple[str, int, int, int], bad: int = 0) -> TaskInput:
    """(key, window start, count, newest timestamp) per partial, and how many bad records."""
    listed = [*given, *([(None, None, None, None)] if bad else [])]
    good = len(given)
    return TaskInput(
        ends={"in": 100},
        pipelines=[
            pa.table(
                {
                    "__p": pa.array([0] * len(listed), pa.int32()),
                    "__status": pa.array([0] * good + [1] * (len(listed) - good), pa.int32()),
                    "__rows": pa.array([g[2] for g in given] + ([bad] if bad else []), pa.int64()),
                    "__max_ts": pa.array([g[3] for g in listed], pa.int64()),
                    "__last_offset": pa.array(range(len(listed)), pa.int64()),
                    "__key": pa.array([g[0] for g in listed], pa.string()),
                    "__window": pa.array([g[1] for g in listed], pa.int64()),
                    "n": pa.array([g[2] for g in listed], pa.int64()),
                }
            )
        ],
        dead_letters=(),
    )


def outputs(update):
    return [json.loads(m["value"]) for output in update.outputs for m in output.messages]


def commit(task, given):
    update = task.prepare(given, WALL)
    task.apply(update, {changelog.topic: 5 for changelog in task.changelogs}, 1)
    return update


def test_should_emit_the_merged_count_of_each_touched_window(task):
    commit(task, rows(("a", 0, 2, 30_000)))
    update = commit(task, rows(("a", 0, 3, 40_000), ("b", 0, 1, 41_000)))
    assert outputs(update) == [
        {"id": "a", "window_start": 0, "window_end": MINUTE, "n": 5},
        {"id": "b", "window_start": 0, "window_end": MINUTE, "n": 1},
    ]


@pytest.mark.parametrize(
    ("stream_time", "late"), [(MINUTE + GRACE - 1, 0), (MINUTE + GRACE, 7), (MINUTE + GRACE + 1, 7)]
)
def test_should_judge_lateness_by_the_stream_time_of_the_batchs_start(task, stream_time, late):
    commit(task, rows(("z", MINUTE, 1, stream_time)))
    update = task.prepare(rows(("a", 0, 7, 59_000), ("b", 10 * MINUTE, 1, 10 * MINUTE)), WALL)
    assert update.late_rows == late
    assert update.stream_times.task_ms == 10 * MINUTE


def test_should_accept_every_record_of_the_batch_that_advances_stream_time(task):
    update = task.prepare(rows(("a", 0, 1, 100), ("b", 60 * MINUTE, 1, 60 * MINUTE)), WALL)
    assert (update.late_rows, update.rows) == (0, 2)


def test_should_never_move_stream_time_back(task):
    commit(task, rows(("a", 5 * MINUTE, 1, 5 * MINUTE)))
    assert task.prepare(rows(("a", 5 * MINUTE, 1, 5 * MINUTE - 30_000)), WALL).stream_times.task_ms == 5 * MINUTE


def test_should_count_bad_records_without_advancing_stream_time(task):
    update = task.prepare(rows(bad=4), WALL)
    assert (update.bad_rows, update.rows, update.stream_times.task_ms) == (4, 0, NO_STREAM_TIME)
    assert update.sources == {"in": (0, 100)}


def test_should_change_nothing_until_an_update_is_applied(task):
    task.prepare(rows(("a", 0, 2, 30_000)), WALL)
    assert (task.next_offsets, task.batch, task.stream_times.task_ms) == ({"in": 0}, 0, NO_STREAM_TIME)
    assert outputs(task.prepare(rows(("a", 0, 2, 30_000)), WALL))[0]["n"] == 2


def test_should_drop_segments_that_hold_only_expired_windows(task):
    commit(task, rows(("a", 0, 1, 1), ("a", 3 * MINUTE, 1, 3 * MINUTE)))
    store = task._stores["counts"]
    assert store.segments() == [0, 1]
    commit(task, rows(("a", 9 * MINUTE, 1, 9 * MINUTE)))
    assert store.segments() == [1, 3]


def test_should_write_the_checkpoint_even_when_no_value_changed(task):
    commit(task, rows(bad=1))
    checkpoint = task._stores["counts"].checkpoint
    assert (checkpoint.source_offsets, checkpoint.changelog_offset, checkpoint.batch) == ({"in": 100}, 5, 1)


def test_should_place_records_with_windowed_keys_by_the_plain_key(tmp_path):
    plan = a_plan(windowed_key=True)
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(plan, directory)
    keys = [f"k{n}" for n in range(9)]
    update = commit(task, rows(*((key, 0, 1, 10) for key in keys), *((key, MINUTE, 1, 10) for key in keys)))
    placed = {output.partition: {m["key"] for m in output.messages} for output in update.outputs}
    expected = {}
    for key, partition in zip(keys, partitions_of([key.encode() for key in keys], 4).tolist(), strict=True):
        expected.setdefault(partition, set()).update(key.encode() + at.to_bytes(8, "big") for at in (0, MINUTE))
    assert placed == expected
    task.close()
    directory.close()


def test_should_repeat_a_wall_clock_callback_until_it_is_committed(tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING", key="id")
    stream.process("tests.support.used_processors:EveryTenSeconds", emits="n BIGINT").to("out")
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {})
    tick = TaskInput(task.next_offsets, (), ())
    assert not task.is_due(WALL + 9_999)
    assert not task.prepare(tick, WALL + 9_999).changes_something
    thrown_away = task.prepare(tick, WALL + 10_000)
    assert [row["n"] for row in outputs(thrown_away)] == [WALL + 10_000]
    committed = task.prepare(tick, WALL + 10_500)
    assert [row["n"] for row in outputs(committed)] == [WALL + 10_500]
    task.apply(committed, {}, 1)
    assert not task.is_due(WALL + 19_999)
    task.pass_clock(task.prepare(tick, WALL + 20_000))
    assert not task.is_due(WALL + 29_999)
    assert task.is_due(WALL + 30_000)
    task.close()
    directory.close()


def limited(plan, directory, **by_topic):
    return Task(
        application_id="app", topology_version="1", task_id=TaskId(0, 0), epoch=1, subtopology=plan.subtopologies[0],
        stores={"counts": MemoryStore()}, directory=directory.open_task(TaskId(0, 0)), next_offsets={"in": 0},
        stream_times=StreamTimes.none(), batch=0, sink_partitions={"out": 4}, wall_ms=WALL,
        limits=SizeLimits({topic.replace("_", "-"): limit for topic, limit in by_topic.items()}),
    )  # fmt: skip


def test_should_make_a_dead_letter_of_an_output_that_its_sink_refuses_and_keep_the_rest(tmp_path):
    directory = InstanceDirectory(tmp_path, "app", 0)
    long = "k" * 300
    task = limited(a_plan(), directory, out=500, app_counts_changelog=500)
    update = task.prepare(rows(("a", 0, 2, 10), (long, 0, 1, 20), ("b", 0, 1, 30)), WALL)
    assert [row["id"] for row in outputs(update)] == ["a", "b"]
    (letter,) = update.dead_letters
    assert (letter.reason, letter.topic, letter.partition, letter.offset) == ("too large for the sink", "in", 0, 1)
    assert (letter.key, json.loads(letter.value)["n"]) == (long.encode(), 1)
    details = dict(letter.details)
    assert (details["tidemark.sink"], details["tidemark.node"]) == (
        b"out",
        a_plan().subtopologies[0].sinks[0].node.encode(),
    )
    assert int(details["tidemark.bytes"]) > 500
    assert update.sink_counts("app-dlq") == {"out": 2, "app-dlq": 1}
    assert (update.rows, update.bad_rows, len(update.stores[0].writes[0].keys)) == (4, 0, 3)
    task.close()
    directory.close()


@pytest.mark.parametrize(("spare", "refused"), [(-1, True), (0, False), (1, False)])
def test_should_refuse_a_value_that_the_changelog_cannot_take_before_anything_is_sent(tmp_path, spare, refused):
    directory = InstanceDirectory(tmp_path, "app", 0)
    given = rows(("a", 0, 2, 10), ("k" * 300, 0, 1, 20))
    first = limited(a_plan(), directory)
    (writes,) = first.prepare(given, WALL).stores[0].writes
    first.close()
    limit = max(record_bytes(key, value) for key, value in zip(writes.keys, writes.values, strict=True)) + spare
    task = limited(a_plan(), directory, app_counts_changelog=limit)
    with pytest.raises(StateTooLarge) if refused else contextlib.nullcontext() as raised:
        task.prepare(given, WALL)
    if raised is not None:
        said = str(raised.value)
        assert raised.value.exit_code == 30
        assert "kkkk" in raised.value.records
        assert "kkkk" not in said
        for summary in ("store counts", "308 bytes", f"accepts {limit};", "max.message.bytes=", "app-counts-changelog"):
            assert summary in said
    task.close()
    directory.close()


def refusing(directory, **handlers):
    """A task whose processor refuses odd x; `source` and `process` are what `on_error` says of each."""
    topology = Topology("app")
    stream = topology.stream(
        "in", schema="id STRING, x BIGINT", key="id", on_error=handlers.get("source", "dead_letter")
    )
    stream.process(
        "tests.support.used_processors:RefusesOdd", emits="n BIGINT", stores=[store("s", "n BIGINT, mean DOUBLE")],
        on_error=handlers.get("process", "dead_letter"),
    ).to("out")  # fmt: skip
    return a_task(topology.plan(), directory, {"s": MemoryStore()})


def records(*xs, letters=(), key="a") -> TaskInput:
    """A record for each x from offset 40 on."""
    count = len(xs)
    table = pa.table(
        {
            "__p": pa.array([0] * count, pa.int32()), "__status": pa.array([0] * count, pa.int32()),
            "__rows": pa.array([1] * count, pa.int64()), "__max_ts": pa.array(range(count), pa.int64()),
            "__key": pa.array([key] * count, pa.string()), "__record_offset": pa.array(range(40, 40 + count), pa.int64()),
            "__deleted": pa.array([False] * count), "v.id": pa.array(["a"] * count, pa.string()),
            "v.x": pa.array(xs, pa.int64()),
        }
    )  # fmt: skip
    return TaskInput({"in": 100}, [table], letters)


def test_should_close_every_processor_with_the_task_also_when_one_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(CannotBeClosed, "closed", [])
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    for name in ("CannotBeClosed", "CannotBeClosedEither"):
        stream.process(f"tests.support.used_processors:{name}", emits="n BIGINT").to(name)
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {})
    task.close()
    assert CannotBeClosed.closed == ["CannotBeClosed", "CannotBeClosedEither"]
    # The folder was released, too.
    directory.open_task(TaskId(0, 0)).close()
    directory.close()


@pytest.mark.parametrize("emits", [None, "n BIGINT"])
def test_should_commit_the_stores_of_a_processor_that_is_the_last_node(tmp_path, emits):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    kept = store("s", "n BIGINT, mean DOUBLE")
    stream.process("tests.support.used_processors:PutsNothingForZero", emits=emits, stores=[kept])
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {"s": MemoryStore()})
    update = task.prepare(records(2, 4), WALL)
    assert update.outputs == ()
    assert update.dead_letters == ()
    assert update.sources == {"in": (0, 100)}
    (writes,) = update.stores[0].writes
    assert [json.loads(value)["n"] for value in writes.values] == [4]
    task.close()
    directory.close()


def test_should_close_the_processors_before_one_that_cannot_be_initialised(tmp_path, monkeypatch):
    """They may have opened connections."""
    monkeypatch.setattr(CannotBeClosed, "closed", [])
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    for name in ("CannotBeClosed", "CannotBeClosedEither", "RaisesWithoutTextInInit"):
        stream.process(f"tests.support.used_processors:{name}", emits="n BIGINT").to(name)
    directory = InstanceDirectory(tmp_path, "app", 0)
    with pytest.raises(UserCodeFailed):
        a_task(topology.plan(), directory, {})
    assert CannotBeClosed.closed == ["CannotBeClosed", "CannotBeClosedEither"]


def test_should_close_the_processors_after_one_whose_close_raises_anything(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(CannotBeClosed, "closed", [])
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    for name in ("IsInterruptedInClose", "CannotBeClosed"):
        stream.process(f"tests.support.used_processors:{name}", emits="n BIGINT").to(name)
    directory = InstanceDirectory(tmp_path, "app", 0)
    a_task(topology.plan(), directory, {}).close()
    assert CannotBeClosed.closed == ["IsInterruptedInClose", "CannotBeClosed"]
    assert "IsInterruptedInClose: close() raised KeyboardInterrupt" in caplog.text
    directory.close()


def test_should_close_all_tasks_also_if_the_first_cannot_be_released(tmp_path, monkeypatch):
    monkeypatch.setattr(CannotBeClosed, "closed", [])
    directory = InstanceDirectory(tmp_path, "app", 0)
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    stream.process("tests.support.used_processors:CannotBeClosed", emits="n BIGINT").to("out")
    tasks = [a_task(topology.plan(), directory, {}, number) for number in range(3)]
    for number in (0, 1):
        (directory.folder / f"0_{number}" / CHECKPOINT_FILE).mkdir()
    with pytest.raises(IsADirectoryError, match="0_0"):
        close_tasks(tasks)
    assert CannotBeClosed.closed == ["CannotBeClosed"] * 3
    directory.open_task(TaskId(0, 2)).close()
    directory.close()


def test_should_not_wait_for_ever_for_a_processor_that_does_not_return_from_close(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(CannotBeClosed, "closed", [])
    monkeypatch.setattr(BlocksInClose, "may_return", threading.Event())
    monkeypatch.setattr(closing, "PROCESSORS_CLOSE_S", 0.2)
    directory = InstanceDirectory(tmp_path, "app", 0)
    tasks = []
    for number, name in enumerate(("BlocksInClose", "CannotBeClosed")):
        topology = Topology("app")
        stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
        stream.process(f"tests.support.used_processors:{name}", emits="n BIGINT").to("out")
        tasks.append(a_task(topology.plan(), directory, {}, number))
    close_tasks(tasks)
    assert CannotBeClosed.closed == ["CannotBeClosed"]
    assert [record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()] == [
        f"{tasks[0].subtopology.nodes[0].node}: tests.support.used_processors:BlocksInClose: close() has not returned, and is "
        "no longer waited for"
    ]
    # The folders were released, too.
    for number in range(2):
        directory.open_task(TaskId(0, number)).close()
    directory.close()
    BlocksInClose.may_return.set()


def test_should_wait_for_the_processors_of_all_tasks_together_as_long_as_for_those_of_one(monkeypatch):
    now_s, waited_s = [100.0], []

    def wait(timeout_s):
        waited_s.append(timeout_s)
        now_s[0] += 3

    monkeypatch.setattr(closing.time, "monotonic", lambda: now_s[0])
    closing.wait_for_all([SimpleNamespace(wait=wait)] * 3)
    assert waited_s == [5.0, 2.0, -1.0]


def _sent_twice(stream):
    """A second path to the topic: without positions, the order of its records depends on where batches end."""
    stream.filter("n > 0").to("out")
    return stream


@pytest.mark.parametrize(
    ("downstream", "is_refused"),
    [
        (
            lambda s: s.group_by_key().windowed_by(tumbling("1m")).reduce("tests.support.reducers:keep_the_later"),
            True,
        ),
        (lambda s: s.filter("n > 0").join(s.select("n AS m"), within="1m"), True),
        (lambda s: s.group_by_key().reduce("tests.support.reducers:keep_the_later"), False),
        (lambda s: s, False),
        (_sent_twice, True),
    ],
)
def test_should_refuse_a_batched_processor_that_hides_positions_which_are_needed_downstream(
    tmp_path, downstream, is_refused
):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    processed = stream.process(
        "tests.support.used_processors:PassesOnInColumns", emits="n BIGINT, mean DOUBLE", batched=True, keeps_key=True
    )
    downstream(processed).to("out")
    plan, directory = topology.plan(), InstanceDirectory(tmp_path, "app", 0)
    task = a_task(plan, directory, {spec.name: MemoryStore() for spec in plan.stores})
    with pytest.raises(InvalidTopology, match="no column __seq") if is_refused else contextlib.nullcontext():
        task.prepare(records(1, 2), WALL)
    task.close()
    directory.close()


def test_should_give_no_offset_in_the_dead_letter_of_a_row_that_a_callback_forwarded(tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    clocked = stream.filter("x < 5").process("tests.support.used_processors:Clocked", emits="n BIGINT")
    clocked.process("tests.support.used_processors:RaisesWithoutText", emits="n BIGINT").to("out")
    # The next record passes only here.
    stream.process("tests.support.used_processors:PassesOn", emits="n BIGINT").to("all")
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {})
    given = TaskInput({"in": 100}, [*records(1).pipelines, *records(1, 9).pipelines], ())
    letters = task.prepare(given, WALL).dead_letters
    assert [(letter.key, letter.offset) for letter in letters] == [(b"a", 40), (b"stream", None)]
    task.close()
    directory.close()


@pytest.mark.parametrize(
    ("passing", "given", "written"),
    [
        # The only record, which moves stream time, does not reach the processor.
        ((), (9,), [("a", 9), ("stream", 0)]),
        # The last record does not reach it. The processor writes the stream time.
        ((1,), (1, 9), [("a", 0), ("a", 1), ("a", 9), ("stream", 1)]),
    ],
)
def test_should_write_the_results_of_a_callback_after_the_record_that_led_to_it(tmp_path, passing, given, written):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    stream.filter("x < 5").process("tests.support.used_processors:Clocked", emits="n BIGINT").to("out")
    stream.process("tests.support.used_processors:PassesOn", emits="n BIGINT").to("out")
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {})
    update = task.prepare(TaskInput({"in": 100}, [*records(*passing).pipelines, *records(*given).pipelines], ()), WALL)
    keys = [message["key"].decode() for output in update.outputs for message in output.messages]
    assert list(zip(keys, [row["n"] for row in outputs(update)], strict=True)) == written
    task.close()
    directory.close()


BY_PYTHON = [
    lambda grouped, kept: grouped.reduce("tests.support.reducers:add_x", store=kept),
    lambda grouped, kept: grouped.aggregate(
        initializer="tests.support.reducers:zero",
        aggregator="tests.support.reducers:sum_x",
        emits="x BIGINT",
        store=kept,
    ),
]


def sums_by(tmp_path, fold, kept, *batches):
    """Return the sums that each batch emits, and the keys that are stored in the end."""
    topology = Topology("app")
    fold(topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key(), kept).to("out")
    plan, directory = topology.plan(), InstanceDirectory(tmp_path, "app", 0)
    task = a_task(plan, directory, {spec.name: MemoryStore() for spec in plan.stores})
    emitted = [[row["x"] for row in outputs(commit(task, batch))] for batch in batches]
    (segment,) = task.stores["sums"].segments()
    keys = {key for key, _ in task.stores["sums"].items(segment)}
    task.close()
    directory.close()
    return emitted, keys


@pytest.mark.parametrize("fold", BY_PYTHON, ids=["reduce", "aggregate"])
@pytest.mark.parametrize(("newest_ms", "sum_of_a"), [(1, 2), (2, 2), (3, 1)])
def test_should_expire_the_results_of_python_functions_by_age(tmp_path, fold, newest_ms, sum_of_a):
    others = records(*[1] * (newest_ms + 1), key="b")
    emitted, keys = sums_by(tmp_path, fold, Materialized("sums", ttl=2), records(1), others, records(1))
    assert (emitted, keys) == ([[1], [newest_ms + 1], [sum_of_a]], {b"a", b"b"})


@pytest.mark.parametrize("fold", BY_PYTHON, ids=["reduce", "aggregate"])
def test_should_expire_the_results_of_python_functions_by_number(tmp_path, fold):
    kept = Materialized("sums", max_entries=1)
    emitted, keys = sums_by(tmp_path, fold, kept, records(1), records(1), records(1, key="b"), records(1))
    assert (emitted, keys) == ([[1], [2], [1], [1]], {b"a"})


def test_should_make_a_dead_letter_with_coordinates_of_a_record_that_user_code_refuses(tmp_path):
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = refusing(directory)
    update = task.prepare(records(2, 3, 4), WALL)
    assert [row["n"] for row in outputs(update)] == [2, 6]
    (letter,) = update.dead_letters
    assert (letter.reason, letter.topic, letter.partition, letter.offset) == ("refused by user code", "in", 0, 41)
    assert (letter.key, json.loads(letter.value)) == (b"a", {"id": "a", "x": 3})
    details = dict(letter.details)
    assert details["tidemark.error"] == b"ValueError: 3 is odd"
    assert details["tidemark.traceback"].endswith(b"ValueError: 3 is odd\n")
    assert details["tidemark.node"].startswith(b"KSTREAM-PROCESSOR")
    assert (update.rows, update.bad_rows, update.sink_counts("dlq")) == (3, 0, {"out": 2, "dlq": 1})
    task.close()
    directory.close()


def test_should_write_a_refused_row_as_json_when_it_has_numbers_that_json_does_not_have():
    row = {"id": "a", "x": math.nan, "y": math.inf, "z": -math.inf, "n": 1.5, "none": None}
    value = RefusedRow("KSTREAM-PROCESSOR-0000000001", 0, "a", row, "ValueError: x", None).value
    expected = {"id": "a", "x": "NaN", "y": "Infinity", "z": "-Infinity", "n": 1.5, "none": None}
    assert json.loads(value, parse_constant=pytest.fail) == expected


def test_should_end_at_a_record_that_cannot_be_processed_when_the_topology_says_so(tmp_path):
    directory = InstanceDirectory(tmp_path, "app", 0)
    bad = DeadLetter(
        "unparsable", "in", 0, 43, b"a", b"{", (), details=(("tidemark.error", b"'Jane Doe' is no number"),)
    )
    for handlers, given, summary, hidden in (
        (
            {"process": "fail"},
            records(2, 3, 4),
            ["in[0] offset 41", "ValueError in user code", "KSTREAM-PROCESSOR"],
            "3 is odd",
        ),
        (
            {"source": "fail"},
            records(2, letters=(bad,)),
            ["in[0] offset 43", "unparsable", "KSTREAM-SOURCE"],
            "Jane Doe",
        ),
    ):
        task = refusing(directory, **handlers)
        with pytest.raises(RecordRefused) as raised:
            task.prepare(given, WALL)
        assert raised.value.exit_code == 30
        assert all(text in str(raised.value) for text in (*summary, "on_error"))
        assert hidden in raised.value.records
        assert hidden not in str(failure_body(raised.value))
        assert len(task.prepare(records(2, 4), WALL).outputs[0].messages) == 2
        task.close()
    directory.close()


def test_should_go_on_after_a_record_without_a_key_when_only_records_that_cannot_be_read_end_the_instance(tmp_path):
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = refusing(directory, source="fail")
    keyless = DeadLetter(NO_KEY, "in", 0, 43, None, b'{"x": 2}', ())
    update = task.prepare(records(2, letters=(keyless,)), WALL)
    assert (update.dead_letters, update.bad_rows, len(outputs(update))) == ((keyless,), 1, 1)
    task.close()
    directory.close()


def no_partition_for_b(key, value, partitions):
    return {b"a": 1, b"c": 2}[key]


def test_should_make_a_dead_letter_of_an_output_for_which_the_users_partitioner_fails(tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    windows = stream.group_by_key().windowed_by(tumbling("60s").grace("5s"))
    path = "tests.unit.tasks.test_task:no_partition_for_b"
    windows.count(name="n", store="counts", retention="6m").to("out", partitioner=path)
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory)
    update = task.prepare(rows(("a", 0, 2, 10), ("b", 0, 1, 20), ("c", 0, 1, 30)), WALL)
    assert [(o.partition, [m["key"] for m in o.messages]) for o in update.outputs] == [(1, [b"a"]), (2, [b"c"])]
    (letter,) = update.dead_letters
    assert (letter.reason, letter.offset, letter.key) == ("refused by user code", 1, b"b")
    assert b"KeyError" in dict(letter.details)["tidemark.error"]
    task.close()
    directory.close()


def key_to_partition(key, value, partitions):
    return {b"7": 1, b"-3": 2, b"abc": 3}[key]


def numbered(tmp_path, given, *, limit=1_000_000, **to):
    """Return the outputs of a task whose sink writes keys as 4-byte integers."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    windows = stream.group_by_key().windowed_by(tumbling("60s").grace("5s"))
    windows.count(name="n", store="counts", retention="6m").to("out", key_serde="integer", **to)
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = limited(topology.plan(), directory, out=limit)
    update = task.prepare(given, WALL)
    task.close()
    directory.close()
    return update


SEVEN, MINUS_THREE = (7).to_bytes(4, "big"), (-3).to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("to", "placed"),
    [
        ({}, [(None, [SEVEN, MINUS_THREE])]),
        ({"partitioner": "tests.unit.tasks.test_task:key_to_partition"}, [(1, [SEVEN]), (2, [MINUS_THREE])]),
    ],
    ids=["murmur2 of the bytes", "a partitioner of texts"],
)
def test_should_write_keys_in_the_form_of_the_sink_and_make_dead_letters_of_others(tmp_path, to, placed):
    update = numbered(tmp_path, rows(("7", 0, 2, 10), ("abc", 0, 1, 20), ("-3", 0, 1, 30)), **to)
    assert [(o.partition, [m["key"] for m in o.messages]) for o in update.outputs] == placed
    (letter,) = update.dead_letters
    assert (letter.reason, letter.topic, letter.offset, letter.key) == ("key cannot be written", "in", 1, b"abc")
    assert json.loads(letter.value) == {"id": "abc", "window_start": 0, "window_end": MINUTE, "n": 1}
    details = dict(letter.details)
    assert (details["tidemark.sink"], details["tidemark.error"][:41]) == (
        b"out",
        b"key 'abc' cannot be written as integer, w",
    )
    assert update.sink_counts("app-dlq") == {"out": 2, "app-dlq": 1}


def test_should_keep_the_written_key_of_an_output_that_is_too_large(tmp_path):
    update = numbered(tmp_path, rows(("7", 0, 2, 10), ("1234567890", 0, 1, 20)), limit=1)
    assert update.outputs == ()
    assert [(letter.reason, letter.key) for letter in update.dead_letters] == [
        ("too large for the sink", SEVEN),
        ("too large for the sink", (1234567890).to_bytes(4, "big")),
    ]


def fails_on_everything(key, value, partitions):
    raise KeyError(key)


def not_written(value):
    raise ValueError("it is not written")


@pytest.mark.parametrize(
    ("reason", "key", "writer", "to"),
    [
        ("key cannot be written", "abc", b"written:".__add__, {}),
        ("value cannot be written", "7", not_written, {}),
        (
            "refused by user code", "7", b"written:".__add__,
            {"partitioner": "tests.unit.tasks.test_task:fails_on_everything"},
        ),
    ],
)  # fmt: skip
def test_should_give_a_dead_letter_the_text_of_the_key_and_the_json_of_the_value(tmp_path, reason, key, writer, to):
    """What the sink can write has another form there, which nobody can read."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    windows = stream.group_by_key().windowed_by(tumbling("60s").grace("5s"))
    windows.count(name="n", store="counts", retention="6m").to("out", key_serde="long", **to)
    plan, directory = topology.plan(), InstanceDirectory(tmp_path, "app", 0)
    task = a_task(plan, directory, writers={plan.subtopologies[0].sinks[0].node: writer})
    update = task.prepare(rows((key, 0, 2, 10)), WALL)
    (letter,) = update.dead_letters
    assert (letter.reason, letter.key) == (reason, key.encode())
    assert json.loads(letter.value)["n"] == 2
    task.close()
    directory.close()


def test_should_merge_the_records_of_several_paths_with_keys_in_the_form_of_the_sink(tmp_path):
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, x BIGINT", key="id")
    forwarded = stream.process("tests.support.used_processors:PassesOn", emits="n BIGINT")
    forwarded.to("out", key_serde="bytes")
    forwarded.filter("n > 0").to("out", key_serde="bytes")
    directory = InstanceDirectory(tmp_path, "app", 0)
    task = a_task(topology.plan(), directory, {})
    update = task.prepare(records(1, key="00ff"), WALL)
    assert [[m["key"] for m in o.messages] for o in update.outputs] == [[b"\x00\xff"] * 2]
    assert [letter.reason for letter in task.prepare(records(1), WALL).dead_letters] == ["key cannot be written"] * 2
    task.close()
    directory.close()


def test_should_write_values_in_the_form_of_the_sink_and_make_dead_letters_of_others(tmp_path):
    """A tombstone has no form. What cannot be written is given as JSON, and the state has it."""

    def write(value):
        if b'"n": 1' in value or b'"n":1' in value:
            raise ValueError("it is one")
        return b"written:" + value

    plan, directory = a_plan(), InstanceDirectory(tmp_path, "app", 0)
    (sink,) = plan.subtopologies[0].sinks
    task = a_task(plan, directory, writers={sink.node: write})
    update = task.prepare(rows(("a", 0, 2, 10), ("b", 0, 1, 20), ("c", 0, 3, 30)), WALL)
    values = [message["value"] for output in update.outputs for message in output.messages]
    assert [json.loads(value.removeprefix(b"written:"))["n"] for value in values] == [2, 3]
    (letter,) = update.dead_letters
    assert (letter.reason, letter.offset, letter.key) == ("value cannot be written", 1, b"b")
    assert json.loads(letter.value)["n"] == 1
    assert dict(letter.details)["tidemark.error"] == b"it is one"
    assert len(update.stores[0].writes[0].keys) == 3
    assert _with_written("value", [{"key": b"k", "value": None}], write) == ([{"key": b"k", "value": None}], {})
    task.close()
    directory.close()
