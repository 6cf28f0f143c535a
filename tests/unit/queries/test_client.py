"""The Python client beside a real server of stores in memory."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pytest
from tests.support.overview import write_run_file, write_standby_file
from tests.support.queries import APP, TASKS, counts_host, fill, queried_plan, stored_key
from tests.support.query_server import served
from tests.support.standby import count as count_value
from tests.unit.queries.test_query_api import api_of

from tidemark.client import Entry, QueryFailed, QueryUnavailable, Result, StateClient, local_url, refusal, token_of
from tidemark.kafka.partitioner import partitions_of
from tidemark.names import TaskId
from tidemark.queries import store_reader
from tidemark.queries.access import token_file
from tidemark.queries.catalog import Catalog
from tidemark.queries.position import TaskRole
from tidemark.queries.server_events import CHANGE
from tidemark.settings import Settings
from tidemark.topology.plan import StoreKind

LONG = b"\xff" * 200_000
COUNTS = {b"": 1, "ä☃".encode(): 2, b"\x00\xff": 3, LONG: 4, **{b"k%02d" % n: n for n in range(20)}}


@pytest.fixture(scope="module")
def address():
    host = counts_host(COUNTS)
    owner = TaskId(0, int(partitions_of([b"a"], TASKS)[0]))
    for start in (0, 60_000, 400_000):
        item = {stored_key(StoreKind.WINDOW, b"a", start): count_value(start)}
        fill(host.held[owner]["w"], item)
    fill(host.held[TaskId(0, 1)]["s"], {stored_key(StoreKind.SESSION, b"a", 5, 9): count_value(7)})
    # No query of a test is slow by itself, however busy the machine is.
    settings = Settings(query_requests_per_second=0, query_timeout_ms=60_000)
    with served(api_of(host, settings), settings) as url:
        yield url


@pytest.fixture
def client(address):
    with StateClient(
        APP, url=address, token="all", settings=Settings(query_page_records=7, query_timeout_ms=60_000)
    ) as made:
        yield made


def test_should_ask_the_instance_with_the_lowest_number_and_then_a_standby(tmp_path):
    write_run_file(tmp_path, APP, 10, query_url="http://ten")
    write_run_file(tmp_path, APP, 2, query_url="http://two")
    write_run_file(tmp_path, APP, 1, query_url=None)
    write_run_file(tmp_path, APP, 0, query_url="http://ended", state="NOT_RUNNING")
    write_run_file(tmp_path, f"{APP}-2", 0, query_url="http://another-application")
    write_standby_file(tmp_path, APP, 0, query_url="http://standby")
    assert local_url(tmp_path, APP) == "http://two"
    for number in (2, 10):
        write_run_file(tmp_path, APP, number, query_url="http://ended", state="NOT_RUNNING")
    assert local_url(tmp_path, APP) == "http://standby"
    write_standby_file(tmp_path, APP, 0, query_url=None)
    with pytest.raises(QueryUnavailable, match="no instance and no standby"):
        local_url(tmp_path, APP)


def test_should_find_any_key(client):
    store = client.store("n")
    for key, number in COUNTS.items():
        assert store.get(key) == Entry(key, {"n": number})
    assert store.get("ä☃").text == "ä☃"
    assert store.get("missing") is None
    assert {entry.key for entry in store.get_many(["", LONG, "missing"])} == {b"", LONG}


def test_should_read_all_pages_with_their_positions(client):
    found = client.store("n").range()
    assert {entry.key: entry.value["n"] for entry in found} == COUNTS
    assert found.is_complete
    assert [str(position.task) for position in found.positions] == ["0_0", "0_1", "0_2"]
    assert {position.role for position in found.positions} == {TaskRole.ACTIVE}
    assert found.position == found.resume_position == "0_0:10,0_1:10,0_2:10"
    some = client.store("n", at_least=found.position).range(prefix="k", limit=10)
    assert len(some) == 10
    assert not some.is_complete
    assert len(client.store("n").range(start="k05", end="k08")) == 3


def test_should_follow_pages_that_end_by_their_bytes(client, monkeypatch):
    monkeypatch.setattr(store_reader, "PAGE_BYTES", 1)
    found = client.store("n").range()
    assert {entry.key: entry.value["n"] for entry in found} == COUNTS
    assert found.is_complete
    assert len(client.store("n").range(limit=10)) == 10
    rows = []
    for task in client.store("n").tasks():
        with client.store("n").contents(task) as contents:
            rows += [batch.num_rows for batch in contents.batches]
    assert max(rows) == 1
    assert sum(rows) == len(COUNTS)


def test_should_read_windows_sessions_and_counts(client):
    windows = client.store("w").windows("a", from_ms=60_000)
    assert list(windows) == [Entry(b"a", {"n": at}, at, at + 60_000) for at in (60_000, 400_000)]
    assert list(client.store("s").sessions(to_ms=5)) == [Entry(b"a", {"n": 7}, 5, 9)]
    assert len(client.store("s").sessions(to_ms=4)) == 0
    counted = client.store("n").count()
    assert (counted.count, counted.is_approximate) == (len(COUNTS), False)
    assert counted.position == "0_0:10,0_1:10,0_2:10"


def test_should_make_frames(client):
    frame = client.store("n").range(prefix="k0").to_pandas()
    assert dict(zip(frame["key"], frame["n"], strict=True)) == {f"k{n:02d}": n for n in range(10)}
    # One key that is no text makes all of them bytes: a column has one type.
    assert set(client.store("n").range().to_pandas()["key"]) == COUNTS.keys()
    windows = client.store("w").windows().to_pandas()
    assert list(windows.columns) == ["key", "window_start_ms", "window_end_ms", "n"]
    empty = client.store("n").range(prefix="nothing").to_pandas()
    assert (list(empty.columns), len(empty)) == (["key", "n"], 0)


def test_should_change_no_whole_number_in_a_frame_in_which_some_are_missing():
    large = 2**53 + 1
    fields = {"n": [large, None], "is_new": [True, None], "all": [[large, None], None]}
    value = pa.StructArray.from_arrays([pa.array(column) for column in fields.values()], [*fields])
    ends = pa.array([large, None], pa.int64())
    frame = Result(pa.table({"key": [b"a", b"b"], "window_end_ms": ends, "value": value}), (), "").to_pandas()
    assert (int(frame["n"][0]), int(frame["window_end_ms"][0]), frame["all"][0][0]) == (large, large, large)
    assert bool(frame["is_new"][0]) is True
    assert frame["n"].isna().tolist() == frame["is_new"].isna().tolist() == [False, True]
    # The type does not depend on whether a value is missing.
    assert dict(frame.dtypes.astype(str)[["n", "is_new", "window_end_ms"]]) == {
        "n": "Int64",
        "is_new": "boolean",
        "window_end_ms": "Int64",
    }


def test_should_not_choose_one_of_several_values_of_a_key(client):
    store = client.store("n")
    one = pa.table({"key": [b"a"], "value": [{"n": 1}]})
    assert store.only_entry("a", Result(one, (), "")).value == {"n": 1}
    assert store.only_entry("a", Result(one.slice(0, 0), (), "")) is None
    with pytest.raises(QueryFailed, match="2 tasks of store n hold key 'a'"):
        store.only_entry("a", Result(pa.concat_tables([one, one]), (), ""))


def test_should_name_stores_and_copies(client):
    kinds = {store.name: store.kind for store in client.stores()}
    assert kinds.keys() == {"n", "w", "s"}
    (copy,) = client.store("n").copies("k01")
    assert (copy.holder, copy.state, copy.position.lag_records) == ("0", "active", 0)
    assert len(client.store("n").copies()) == 3


def test_should_send_its_token_to_no_proxy(address, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    with StateClient(APP, url=address, token="all", settings=Settings()) as client:
        assert client.stores()


def test_should_watch_on_when_the_caller_has_taken_its_time(monkeypatch):
    clock, opened = [0.0], []
    changes = [SimpleNamespace(id=f"0_0:{n}", kind=CHANGE) for n in (1, 2)]

    @contextmanager
    def stream(*_):
        opened.append(clock[0])
        yield changes[len(opened) - 1]
        raise QueryUnavailable("the connection has ended")

    asked = StateClient(APP, token="all", settings=Settings())
    monkeypatch.setattr(asked, "_stream", stream)
    monkeypatch.setattr("tidemark.client._server_events", lambda answer: [answer])
    monkeypatch.setattr("tidemark.client._change", lambda event: event.id)
    monkeypatch.setattr("tidemark.client.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _s: None))
    watched = asked.store("n").watch(patience_s=60)
    assert next(watched) == "0_0:1"
    clock[0] = 100.0
    assert next(watched) == "0_0:2"
    assert opened == [0.0, 100.0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.stores(),
        lambda client: next(client.events()),
        lambda client: client.store("n").get("a"),
        lambda client: client.store("n").copies(),
        lambda client: next(client.store("n").watch(patience_s=0)),
    ],
)
def test_should_accept_no_answer_of_another_application(address, ask):
    with (
        StateClient("another", url=address, token="all", settings=Settings()) as client,
        pytest.raises(QueryUnavailable, match=f"this is a process of {APP}, not of another: ask a process of another"),
    ):
        ask(client)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda url: StateClient(APP, url=url, token="sécret").stores(), "the token"),
        (lambda url: StateClient(APP, url=url, token="se\ncret").stores(), "the token"),
        (lambda url: StateClient("sécret", url=url, token="all").stores(), "the id of the application"),
        (lambda url: next(StateClient(APP, url=url, token="all").events(after="sécret")), "the id of the event"),
    ],
)
def test_should_name_what_http_cannot_carry_without_showing_it(address, asked, what):
    with pytest.raises(QueryFailed, match=f"^{what}.* has characters that HTTP cannot carry") as refused:
        asked(address)
    assert "cret" not in str(refused.value)


def test_should_name_a_token_file_without_tokens(tmp_path):
    settings = Settings(var_dir=tmp_path)
    path = token_file(tmp_path, APP)
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text("{}")
    with pytest.raises(QueryFailed, match=f"no token to ask {APP} with: {path} has none"):
        token_of(settings, APP)


def test_should_say_why_it_got_no_answer(client, address):
    with pytest.raises(QueryFailed, match="has no store other: query one of the stores n"):
        client.store("other").count()
    with pytest.raises(QueryUnavailable, match="at_least is 11"):
        client.store("n", at_least="0_0:11").count()
    with pytest.raises(QueryFailed, match="not one of the tokens"):
        StateClient(APP, url=address, token="wrong", settings=Settings()).stores()
    with pytest.raises(QueryUnavailable, match="does not answer"):
        StateClient(APP, url="http://127.0.0.1:1", token="all", settings=Settings()).stores()


@pytest.mark.parametrize(
    "ask", [lambda store, key: store.metadata(key), lambda store, key: next(store.watch(key, patience_s=60))]
)
def test_should_say_at_once_that_a_key_is_too_long_for_a_url(client, ask):
    with pytest.raises(QueryFailed, match=r"a key of 32,768 bytes .*get_many") as refused:
        ask(client.store("n"), b"k" * 32_768)
    assert not isinstance(refused.value, QueryUnavailable)


def test_should_answer_where_the_longest_key_is_that_its_message_allows(client):
    assert client.store("n").copies(b"k" * 30_000)


@pytest.mark.parametrize(("status", "is_later"), [(422, False), (429, True), (500, False), (503, True), (504, True)])
def test_should_say_whether_the_same_query_may_succeed_later(status, is_later):
    answer = httpx.Response(status, json={"detail": "why", "remedy": "what to do"})
    assert isinstance(refusal(answer), QueryUnavailable) is is_later


def test_should_have_the_json_of_the_http_interface(client):
    entries = client.store("n").get_many(["", b"\x00\xff"]).to_json()
    assert sorted(map(json.dumps, entries)) == [
        '{"key": "", "value": {"n": 1}}',
        '{"key_hex": "00ff", "value": {"n": 3}}',
    ]


def test_should_resume_from_the_oldest_copy_and_never_read_older_than_the_newest():
    # Pages of one task come from different processes.
    asked = StateClient(APP, token="all", settings=Settings()).store("n")
    host = counts_host(COUNTS)
    first = host.open(TaskId(0, 0), "n").position
    table = Catalog.of(queried_plan()).store("n").table([])
    places = [(10, 1), (8, 1), (12, 1), (11, 1)]
    pages = [
        (table, {"positions": [replace(first, promised_offset=o, generation=g).to_dict()], "cursor": None})
        for o, g in places
    ]
    found = asked._result(pages)
    assert (found.resume_position, found.position) == ("0_0:8.1", "0_0:12.1")
    replaced = replace(first, promised_offset=3, generation=2).to_dict()
    found = asked._result([*pages, (table, {"positions": [replaced], "cursor": None})])
    assert (found.resume_position, found.position) == ("0_0:8.1", "0_0:3.2")
