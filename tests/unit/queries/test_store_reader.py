"""Every kind of query of one store beside the same question to a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.queries import fill, queried_plan, stored_key, table_plan
from tests.support.standby import count as count_value

from tidemark.queries import store_reader
from tidemark.queries.answer_form import _FEW_ROWS, Results
from tidemark.queries.catalog import Catalog
from tidemark.queries.errors import QueryInvalid, QueryTimedOut, StorePrivate, StoreUnknown
from tidemark.queries.query import KeyQuery, RangeQuery, SessionQuery, WindowQuery, require_fitting, spans
from tidemark.queries.store_reader import Deadline, count, read_keys, read_page
from tidemark.registry.description import describe_state
from tidemark.stores.memory import MemoryStore
from tidemark.stream_times import LATEST_TIMESTAMP_MS
from tidemark.topology.builder import Topology
from tidemark.topology.describe import describe
from tidemark.topology.plan import StoreKind
from tidemark.topology.stores import Materialized
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling

CATALOG = Catalog.of(queried_plan())
N, W, S = (CATALOG.store(name) for name in "nws")
PATIENT = Deadline(float("inf"), 1000)

# Few bytes, so that keys are prefixes of each other; also what looks like the times that follow a key.
KEYS = st.one_of(
    st.binary(max_size=3),
    st.text(max_size=4).map(str.encode),
    st.sampled_from(
        [b"", b"\x00" * 8, b"\x00" * 16, b"a" + b"\x00" * 8, b"k" * 5000, "käse/日本".encode(), b"\xff\xff"]
    ),
)
TIMES = st.integers(0, 20).map(lambda n: n * 60_000)
RANGES = st.tuples(st.integers(0, 1_300_000), st.integers(0, 1_300_000)).map(sorted)
LIMITS = st.integers(1, 5)


def all_pages(store, held, query, limit):
    """The items of all pages, each of which is of a snapshot of its own."""
    found, after = [], None
    while True:
        snapshot = held.snapshot()
        page = read_page(store, snapshot, query, after, limit, PATIENT)
        snapshot.release()
        assert len(page.items) <= limit
        found += page.items
        if page.last is None:
            return found
        assert len(page.items) == limit
        after = page.last


def filled(kind, contents):
    return fill(MemoryStore(), {stored_key(kind, *place): count_value(n) for place, n in contents.items()})


@given(st.dictionaries(KEYS, st.integers(0, 9), max_size=25), st.lists(KEYS, max_size=5), st.data())
def test_should_answer_keys_ranges_and_prefixes_as_a_dictionary_does(contents, asked, data):
    held = filled(StoreKind.KEY_VALUE, {(key,): n for key, n in contents.items()})
    keys = data.draw(st.lists(st.sampled_from(sorted(contents)) | KEYS, max_size=6)) if contents else asked
    expected = [(key, count_value(contents[key])) for key in keys if key in contents]
    assert read_keys(held.snapshot(), KeyQuery(tuple(keys))) == expected

    start, end = sorted([data.draw(KEYS), data.draw(KEYS)])
    limit = data.draw(LIMITS)
    ordered = sorted(contents.items())
    for query, is_in in (
        (RangeQuery(), lambda key: True),
        (RangeQuery(start, end), lambda key: start <= key < end),
        (RangeQuery(start), lambda key: key >= start),
        (RangeQuery.of_prefix(start), lambda key: key.startswith(start)),
    ):
        assert all_pages(N, held, query, limit) == [(key, count_value(n)) for key, n in ordered if is_in(key)]
    assert count(held.snapshot(), PATIENT) == held.snapshot().approximate_count == len(contents)


@given(st.dictionaries(st.tuples(KEYS, TIMES), st.integers(0, 9), max_size=25), RANGES, LIMITS, KEYS)
def test_should_answer_windows_by_key_and_by_time_as_a_dictionary_does(contents, between, limit, other):
    held = filled(StoreKind.WINDOW, contents)
    first, last = between
    for key in [None, other, *{key for key, _ in contents}]:
        query = WindowQuery(key, first, last)
        found = W.table(all_pages(W, held, query, limit)).to_pylist()
        expected = {(k, at): n for (k, at), n in contents.items() if key in (None, k) and first <= at <= last}
        assert {(row["key"], row["window_start_ms"]): row["value"]["n"] for row in found} == expected
        assert len(found) == len(expected)
        assert all(row["window_end_ms"] == row["window_start_ms"] + 60_000 for row in found)
        if key is not None:
            starts = [row["window_start_ms"] for row in found]
            assert starts == sorted(starts)


@given(
    st.dictionaries(st.tuples(KEYS, TIMES, st.integers(0, 50_000)), st.integers(0, 9), max_size=25),
    RANGES,
    LIMITS,
    KEYS,
)
def test_should_answer_sessions_by_key_and_by_time_as_a_dictionary_does(lengths, between, limit, other):
    contents = {(key, start, start + length): n for (key, start, length), n in lengths.items()}
    held = filled(StoreKind.SESSION, contents)
    first, last = between
    for key in [None, other, *{key for key, _, _ in contents}]:
        found = S.table(all_pages(S, held, SessionQuery(key, first, last), limit)).to_pylist()
        expected = {
            (k, start, end): n
            for (k, start, end), n in contents.items()
            if key in (None, k) and start <= last and end >= first
        }
        assert {(r["key"], r["window_start_ms"], r["window_end_ms"]): r["value"]["n"] for r in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("at", [0, 5, LATEST_TIMESTAMP_MS])
@pytest.mark.parametrize(
    ("store", "kind", "query"), [(W, StoreKind.WINDOW, WindowQuery(b"1")), (S, StoreKind.SESSION, SessionQuery(b"1"))]
)
def test_should_read_no_windows_and_sessions_of_keys_that_begin_with_the_key(store, kind, query, at):
    keys = [b"1", *(f"1{character}".encode() for character in "\x01 059A\x7fé😀"), b"2"]
    held = filled(kind, {(key, at) if kind is StoreKind.WINDOW else (key, at, at): 1 for key in keys}).snapshot()
    read = [
        found
        for span in spans(store, query, held.segments())
        for found in held.range(span.segment, span.start, span.end)
    ]
    assert [key for key, _ in read] == [stored_key(kind, b"1", at, at)[1]]


def test_should_name_the_columns_of_rows_and_of_empty_answers():
    table = Catalog.of(table_plan()).store("t")
    rows = table.table([(b"a", b'{"city": "Bern", "age": 3.5}'), (b"b", b'{"city": null}')]).to_pylist()
    assert rows == [
        {"key": b"a", "value": {"city": "Bern", "age": 3.5}},
        {"key": b"b", "value": {"city": None, "age": None}},
    ]
    assert table.schema == table.table([(b"a", b"{}")]).schema
    assert W.schema.names == ["key", "window_start_ms", "window_end_ms", "value"]


ROWS = [
    (b"a", b'{"key": "other", "whole": 9223372036854775807, "half": 0.5, "small": 0.1, "yes": true, "tiny": -128}'),
    (b"\xff", b'{"half": -0.0, "value": "\\u00e4"}'),
    (b"", b"{}"),
] * 12


@pytest.mark.parametrize("count", [0, 1, 2, 3, _FEW_ROWS - 1, _FEW_ROWS, _FEW_ROWS + 1])
def test_should_return_the_same_rows_with_and_without_a_table(count):
    topology = Topology("app")
    columns = "key STRING, whole BIGINT, half DOUBLE, small FLOAT, yes BOOLEAN, tiny TINYINT, value STRING"
    topology.table("users", schema=columns, store="t")
    store = Catalog.of(topology.plan()).store("t")
    results = store.results(ROWS[:count])
    assert len(results) == count
    assert results.rows() == results.table().to_pylist() == Results.of(results.table()).rows()
    assert Results.of(results.table()).table() == results.table()


@pytest.mark.parametrize(("store", "kind"), [(N, StoreKind.KEY_VALUE), (W, StoreKind.WINDOW), (S, StoreKind.SESSION)])
def test_should_return_the_same_rows_of_aggregations_with_and_without_a_table(store, kind):
    items = [(stored_key(kind, key, 60_000, 90_000)[1], count_value(n)) for n, key in enumerate([b"", b"a", b"\xff"])]
    for some in (items, items[:1], [], items * _FEW_ROWS):
        results = store.results(some)
        assert results.rows() == results.table().to_pylist() == Results.of(results.table()).rows()
        assert Results.of(results.table()).table() == results.table()


def test_should_keep_a_column_with_the_name_of_the_key():
    topology = Topology("app")
    topology.table("users", schema="key STRING, value BIGINT", store="t")
    store = Catalog.of(topology.plan()).store("t")
    (row,) = store.table([(b"a", b'{"key": "other", "value": 3}')]).to_pylist()
    assert row == {"key": b"a", "value": {"key": "other", "value": 3}}


@pytest.mark.parametrize(
    ("store", "query", "use"),
    [
        (N, WindowQuery(b"a"), "/range"),
        (N, SessionQuery(b"a"), "/range"),
        (W, KeyQuery((b"a",)), "/windows"),
        (W, SessionQuery(None), "/windows"),
        (S, RangeQuery(), "/sessions"),
        (W, WindowQuery(None, 2, 1), "swap"),
        (N, RangeQuery(b"b", b"a"), "swap"),
    ],
)
def test_should_name_the_query_that_fits_the_store(store, query, use):
    with pytest.raises(QueryInvalid) as refused:
        require_fitting(store, query)
    assert use in refused.value.remedy


def test_should_serve_neither_private_stores_nor_those_of_operators():
    assert list(CATALOG.stores) == ["n", "s", "w"]
    with pytest.raises(StorePrivate, match="private"):
        CATALOG.store("secret")
    with pytest.raises(StoreUnknown) as unknown:
        CATALOG.store("nothing")
    assert "n, s, w" in unknown.value.remedy
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at").group_by_key()
    stream.windowed_by(tumbling("60s")).count(name="n", store="w").suppress(until_window_closes()).to("out")
    catalog = Catalog.of(topology.plan())
    assert catalog.internal
    with pytest.raises(StoreUnknown, match="belongs to an operator"):
        catalog.store(min(catalog.internal))


def test_should_let_a_store_become_private_without_another_state():
    def plan(**more):
        topology = Topology("app")
        stream = topology.stream("in", schema="id STRING", key="id").group_by_key()
        stream.count(name="n", store=Materialized("n", **more)).to("out")
        return topology.plan()

    public, private = plan(), plan(private=True)
    assert describe_state(public, {"in": 1}) == describe_state(private, {"in": 1})
    assert "private" not in describe(public)
    assert "private: never answered" in describe(private)
    assert (list(Catalog.of(public).stores), list(Catalog.of(private).stores)) == (["n"], [])


@pytest.mark.parametrize(("page_bytes", "keys"), [(1, 1), (199, 2), (200, 2), (201, 3), (1000, 10), (1001, 10)])
def test_should_end_a_page_with_the_result_that_fills_its_bytes(monkeypatch, page_bytes, keys):
    monkeypatch.setattr(store_reader, "PAGE_BYTES", page_bytes)
    contents = {b"%05d" % n: b"v" * 95 for n in range(10)}
    held = fill(MemoryStore(), {(0, key): value for key, value in contents.items()})
    page = read_page(N, held.snapshot(), RangeQuery(), None, 10, PATIENT)
    assert len(page.items) == keys
    found, after = page.items, page.last
    while after is not None:
        page = read_page(N, held.snapshot(), RangeQuery(), after, 100, PATIENT)
        found, after = found + page.items, page.last
    assert found == sorted(contents.items())


def test_should_not_count_the_bytes_of_what_a_query_leaves_out(monkeypatch):
    monkeypatch.setattr(store_reader, "PAGE_BYTES", 1)
    held = filled(StoreKind.WINDOW, {(b"a", 0): 1, (b"a\0", 0): 2, (b"b", 0): 3})
    page = read_page(W, held.snapshot(), WindowQuery(b"b"), None, 10, PATIENT)
    assert [value for _, value in page.items] == [count_value(3)]


def test_should_end_a_page_and_a_count_when_the_time_is_over():
    held = fill(MemoryStore(), {(0, b"%05d" % n): count_value(1) for n in range(3000)})
    late = Deadline(0.0, 1000, lambda: 1.0)
    page = read_page(N, held.snapshot(), RangeQuery(), None, 5000, late)
    assert 0 < len(page.items) < 3000
    rest = read_page(N, held.snapshot(), RangeQuery(), page.last, 5000, PATIENT)
    assert [key for key, _ in page.items + rest.items] == [b"%05d" % n for n in range(3000)]
    with pytest.raises(QueryTimedOut, match="longer than 1000 ms"):
        count(held.snapshot(), late)
