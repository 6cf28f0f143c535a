"""Queries of a standby's copies beside the folded changelogs, on a real broker."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.standby import count, in_window

from tidemark.names import TaskId
from tidemark.queries.catalog import Catalog
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.position import ChangelogOffset, ReadBounds
from tidemark.queries.query import KeyQuery, RangeQuery, WindowQuery
from tidemark.queries.store_reader import Deadline
from tidemark.queries.task_read import CountQuery, TaskRead, read_task
from tidemark.standby.queries import StandbyStores

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MINUTE_MS = 60_000
KEYS = st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=4), st.just(b""), st.just(b"k" * 100_000))


def stores_of(follower) -> StandbyStores:
    made = StandbyStores("standby-0@here")
    made.replace(follower.stores)
    return made


def read(application, stores, name, query, partition=0, limit=10_000, **bounds):
    store = Catalog.of(application.plan).store(name)
    asked = TaskRead(query, ReadBounds(**bounds), None, limit)
    return read_task(stores, TaskId(0, partition), store, asked, Deadline.after(60_000))


def counts(answer) -> dict[bytes, int]:
    return {row["key"]: row["value"]["n"] for row in answer.table.to_pylist()}


def test_should_answer_every_query_as_the_folded_changelog_does(counting, standby):
    follower = standby(counting)

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(KEYS, st.none() | st.integers(0, 2**63 - 1), min_size=1, max_size=15), st.data())
    def answers(written, data):
        counting.commit({"n": {0: [(key, None if n is None else count(n)) for key, n in written.items()]}})
        counting.follow(follower)
        stores, folded = stores_of(follower), counting.fold("n")
        assert counts(read(counting, stores, "n", RangeQuery())).keys() == folded.keys()
        for key in written:
            found = read(counting, stores, "n", KeyQuery((key,)))
            assert counts(found) == ({} if written[key] is None else {key: written[key]})
        start = data.draw(KEYS)
        prefixed = read(counting, stores, "n", RangeQuery.of_prefix(start))
        assert counts(prefixed).keys() == {key for key in folded if key.startswith(start)}
        assert read(counting, stores, "n", CountQuery(is_approximate=False)).count == len(folded)

    answers()


def test_should_promise_the_same_position_after_it_has_started_again(counting, standby):
    """An owner counts no transaction marker after its last record, so it would refuse a position that does."""
    counting.commit({"n": {0: [(b"a", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    before = read(counting, stores_of(follower), "n", RangeQuery()).position
    follower.end()
    again = standby(counting)
    counting.follow(again)
    after = read(counting, stores_of(again), "n", RangeQuery()).position
    assert (before.promised_offset, before.changelog_offset) == (1, 2)
    assert (after.promised_offset, after.changelog_offset) == (1, 2)


def test_should_answer_windows_as_the_folded_changelog_does(windowed, standby):
    starts = [n * MINUTE_MS for n in range(8)]
    records = [(in_window(key, at), count(at // MINUTE_MS)) for key in (b"", b"a", b"ab", b"\0" * 8) for at in starts]
    windowed.commit({"w": {0: records}}, stream_time_ms=7 * MINUTE_MS)
    follower = standby(windowed)
    windowed.follow(follower)
    stores = stores_of(follower)
    for key in (b"", b"a", b"ab", b"\0" * 8):
        found = read(windowed, stores, "w", WindowQuery(key, MINUTE_MS, 3 * MINUTE_MS)).table.to_pylist()
        assert [(row["key"], row["window_start_ms"], row["value"]["n"]) for row in found] == [
            (key, n * MINUTE_MS, n) for n in (1, 2, 3)
        ]
    everything = read(windowed, stores, "w", WindowQuery(None)).table.to_pylist()
    folded = windowed.fold("w")
    assert {in_window(row["key"], row["window_start_ms"]): count(row["value"]["n"]) for row in everything} == folded
    assert len(everything) == len(records)


def test_should_not_show_an_open_or_aborted_transaction_and_say_how_far_it_lags(counting, standby):
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    follower = standby(counting)
    counting.follow(follower)
    stores = stores_of(follower)
    before = read(counting, stores, "n", RangeQuery())
    assert counts(before) == {b"a": 1}
    counting.begin({"n": {0: [(b"a", count(66))]}})
    follower.step()
    assert counts(read(counting, stores, "n", RangeQuery())) == {b"a": 1}
    counting.end(commits=False)
    counting.commit({"n": {0: [(b"a", count(2))]}})
    own = counting.ends.of([counting.changelog("n")])[counting.changelog("n")]
    with pytest.raises(StateUnavailable, match=f"at_least is {own}"):
        read(counting, stores, "n", RangeQuery(), least_offsets={TaskId(0, 0): ChangelogOffset(own)})
    counting.follow(follower)
    after = read(
        counting, stores, "n", RangeQuery(), least_offsets={TaskId(0, 0): ChangelogOffset(own)}, max_lag_records=0
    )
    assert counts(after) == {b"a": 2}
    assert after.position.changelog_offset >= own > before.position.changelog_offset
    # An owner counts its last record, but not the marker after it: it must be able to keep what a standby promises.
    assert after.position.promised_offset == counting.rows("n")[-1].offset + 1 < after.position.changelog_offset
    assert after.position.role == "standby"
    assert after.position.batch is None


def test_should_answer_while_it_follows_and_refuse_when_it_is_closed(counting, standby):
    """Each transaction writes one number everywhere; half of a batch would be two numbers."""
    keys = [b"%03d" % n for n in range(300)]
    counting.commit({"n": {0: [(key, count(0)) for key in keys]}})
    follower = standby(counting)
    counting.follow(follower)
    stores, stop, wrong, read_often = stores_of(follower), threading.Event(), [], []

    def look() -> None:
        while not stop.is_set():
            found = counts(read(counting, stores, "n", RangeQuery()))
            read_often.append(found)
            # A read ends anywhere in a transaction, but what was read is whole, in the order of the changelog.
            values = [found[key] for key in keys]
            if sorted(values, reverse=True) != values or len(values) != 300:
                wrong.append(values)

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(1, 10):
        counting.commit({"n": {0: [(key, count(number)) for key in keys]}})
        counting.follow(follower)
    stop.set()
    reader.join(60)
    assert wrong == []
    assert read_often
    follower.end()
    with pytest.raises(StateUnavailable, match="is closing"):
        read(counting, stores, "n", RangeQuery())


def test_should_not_answer_from_a_copy_that_is_still_being_built(counting, standby):
    counting.commit({"n": {0: [(b"a", count(1))], 1: [(b"x", count(1))]}})
    follower = standby(counting)
    stores = stores_of(follower)
    with pytest.raises(StateUnavailable, match=r"restores task 0_0: store n of partition 0 is at offset 0 of \d+"):
        read(counting, stores, "n", RangeQuery())
    counting.follow(follower)
    assert counts(read(counting, stores, "n", RangeQuery())) == {b"a": 1}
