"""Reads of one task that another process holds: they are passed on as they are, to be answered from what that process holds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from fastapi import FastAPI
from tests.support.queries import ALL_TASKS, APP, HeldTasks, body_of, counts_host, fill, stored_key
from tests.support.query_server import served
from tests.support.standby import count as count_value
from tests.unit.queries.test_query_api import api_of, problem

from tidemark.names import TaskId
from tidemark.processes import wait_until
from tidemark.queries import api
from tidemark.queries.access import RateLimit
from tidemark.queries.answer_form import ARROW_STREAM
from tidemark.queries.endpoints import Endpoint
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import CopyState
from tidemark.queries.peers import APPLICATION, LAUNCH, PASSED_TASK
from tidemark.settings import Settings
from tidemark.topology.plan import StoreKind

COUNTS = {b"k%d" % n: n for n in range(30)}
ARROW = {"Accept": ARROW_STREAM}
PAGE = "/v1/stores/n/range?task=0_1&limit=2"


@dataclass
class Process:
    """A process with its server. `requests` are the method, path and passed task of what it was asked."""

    host: HeldTasks
    url: str = ""
    launch: str = "launch"
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def watched(self, app: FastAPI) -> Callable:
        async def noting(scope, receive, send):
            if scope["type"] == "http":
                passed = dict(scope["headers"]).get(PASSED_TASK.encode())
                self.requests.append((scope["method"], scope["path"], passed and passed.decode()))
            await app(scope, receive, send)

        return noting

    def endpoint(self) -> Endpoint:
        return Endpoint.of(self.host, self.url, "rack", self.launch)


class Processes:
    """Servers that know each other, and clients of them."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self.all: list[Process] = []

    def start(self, host: HeldTasks, others=None, **settings) -> tuple[Process, httpx.Client]:
        """Start a process. `others` are the endpoints that it knows; by default those of the processes before it."""
        known = [each.endpoint() for each in self.all] if others is None else others
        used = Settings(**{"query_requests_per_second": 0, "query_timeout_ms": 60_000, **settings})
        process = Process(host)
        process.url = self._opened.enter_context(
            served(process.watched(api_of(host, used, known, launch=process.launch)), used)
        )
        self.all.append(process)
        return process, self.client(process)

    def client(self, process: Process, token: str = "all") -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return self._opened.enter_context(
            httpx.Client(base_url=process.url, headers=headers, trust_env=False, timeout=60)
        )


@pytest.fixture
def processes():
    with ExitStack() as opened:
        yield Processes(opened)


def owner_of_everything() -> HeldTasks:
    host = counts_host(COUNTS, name="1")
    for stores in host.held.values():
        fill(stores["w"], {stored_key(StoreKind.WINDOW, b"k", 60_000 * n): count_value(n) for n in range(3)})
        fill(stores["s"], {stored_key(StoreKind.SESSION, b"k", 1_000, 2_000): count_value(9)})
    return host


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("GET", "/v1/stores/n/key?key=k7", {}),
        ("GET", "/v1/stores/n/key?key_hex=6b37", {}),
        ("GET", "/v1/stores/n/key?key=no%20such%2Fkey%E2%82%AC", {}),
        ("GET", "/v1/stores/n/key?key=k7", {"headers": ARROW}),
        ("POST", "/v1/stores/n/keys", {"json": {"keys": ["k7"], "keys_hex": ["6b37"]}}),
        ("POST", "/v1/stores/n/keys?task=0_1", {"json": {"keys": sorted(key.decode() for key in COUNTS)}}),
        ("GET", PAGE, {}),
        ("GET", PAGE, {"headers": ARROW}),
        ("POST", "/v1/stores/n/range?task=0_1", {"json": {"prefix": "k1", "limit": 3}}),
        ("GET", "/v1/stores/w/windows?key=k&from_ms=60000&limit=1", {}),
        ("POST", "/v1/stores/w/windows", {"json": {"key": "k"}}),
        ("GET", "/v1/stores/s/sessions?key=k", {}),
        ("GET", "/v1/stores/n/count?task=0_1", {}),
    ],
)
def test_should_give_the_answer_of_the_owner_as_it_is(processes, method, path, more):
    owner, direct = processes.start(owner_of_everything())
    front, asked = processes.start(HeldTasks())
    expected, found = direct.request(method, path, **more), asked.request(method, path, **more)
    assert expected.status_code == 200
    assert (found.status_code, found.content) == (200, expected.content)
    same = ("content-type", "content-length")
    assert [found.headers[name] for name in same] == [expected.headers[name] for name in same]
    # One request to the owner, on the route that was asked, for one task.
    (_, passed) = owner.requests
    assert passed[:2] == front.requests[0][:2]
    assert TaskId.parse(passed[2]) in ALL_TASKS


def test_should_follow_a_cursor_through_another_process(processes):
    processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks())
    found, more = [], ""
    while True:
        page = body_of(asked.get(PAGE + more))
        found += page["entries"]
        if page["cursor"] is None:
            break
        more = f"&cursor={page['cursor']}"
    assert [entry["key"] for entry in found] == sorted({entry["key"] for entry in found})
    assert len(found) == body_of(asked.get("/v1/stores/n/count?task=0_1"))["count"] > 2


def test_should_ask_each_process_for_its_part_of_a_read_of_several_tasks(processes):
    owner, _ = processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks())
    assert body_of(asked.get("/v1/stores/n/count"))["count"] == len(COUNTS)
    assert [request for request in owner.requests if request[2]] == []


def test_should_answer_a_read_that_was_passed_on_from_what_it_holds_alone(processes):
    owner, direct = processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks(name="5"))
    headers = {PASSED_TASK: "0_1"}
    refused = problem(asked.get("/v1/stores/n/count", headers=headers), 503)
    assert refused["detail"] == "5 does not hold task 0_1"
    assert owner.requests == []
    assert body_of(direct.get("/v1/stores/n/count", headers=headers))["count"] < len(COUNTS)
    problem(direct.get("/v1/stores/n/count", headers={PASSED_TASK: "0_9"}), 422)
    problem(direct.get("/v1/stores/n/count", headers={PASSED_TASK: "x"}), 422)


def test_should_let_the_owner_judge_how_old_an_answer_may_be_and_ask_it_once(processes):
    owner, _ = processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks())
    path = "/v1/stores/n/key?key=k7&at_least="
    position = body_of(asked.get(path))["position"]
    task = position.partition(":")[0]
    assert body_of(asked.get(path + position))["position"] == position
    owner.requests.clear()
    answer = asked.get(f"{path}{task}:99")
    refused = problem(answer, 503)
    assert f"1: active task {task} of 1 is at changelog offset 10, at_least is 99" in refused["detail"]
    assert refused["detail"].startswith(f"no process can answer for task {task} of store n: ")
    assert answer.headers["Retry-After"] == "1"
    assert len(owner.requests) == 1


def test_should_take_a_standby_when_the_owner_refuses(processes):
    def not_now(task, store):
        raise StateUnavailable(f"task {task} is leaving instance 1", "ask again")

    owner = owner_of_everything()
    owner.open = not_now
    first, _ = processes.start(owner)
    standby, _ = processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY, lag=2), others=[])
    _, asked = processes.start(HeldTasks())
    body = body_of(asked.get("/v1/stores/n/key?key=k7"))
    assert (body["entry"]["value"]["n"], body["positions"][0]["holder"]) == (7, "standby-0@b")
    assert [len(each.requests) for each in (first, standby)] == [1, 1]
    refused = problem(asked.get("/v1/stores/n/key?key=k7&max_lag_records=1"), 503)
    assert "1: task" in refused["detail"]
    assert "lags by 2 records" in refused["detail"]


@pytest.mark.parametrize("path", ["/v1/stores/n/key?key=k7", "/v1/stores/n/count"])
def test_should_leave_time_for_a_standby_when_the_owner_stands_still(processes, path):
    is_over = threading.Event()

    def stand_still(task, store):
        is_over.wait(60)
        raise StateUnavailable("over", "ask again")

    owner = owner_of_everything()
    owner.open = stand_still
    processes.start(owner)
    processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY), others=[])
    _, asked = processes.start(HeldTasks(), query_timeout_ms=8_000)
    try:
        assert {each["holder"] for each in body_of(asked.get(path))["positions"]} == {"standby-0@b"}
    finally:
        is_over.set()


class Endless:
    """A snapshot with more keys than anybody can read, none of which is a result."""

    def segments(self):
        return [0]

    def range(self, segment, start, end):
        return ((b"%020d" % number, b"") for number in itertools.count())

    def release(self):
        return


def test_should_pass_on_a_page_that_ends_because_the_time_is_over(processes, monkeypatch):
    owner = owner_of_everything()
    opened = owner.open

    def open_endless(task, store):
        return replace(opened(task, store), snapshot=Endless())

    owner.open = open_endless
    processes.start(owner)
    _, asked = processes.start(HeldTasks(), query_timeout_ms=4_000)
    monkeypatch.setattr("tidemark.queries.peers._READING", 0.3)
    for path in ("/v1/stores/w/windows?task=0_1&from_ms=1&to_ms=2", "/v1/stores/w/windows?from_ms=1&to_ms=2"):
        page = body_of(asked.get(path))
        assert page["entries"] == []
        assert page["cursor"]


def test_should_not_answer_for_another_application(processes):
    _, direct = processes.start(owner_of_everything())
    path = "/v1/stores/n/key?key=k7"
    body_of(direct.get(path, headers={APPLICATION: APP}))
    refused = problem(direct.get(path, headers={APPLICATION: "other"}), 503)
    assert refused["detail"] == f"this is a process of {APP}, not of other"


class Stranger(BaseHTTPRequestHandler):
    """A server of something else that answers everything with 200."""

    protocol_version = "HTTP/1.1"
    body, headers_more = b'{"entry": null}', {}

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        for name, value in {"Content-Length": str(len(self.body)), **self.headers_more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_):
        return


@contextmanager
def stranger(**more):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Other", (Stranger,), more))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


ALL_READS = ("/v1/stores/n/key?key=k7", "/v1/stores/n/count", "/v1/stores/n/export?task=0_1", "/v1/metadata?store=n")


@pytest.mark.parametrize("path", ALL_READS)
@pytest.mark.parametrize("more", [{}, {"headers_more": {LAUNCH: "another"}}, {"body": b""}])
def test_should_not_believe_the_server_that_has_got_the_port_of_a_dead_process(processes, path, more):
    with stranger(**more) as url:
        dead = replace(Process(owner_of_everything()).endpoint(), url=url)
        standby, _ = processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY), others=[])
        _, asked = processes.start(HeldTasks(), others=[dead, standby.endpoint()])
        answer = asked.get(path)
        assert answer.status_code == 200
        assert b'"entry": null' not in answer.content
        if path.startswith("/v1/metadata"):
            (first, second) = answer.json()["tasks"][0]["copies"]
            assert (second["holder"], "position" in second) == ("standby-0@b", True)
            assert "position" not in first
        else:
            assert b"standby-0@b" in answer.content


def test_should_ask_the_next_holder_when_an_answer_cannot_be_read(processes):
    # A process of another version, for example, may write its answer in another form.
    with stranger(body=b"no Arrow", headers_more={LAUNCH: "launch"}) as url:
        other = replace(Process(owner_of_everything()).endpoint(), url=url)
        standby, _ = processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY), others=[])
        _, asked = processes.start(HeldTasks(), others=[other, standby.endpoint()])
        body = body_of(asked.get("/v1/stores/n/count"))
        assert (body["count"], {each["holder"] for each in body["positions"]}) == (len(COUNTS), {"standby-0@b"})
        _, alone = processes.start(HeldTasks(), others=[other])
        refused = problem(alone.get("/v1/stores/n/count"), 503)
        assert f"the answer of 1 at {url} cannot be read" in refused["detail"]


def test_should_not_read_the_body_of_a_read_that_has_none(processes, monkeypatch):
    processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks())
    monkeypatch.setattr("starlette.requests.Request.body", lambda _: pytest.fail("a body of any length was read"))
    assert body_of(asked.request("GET", "/v1/stores/n/key?key=k7", content=b"x"))["entry"]["value"] == {"n": 7}


def test_should_not_wait_again_for_an_owner_that_does_not_answer(processes, monkeypatch):
    monkeypatch.setattr("tidemark.queries.peers._SILENT_S", 3600)
    gone, _ = processes.start(owner_of_everything())
    gone.url = "http://127.0.0.1:1"
    standby, _ = processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY), others=[])
    _, asked = processes.start(HeldTasks())
    for _ in range(2):
        assert body_of(asked.get("/v1/stores/n/key?key=k7"))["positions"][0]["holder"] == "standby-0@b"
    # The first is asked for by way of a thread, after the owner did not answer; the second is passed on at once.
    assert [bool(passed) for _, _, passed in standby.requests] == [False, True]


def test_should_let_the_owner_judge_who_asks_for_how_often(processes, monkeypatch):
    # All requests come at one time.
    monkeypatch.setattr(api, "RateLimit", lambda per_second: RateLimit(per_second, lambda: 0.0))
    owner, _ = processes.start(owner_of_everything(), query_requests_per_second=1)
    front, _ = processes.start(HeldTasks())
    one = processes.client(front, "one")
    problem(one.get("/v1/stores/w/windows?key=k"), 403)
    problem(processes.client(front, "unknown").get("/v1/stores/n/key?key=k7"), 401)
    assert owner.requests == []
    # The owner lets other processes ask more often than a caller, and its refusal is not the reason for an older answer.
    processes.start(counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY), others=[])
    answers = [one.get("/v1/stores/n/key?key=k7") for _ in range(12)]
    limited = [answer for answer in answers if answer.status_code != 200]
    assert len(limited) == 2
    assert "1: more than 10 requests per second" in problem(limited[0], 429)["detail"]
    assert limited[0].headers["Retry-After"] == "1"


def test_should_refuse_what_is_not_valid_as_the_owner_does(processes):
    _, direct = processes.start(owner_of_everything(), query_page_records=5)
    _, asked = processes.start(HeldTasks(), query_page_records=5)
    for path in (
        "n/key", "n/key?key_hex=x", "n/windows?key=k", "w/windows?key=k&from_ms=2&to_ms=1",
        "w/windows?key=k&cursor=x", "n/key?key=k&task=0_9", "n/key?key=k&at_least=x",
    ):  # fmt: skip
        expected = direct.get(f"/v1/stores/{path}")
        assert problem(asked.get(f"/v1/stores/{path}"), 422) == problem(expected, 422)


def test_should_not_hash_a_very_long_key_in_the_event_loop(processes):
    owner, _ = processes.start(owner_of_everything())
    _, asked = processes.start(HeldTasks())
    for length, is_passed_on in ((4096, True), (4097, False)):
        owner.requests.clear()
        long = {"keys": ["k" * length]}
        assert body_of(asked.post("/v1/stores/n/keys", json=long))["entries"] == []
        assert [bool(passed) for _, _, passed in owner.requests] == [is_passed_on]


def test_two_processes_should_not_wait_for_each_others_threads(processes):
    known: list[Endpoint] = []
    hosts = [counts_host(COUNTS, name=name) for name in "01"]
    for number, host in enumerate(hosts):
        host.held = {task: stores for task, stores in host.held.items() if min(task.partition, 1) == number}
    opened, is_read, is_asked = hosts[0].open, threading.Event(), threading.Event()

    def open_late(task, store):
        # The thread of the first process is busy until the second has asked it.
        is_read.set()
        assert is_asked.wait(60)
        return opened(task, store)

    hosts[0].open = open_late
    first, asked = processes.start(hosts[0], known, query_threads=1, query_timeout_ms=20_000)
    second, other = processes.start(hosts[1], known, query_threads=1, query_timeout_ms=20_000)
    known += [first.endpoint(), second.endpoint()]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(asked.get, "/v1/stores/n/count")]
        try:
            assert is_read.wait(60)
            found.append(pool.submit(other.get, "/v1/stores/n/count"))
            assert wait_until(lambda: len(first.requests) == 2, 60)
        finally:
            is_asked.set()
        assert [body_of(each.result(60))["count"] for each in found] == [len(COUNTS)] * 2
