"""The HTTP interface on stores in memory: answers, who may ask, and what each refusal says."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from fastapi import FastAPI
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.support.queries import (
    ALL_TASKS,
    APP,
    TASKS,
    ScriptedChanges,
    body_of,
    counts_host,
    fill,
    queried_plan,
    stored_key,
)
from tests.support.standby import count as count_value

from tidemark.names import TaskId
from tidemark.queries import api
from tidemark.queries.access import RateLimit, Tokens
from tidemark.queries.answer_form import ARROW_STREAM, META
from tidemark.queries.api import make_api
from tidemark.queries.catalog import Catalog
from tidemark.queries.cursor import Cursor
from tidemark.queries.endpoints import Endpoint
from tidemark.queries.hosts import CopyState, StoreRestore
from tidemark.queries.part_source import LiveSources
from tidemark.queries.peers import Peers
from tidemark.queries.router import Router
from tidemark.queries.task_read import TaskAnswer
from tidemark.queries.tls import trusted
from tidemark.settings import Settings
from tidemark.stores.protocol import WHOLE
from tidemark.topology.plan import StoreKind

TOKENS = {"all": ["read"], "one": ["read:n"], "ghost": ["read:nosuch"], "nothing": [], "scraper": ["metrics"]}
SCRAPED = b"tidemark_tasks 2.0\n"


def api_of(host, settings: Settings, others=(), live: LiveSources | None = None, launch: str = "") -> FastAPI:
    peers = Peers(APP, trusted(settings))
    router = Router(Catalog.of(queried_plan()), ALL_TASKS, host, lambda: list(others), peers, launch=launch)
    sources = live or LiveSources(ScriptedChanges(), None)
    return make_api(router, lambda: SCRAPED, Tokens(APP, TOKENS), settings, "7", sources)


def client(host, *, token="all", others=(), live=None, **settings) -> TestClient:
    # No query of a test is slow by itself, however busy the machine is.
    used = Settings(**{"query_requests_per_second": 0, "query_timeout_ms": 60_000, **settings})
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(api_of(host, used, others, live), headers=headers, raise_server_exceptions=False)


def problem(answer, status: int) -> dict:
    body = answer.json()
    assert answer.status_code == status == body["status"], answer.text
    assert body["title"]
    assert body["detail"]
    assert body["remedy"]
    return body


def test_should_answer_a_key_with_the_position_of_its_task():
    asked = client(counts_host({b"a": 5}))
    body = body_of(asked.get("/v1/stores/n/key", params={"key": "a"}))
    assert body["entry"] == {"key": "a", "value": {"n": 5}}
    (position,) = body["positions"]
    assert position["role"] == "active"
    assert position["changelog_offset"] == 10
    assert position["end_offset"] == 10
    assert (position["lag_records"], position["lag_ms"]) == (0, 0)
    assert position["stream_time_ms"] == 5_000
    assert position["topology_version"] == "7"
    assert body["position"] == f"{position['task']}:10"
    missing = body_of(asked.get("/v1/stores/n/key", params={"key": "b"}))
    assert missing["entry"] is None
    assert missing["positions"]


KEYS = st.text(max_size=6).map(str.encode) | st.binary(max_size=4)
LONG = b"k" * 70_000
"""A key that is too long for a URL. Its hash takes so long that it is only in the examples below, anywhere in a page."""


@pytest.fixture(scope="module")
def one_server():
    """A host without keys, and a client of its server, which runs in one event loop for all examples of a test."""
    host = counts_host({})
    with client(host) as asked:
        yield host, asked


@given(counts=st.dictionaries(KEYS, st.integers(0, 2**63 - 1), max_size=20), limit=st.integers(1, 5))
@example(counts={LONG: 1, b"": 2, b"a": 3, b"\xff": 4, LONG + b"\xff": 5}, limit=1)
@example(counts={LONG: 1, b"": 2, b"a": 3, b"\xff": 4, LONG + b"\xff": 5}, limit=3)
def test_should_find_every_key_however_it_is_written(one_server, counts, limit):
    host, asked = one_server
    host.held = counts_host(counts).held
    body = body_of(asked.post("/v1/stores/n/keys", json={"keys_hex": [key.hex() for key in counts] or ["00"]}))
    assert as_counts(body["entries"]) == counts
    texts = [key.decode() for key in counts if is_text(key)]
    if texts:
        body = body_of(asked.post("/v1/stores/n/keys", json={"keys": texts}))
        assert as_counts(body["entries"]) == {key: n for key, n in counts.items() if is_text(key)}
    found, cursor, pages = {}, None, 0
    while pages == 0 or cursor is not None:
        more = {} if cursor is None else {"cursor": cursor}
        # A cursor holds a key, which may be too long for a URL.
        body = body_of(asked.post("/v1/stores/n/range", json={"limit": limit, **more}))
        assert len(body["entries"]) <= limit
        assert not found.keys() & as_counts(body["entries"]).keys()
        found |= as_counts(body["entries"])
        cursor, pages = body["cursor"], pages + 1
    assert found == counts
    assert body_of(asked.get("/v1/stores/n/count"))["count"] == len(counts)
    assert body_of(asked.get("/v1/stores/n/count", params={"approximate": True}))["count"] == len(counts)


def as_counts(entries) -> dict[bytes, int]:
    return {(bytes.fromhex(e["key_hex"]) if "key_hex" in e else e["key"].encode()): e["value"]["n"] for e in entries}


def is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_should_answer_windows_and_sessions():
    host = counts_host({})
    for task in host.held.values():
        fill(task["w"], {stored_key(StoreKind.WINDOW, b"k", 60_000 * n): count_value(n) for n in range(3)})
        fill(task["s"], {stored_key(StoreKind.SESSION, b"k", 100, 900): count_value(4)})
    asked = client(host)
    body = body_of(asked.get("/v1/stores/w/windows", params={"key": "k", "from_ms": 1, "to_ms": 120_000}))
    assert [(e["window_start_ms"], e["value"]["n"]) for e in body["entries"]] == [(60_000, 1), (120_000, 2)]
    everywhere = body_of(asked.get("/v1/stores/w/windows", params={"limit": 100}))
    assert len(everywhere["entries"]) == 3 * TASKS
    assert len(everywhere["positions"]) == TASKS
    body = body_of(asked.get("/v1/stores/s/sessions", params={"key": "k", "from_ms": 900}))
    assert body["entries"] == [{"key": "k", "window_start_ms": 100, "window_end_ms": 900, "value": {"n": 4}}]


def test_should_answer_as_arrow_with_cursor_and_positions():
    asked = client(counts_host({b"%d" % n: n for n in range(20)}))
    answer = asked.get("/v1/stores/n/range", params={"limit": 15}, headers={"Accept": ARROW_STREAM})
    assert answer.headers["content-type"] == ARROW_STREAM
    table = pa.ipc.open_stream(answer.content).read_all()
    meta = json.loads(table.schema.metadata[META])
    rest = asked.get("/v1/stores/n/range", params={"cursor": meta["cursor"]}, headers={"Accept": ARROW_STREAM})
    rows = table.to_pylist() + pa.ipc.open_stream(rest.content).read_all().to_pylist()
    assert {row["key"]: row["value"]["n"] for row in rows} == {b"%d" % n: n for n in range(20)}
    assert table.schema.names == ["key", "value"]
    assert meta["positions"]


def test_should_let_only_health_be_asked_without_a_token():
    asked = client(counts_host({}), token=None)
    assert body_of(asked.get("/v1/health")) == {"holder": "0"}
    routes = {(method, r.path) for r in asked.app.routes for method in r.methods} - {("GET", "/v1/health")}
    assert {("GET", f"/v1/{name}") for name in ("stores", "openapi.json", "metadata", "events")} < routes
    for method, path in sorted(routes):
        filled = path.replace("{store}", "n").replace("{task_id}", "0_0")
        body = problem(asked.request(method, filled, json={}), 401)
        assert "Authorization: Bearer" in body["remedy"]
    wrong = asked.get("/v1/stores", headers={"Authorization": "Bearer wrong"})
    assert "not one of the tokens" in problem(wrong, 401)["detail"]
    assert wrong.headers["WWW-Authenticate"] == "Bearer"
    assert "wrong" not in wrong.text.replace("what is wrong", "")


def test_should_read_only_the_stores_of_the_token():
    host = counts_host({b"a": 1})
    one = client(host, token="one")
    assert body_of(one.get("/v1/stores/n/key", params={"key": "a"}))["entry"]["value"] == {"n": 1}
    assert [s["name"] for s in body_of(one.get("/v1/stores"))["stores"]] == ["n"]
    assert "read:w" in problem(one.get("/v1/stores/w/windows"), 403)["remedy"]
    assert problem(client(host, token="nothing").get("/v1/metadata", params={"store": "n"}), 403)
    assert "private" in problem(client(host).get("/v1/stores/secret/count"), 403)["detail"]


def test_should_say_what_is_unknown():
    asked = client(counts_host({}))
    assert "n, s, w" in problem(asked.get("/v1/stores/other/count"), 404)["remedy"]
    assert "/v1/nowhere" in problem(asked.get("/v1/nowhere"), 404)["detail"]
    refused = asked.put("/v1/stores", content=b"{}")
    assert "PUT" in problem(refused, 405)["detail"]
    assert refused.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    ("path", "params", "says"),
    [
        ("n/key", {}, "key is missing"),
        ("n/key", {"key": "a", "key_hex": "00"}, "both key and key_hex"),
        ("n/key", {"key_hex": "0x"}, "key_hex is not hexadecimal"),
        ("n/range", {"limit": 0}, "limit"),
        ("n/range", {"cursor": "nonsense"}, "cursor"),
        ("n/range", {"cursor": base64.urlsafe_b64encode(b'["0_0", [Infinity, ""], 3, 0]').decode()}, "cursor"),
        ("n/range", {"cursor": base64.urlsafe_b64encode(b'["0_0", null, Infinity, 0]').decode()}, "cursor"),
        ("n/range", {"cursor": base64.urlsafe_b64encode(b'["0_0", null]').decode()}, "cursor"),
        ("n/range", {"cursor": base64.urlsafe_b64encode(b"[" * 10_000).decode()}, "cursor"),
        ("n/range", {"prefix": "a", "start": "b"}, "either a prefix"),
        ("n/range", {"start": "b", "end": "a"}, "after the last"),
        ("n/windows", {}, "key-value store"),
        ("w/key", {"key": "a"}, "window store"),
        ("w/windows", {"from_ms": 5, "to_ms": 4}, "from_ms 5 is after"),
        ("w/windows", {"from_ms": -1}, "from_ms"),
        ("n/count", {"task": "9_9"}, "no task 9_9"),
        ("n/count", {"task": "zero"}, "not a task"),
        ("n/count", {"at_least": "zero"}, "no position"),
        ("n/count", {"max_lag_ms": -1}, "max_lag_ms"),
    ],
)
def test_should_say_what_is_not_valid(path, params, says):
    assert says in problem(client(counts_host({})).get(f"/v1/stores/{path}", params=params), 422)["detail"]


@pytest.mark.parametrize(("tasks", "generation"), [(TASKS - 1, 0), (TASKS + 1, 0), (TASKS, 1)])
def test_should_say_that_a_cursor_is_gone(tasks, generation):
    asked = client(counts_host({b"a": 1}))
    cursor = Cursor(TaskId(0, 0), None, tasks, generation).encode()
    gone = problem(asked.get("/v1/stores/n/range", params={"cursor": cursor}), 410)
    assert f"{tasks} tasks and generation {generation}" in gone["detail"]
    assert gone["remedy"] == "begin without a cursor"


@pytest.mark.parametrize("body", [{}, {"keys": "a"}, {"keys": [1]}, {"keys": ["\ud800"]}, {"keys_hex": ["0"]}])
def test_should_say_how_keys_are_written(body):
    asked = client(counts_host({}))
    answer = asked.post("/v1/stores/n/keys", content=json.dumps(body), headers={"Content-Type": "application/json"})
    problem(answer, 422)


def test_should_refuse_a_state_that_is_too_old_and_say_how_old_it_is():
    asked = client(counts_host({b"a": 1}, state=CopyState.STANDBY, lag=5))
    answer = asked.get("/v1/stores/n/key", params={"key": "a", "max_lag_records": 4})
    assert "lags by 5 records" in problem(answer, 503)["detail"]
    assert answer.headers["Retry-After"] == "1"
    assert (
        "lags by 50 ms" in problem(asked.get("/v1/stores/n/key", params={"key": "a", "max_lag_ms": 49}), 503)["detail"]
    )
    body = body_of(asked.get("/v1/stores/n/key", params={"key": "a", "max_lag_records": 5, "max_lag_ms": 50}))
    assert body["positions"][0]["role"] == "standby"
    own = body["position"]
    assert body_of(asked.get("/v1/stores/n/key", params={"key": "a", "at_least": own}))["entry"]
    newer = own.replace(":10", ":11")
    assert (
        "at_least is 11"
        in problem(asked.get("/v1/stores/n/key", params={"key": "a", "at_least": newer}), 503)["detail"]
    )


def test_should_not_choose_one_of_several_tasks_that_hold_a_key(monkeypatch):
    catalog = Catalog.of(queried_plan())
    # As a processor's own store, whose keys may be in any task.
    anywhere = replace(catalog, stores={**catalog.stores, "n": replace(catalog.store("n"), is_by_key=False)})
    monkeypatch.setattr(Catalog, "of", lambda _: anywhere)
    host = counts_host({})
    for number, task in enumerate(ALL_TASKS):
        fill(host.held[task]["n"], {(WHOLE, b"total"): count_value(10 + number)})
    fill(host.held[ALL_TASKS[1]]["n"], {(WHOLE, b"once"): count_value(1)})
    asked = client(host)
    refused = problem(asked.get("/v1/stores/n/key", params={"key": "total"}), 422)
    assert "3 tasks of store n hold the key" in refused["detail"]
    assert body_of(asked.get("/v1/stores/n/key", params={"key": "total", "task": "0_2"}))["entry"]["value"] == {"n": 12}
    assert body_of(asked.get("/v1/stores/n/key", params={"key": "once"}))["entry"]["value"] == {"n": 1}
    entries = body_of(asked.post("/v1/stores/n/keys", json={"keys": ["total"]}))["entries"]
    assert sorted(entry["value"]["n"] for entry in entries) == [10, 11, 12]


@pytest.mark.parametrize("at_least", ["7_9:5", "0_99:5", "1_0@17", "0_0:5,0_3:5"])
@pytest.mark.parametrize("path", ["key?key=a", "count", "range?limit=1"])
def test_should_refuse_bounds_of_a_task_that_the_store_does_not_have(path, at_least):
    asked = client(counts_host({b"a": 1}))
    refused = problem(asked.get(f"/v1/stores/n/{path}", params={"at_least": at_least, "key": "a"}), 422)
    assert f"at_least names task {at_least.split(',')[-1][:3]}" in refused["detail"]


def test_should_say_who_restores_and_how_far():
    host = counts_host({}, state=CopyState.RESTORING, restoring=[StoreRestore("n", 1, 250, 1000, 3.0)])
    host.open = lambda task, store: pytest.fail("a store that is restored must not be opened")
    other = Endpoint("1", "http://127.0.0.1:1", host.copies(), tuple(host.restores()))
    empty = counts_host({}, tasks=0)
    body = problem(client(empty, others=[other]).get("/v1/stores/n/count", params={"task": "0_1"}), 503)
    assert "1 restores it" in body["detail"]
    assert "offset 250 of 1000, 3 s left" in body["detail"]
    assert "no running process" in problem(client(empty).get("/v1/stores/n/count"), 503)["detail"]


def test_should_name_no_store_that_the_token_may_not_read():
    held = dict.fromkeys(ALL_TASKS, CopyState.RESTORING)
    restores = tuple(StoreRestore("secret", task.partition, 5, 900, None) for task in ALL_TASKS)
    restoring = Endpoint("1", "http://127.0.0.1:1", held, restores)
    one = client(counts_host({}, tasks=0), token="one", others=[restoring])
    said = problem(one.get("/v1/stores/n/key", params={"key": "a"}), 503)["detail"]
    assert "1 restores it (it restores other stores first)" in said
    assert "secret" not in said
    unknown = client(counts_host({}), token="ghost")
    assert "a token that may read" in problem(unknown.get("/v1/stores/nosuch/count"), 404)["remedy"]


@pytest.mark.parametrize(
    "url",
    [
        "/v1/stores/n/key?key=%FF",
        "/v1/stores/n/key?key=a%C3",
        "/v1/stores/n/range?prefix=%80",
        "/v1/metadata?store=n&key=%FF",
        "/v1/stores/n/watch?key=%ff",
    ],
)
def test_should_not_take_bytes_that_are_no_text_for_another_key(url):
    asked = client(counts_host({"\N{REPLACEMENT CHARACTER}".encode(): 1, b"\xff": 2}))
    assert "key_hex" in problem(asked.get(url), 422)["remedy"]
    assert body_of(asked.get("/v1/stores/n/key?key=%EF%BF%BD"))["entry"]["value"] == {"n": 1}
    assert body_of(asked.get("/v1/stores/n/key?key_hex=ff"))["entry"]["value"] == {"n": 2}


def test_should_describe_bounds_only_where_they_have_an_effect():
    paths = body_of(client(counts_host({})).get("/v1/openapi.json"))["paths"]

    def described(path: str) -> set[str]:
        return {each["name"] for each in paths[path]["get"]["parameters"]}

    bounds = {"max_lag_records", "max_lag_ms", "at_least"}
    assert bounds < described("/v1/stores/{store}/key")
    for path, more in (("/v1/metadata", "store"), ("/v1/stores/{store}/watch", "after")):
        assert {"key", "key_hex", "task", more} <= described(path)
        assert not bounds & described(path)


def test_should_give_smaller_pages_than_are_asked_for():
    asked = client(counts_host({b"%03d" % n: n for n in range(25)}), query_page_records=10)
    found, cursor = [], {}
    while cursor is not None:
        page = body_of(asked.get("/v1/stores/n/range", params={"limit": 1000, **cursor}))
        assert len(page["entries"]) <= 10
        found += [entry["key"] for entry in page["entries"]]
        cursor = page["cursor"] and {"cursor": page["cursor"]}
    assert sorted(found) == [f"{n:03}" for n in range(25)]


def test_should_limit_how_often_a_token_asks(monkeypatch):
    # All requests come at one time: on a busy machine ten of them may take seconds.
    monkeypatch.setattr(api, "RateLimit", lambda per_second: RateLimit(per_second, lambda: 0.0))
    asked = client(counts_host({}), query_requests_per_second=2)
    statuses = [asked.get("/v1/stores").status_code for _ in range(10)]
    assert statuses == [200] * 2 + [429] * 8
    limited = asked.get("/v1/stores")
    assert "REQUESTS_PER_SECOND" in problem(limited, 429)["remedy"]
    assert limited.headers["Retry-After"] == "1"


def test_should_say_that_it_lives_and_refuse_strangers_while_all_threads_read():
    host = counts_host({b"a": 1})
    opened, is_read, go_on = host.open, threading.Event(), threading.Event()

    def open_slowly(task, store):
        is_read.set()
        assert go_on.wait(60)
        return opened(task, store)

    host.open = open_slowly
    with client(host, query_threads=1) as asked, ThreadPoolExecutor(3) as pool:
        slow = pool.submit(asked.get, "/v1/stores/n/key", params={"key": "a"})
        try:
            assert is_read.wait(30)
            health = pool.submit(asked.get, "/v1/health")
            stranger = pool.submit(
                asked.get, "/v1/stores/n/key", params={"key": "a"}, headers={"Authorization": "Bearer no"}
            )
            assert health.result(20).status_code == 200
            problem(stranger.result(20), 401)
        finally:
            go_on.set()
        assert body_of(slow.result(60))["entry"]["value"] == {"n": 1}


def test_should_refuse_a_body_that_is_too_large():
    large = client(counts_host({})).post("/v1/stores/n/keys", content=b"x" * ((16 << 20) + 1))
    problem(large, 413)


def test_should_describe_itself_to_those_who_may_ask():
    described = body_of(client(counts_host({})).get("/v1/openapi.json"))
    assert "/v1/stores/{store}/windows" in described["paths"]
    assert described["components"]["securitySchemes"]


def test_should_show_where_a_key_is():
    body = body_of(client(counts_host({b"a": 1})).get("/v1/metadata", params={"store": "n", "key": "a"}))
    (task,) = body["tasks"]
    (copy,) = task["copies"]
    assert copy["state"] == "active"
    assert copy["holder"] == "0"
    assert copy["position"]["lag_records"] == 0
    everywhere = body_of(client(counts_host({})).get("/v1/metadata", params={"store": "w"}))
    assert [task["task"] for task in everywhere["tasks"]] == ["0_0", "0_1", "0_2"]


READ = {"kind": "range", "query": {"start": "", "end": None}, "after": None, "limit": 5, "max_lag_records": None,
        "max_lag_ms": None, "at_least": ""}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "all"},
        {"query": {"start": "x"}},
        {"query": {"more": 1}},
        {"kind": "windows", "query": {"key": None, "from_ms": -1, "to_ms": 5}},
        {"kind": "windows", "query": {"key": None, "from_ms": "a", "to_ms": 5}},
        {"kind": "keys", "query": {"keys": ["00"] * 11}},
        {"kind": "windows", "query": {"key": None, "from_ms": 0, "to_ms": 5}},
        {"after": 7},
        {"after": [0, "x"]},
        {"limit": 0},
        {"at_least": "zero"},
        {"max_lag_ms": None, "limit": None},
        {"query": {"start": None, "end": None}},
        {"kind": "windows", "query": {"key": None, "from_ms": 0.5, "to_ms": 5}},
        {"after": [float("inf"), ""]},
        {"max_lag_ms": "5"},
        {"at_least": 5},
        {"limit": True},
    ],
)
def test_should_refuse_a_read_of_another_process_that_it_does_not_understand(changed):
    asked = client(counts_host({}), query_page_records=10)
    # The client's own JSON has no infinity.
    body, kind = json.dumps({**READ, **changed}), {"Content-Type": "application/json"}
    problem(asked.post("/v1/stores/n/tasks/0_0", content=body, headers=kind), 422)


def test_should_bound_the_reads_of_other_processes():
    asked = client(counts_host({b"%03d" % n: n for n in range(100)}, tasks=1), query_page_records=10)
    answer = TaskAnswer.from_arrow(asked.post("/v1/stores/n/tasks/0_0", json={**READ, "limit": 10**9}).content)
    assert answer.table.num_rows == 10
    assert answer.last is not None
    problem(asked.post("/v1/stores/n/tasks/0_9", json=READ), 422)
    problem(asked.post("/v1/stores/n/tasks/0_1", json=READ), 503)


def test_metrics_should_need_their_own_scope_which_reads_no_store():
    host = counts_host({b"a": 5})
    answer = client(host, token="scraper").get("/metrics")
    assert (answer.status_code, answer.content) == (200, SCRAPED)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "scope metrics" in problem(client(host, token="all").get("/metrics"), 403)["remedy"]
    problem(client(host, token=None).get("/metrics"), 401)
    problem(client(host, token="wrong").get("/metrics"), 401)
    problem(client(host, token="scraper").get("/v1/stores/n/key", params={"key": "a"}), 403)
    assert body_of(client(host, token="scraper").get("/v1/stores"))["stores"] == []
