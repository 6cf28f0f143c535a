"""The events of a watch, from records that a consumer hands over. `tests/integration/queries` watches a real changelog."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka import KafkaError
from tests.support.queries import queried_plan, table_plan, time_bytes
from tests.support.standby import count

from tidemark.names import TaskId
from tidemark.queries import changelog_watch
from tidemark.queries.catalog import Catalog, QueryableStore
from tidemark.queries.changelog_watch import Changelogs, ChangelogWatch, _require_kept
from tidemark.queries.errors import PositionGone, QueryInvalid, StateUnavailable
from tidemark.queries.position import ChangelogOffset
from tidemark.queries.server_events import END, GONE, POSITION, SLOW, ServerEvent, parse_events

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)
END_OF_PARTITION = KafkaError(KafkaError._PARTITION_EOF)
TRUNCATED = KafkaError(KafkaError._AUTO_OFFSET_RESET)


@dataclass(frozen=True)
class Handed:
    """A message as the client hands it over."""

    at: int
    number: int
    name: bytes | None = None
    content: bytes | None = None
    failure: KafkaError | None = None

    def partition(self) -> int:
        return self.at

    def offset(self) -> int:
        return self.number

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def error(self) -> KafkaError | None:
        return self.failure


@dataclass
class Consumer:
    """Hands over `waiting`."""

    waiting: list[Handed] = field(default_factory=list)
    assigned: list[tuple[str, int, int]] = field(default_factory=list)

    def assign(self, partitions) -> None:
        self.assigned = [(p.topic, p.partition, p.offset) for p in partitions]

    def consume(self, number: int, timeout: float) -> list[Handed]:
        found, self.waiting = self.waiting[:number], self.waiting[number:]
        return found

    def close(self) -> None:
        return


@pytest.fixture
def consumer(monkeypatch) -> Consumer:
    made = Consumer()
    monkeypatch.setattr(changelog_watch, "read_committed_consumer", lambda *_: made)
    return made


def store(name: str) -> QueryableStore:
    return Catalog.of(queried_plan()).store(name)


def events(part: bytes | None) -> list[ServerEvent]:
    return list(parse_events((part or b"").decode().splitlines()))


def bodies(part: bytes | None) -> list[dict]:
    return [json.loads(event.data) for event in events(part)]


def test_should_begin_with_its_position_and_send_every_change_with_the_position_after_it(consumer):
    watch = ChangelogWatch({}, store("n"), "app-n-changelog", {FIRST: 4, SECOND: 7}, {FIRST: 3, SECOND: 7}, None)
    assert consumer.assigned == [("app-n-changelog", 0, 4), ("app-n-changelog", 1, 7)]
    (begin,) = events(watch.read())
    assert (begin.kind, begin.id) == (POSITION, "0_0:4,0_1:7")
    # The record before the start ends at offset 3, and a marker follows.
    assert json.loads(begin.data) == {"position": "0_0:3,0_1:7"}
    consumer.waiting = [
        Handed(1, 7, b"a", count(1)),
        Handed(0, 4, b"\xff", None),
        Handed(0, 5, b"", count(9)),
        Handed(0, 7, failure=END_OF_PARTITION),
    ]
    part = watch.read()
    assert bodies(part) == [
        {"key": "a", "value": {"n": 1}, "position": "0_1:8"},
        {"key_hex": "ff", "value": None, "position": "0_0:5"},
        {"key": "", "value": {"n": 9}, "position": "0_0:6"},
    ]
    assert [event.id for event in events(part)] == ["0_0:4,0_1:8", "0_0:5,0_1:8", "0_0:6,0_1:8"]
    assert watch.read() == b""
    # The end of a partition counts a marker: a watch continues after it, and no owner counts it.
    (position,) = events(watch.keep_alive)
    assert (position.id, json.loads(position.data)) == ("0_0:7,0_1:8", {"position": "0_0:6,0_1:8"})


def test_should_send_the_changes_of_one_key_and_remember_how_far_it_has_read(consumer):
    watch = ChangelogWatch({}, store("w"), "t", {FIRST: 4}, {FIRST: 3}, b"a")
    watch.read()
    at = time_bytes(60_000)
    consumer.waiting = [
        Handed(0, 4, b"a" + at, count(2)),
        Handed(0, 5, b"a" + at, None),
        Handed(0, 6, b"ab" + at, count(1)),
    ]
    window = {"key": "a", "window_start_ms": 60_000, "window_end_ms": 120_000}
    assert bodies(watch.read()) == [
        {**window, "value": {"n": 2}, "position": "0_0:5"},
        {**window, "value": None, "position": "0_0:6"},
    ]
    assert events(watch.keep_alive)[0].id == "0_0:7"


def test_should_say_where_it_ends_when_the_changelog_no_longer_has_what_comes_next(consumer):
    watch = ChangelogWatch({}, store("n"), "t", {FIRST: 4}, {FIRST: 3}, None)
    watch.read()
    consumer.waiting = [Handed(0, 4, b"a", count(2)), Handed(0, 5, failure=TRUNCATED)]
    change, gone = events(watch.read())
    assert (change.kind, gone.kind, gone.id) == ("change", GONE, "0_0:5")
    assert "the changes after 0_0:5 cannot be read" in json.loads(gone.data)["why"]
    assert watch.read() is None


def test_should_not_let_a_slow_client_continue_after_changes_that_it_has_not_received(consumer):
    watch = ChangelogWatch({}, store("n"), "t", {FIRST: 4}, {FIRST: 3}, None)
    watch.read()
    consumer.waiting = [Handed(0, 4, b"a", count(2))]
    # The client does not take this part, so it is dropped, and the client is disconnected.
    assert [event.id for event in events(watch.read())] == ["0_0:5"]
    (slow,) = events(watch.last_part(SLOW, "nothing was read for 1 s"))
    assert (slow.id, json.loads(slow.data)) == (None, {"why": "nothing was read for 1 s"})
    # A process that ends has sent every part before.
    assert events(watch.last_part(END, "this process ends"))[0].id == "0_0:5"


def test_should_end_at_bytes_that_are_not_the_stores(consumer):
    watch = ChangelogWatch({}, store("n"), "t", {FIRST: 4}, {FIRST: 3}, None)
    watch.read()
    consumer.waiting = [Handed(0, 4, b"a", b"xx")]
    (gone,) = events(watch.read())
    assert gone.kind == GONE
    assert "not the store's" in json.loads(gone.data)["why"]
    assert watch.read() is None


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (ChangelogOffset(9), "before the first offset of the changelog, 10"),
        (ChangelogOffset(10), None),
        (ChangelogOffset(20), None),
        (ChangelogOffset(21), "after the end of the changelog, 20"),
        (ChangelogOffset(15, 1), "of generation 1 of the changelog, which is now in generation 2"),
    ],
)
def test_should_continue_only_where_everything_is_kept(at, says):
    kept = store("n")
    if at.generation:
        kept = replace(kept, spec=replace(kept.spec, generation=2))
    if says is None:
        _require_kept(kept, FIRST, at, oldest=10, newest=20)
        return
    with pytest.raises(PositionGone, match=says) as refused:
        _require_kept(kept, FIRST, at, oldest=10, newest=20)
    assert "query the store again" in refused.value.remedy


def test_should_not_call_a_position_gone_that_is_newer_than_this_process():
    with pytest.raises(StateUnavailable, match="of generation 1 of the changelog, this process knows 0"):
        _require_kept(store("n"), FIRST, ChangelogOffset(15, 1), oldest=10, newest=20)


def test_should_refuse_a_store_whose_changelog_is_its_source_topic():
    # Its records have the format of the source, and are not written by the application.
    table = Catalog.of(table_plan(optimised=True)).store("t")
    with pytest.raises(QueryInvalid, match="its source topic is its changelog"):
        Changelogs("app", {}, timeout_ms=1).watch(table, [FIRST], None, {})
