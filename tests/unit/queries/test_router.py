"""Which process answers: the owner, else a standby, else nobody, and then who restores is named."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace

import httpx
import pytest
from tests.support.queries import ALL_TASKS, counts_host, queried_plan

from tidemark.names import TaskId
from tidemark.queries import router as routing
from tidemark.queries.catalog import Catalog
from tidemark.queries.cursor import Cursor
from tidemark.queries.endpoints import Endpoint, has_distant_standby, tasks_in_same_rack
from tidemark.queries.errors import PositionGone, QueryInvalid, StateUnavailable
from tidemark.queries.hosts import CopyState, StoreRestore
from tidemark.queries.peers import LAUNCH, Peers, between_processes
from tidemark.queries.position import ChangelogOffset, ReadBounds
from tidemark.queries.query import RangeQuery
from tidemark.queries.router import Request, Router
from tidemark.queries.store_reader import Deadline
from tidemark.queries.task_read import TaskRead
from tidemark.registry.description import with_generations

CATALOG = Catalog.of(queried_plan())
N = CATALOG.store("n")
RANGE = RangeQuery()
COUNTS = {b"k%d" % n: n for n in range(30)}


class Wire:
    """What `Peers` does, without a network: processes by address; one that is not there does not answer."""

    def __init__(self, hosts) -> None:
        self.hosts = hosts
        self.asked: list[str] = []
        self.seconds: list[float] = []
        self.silent: set[str] = set()

    def is_silent(self, url: str) -> bool:
        return url in self.silent

    def note_silent(self, url: str) -> None:
        self.silent.add(url)

    def post(self, url, path, body, authorization, answer_s):
        self.asked.append(url)
        self.seconds.append(answer_s)
        assert authorization == "Bearer t"
        host = self.hosts.get(url)
        if host is None:
            self.silent.add(url)
            raise StateUnavailable(f"{url} does not answer (ConnectError)", "look")
        router = Router(CATALOG, ALL_TASKS, host, list, Wire({}))
        try:
            task, read = TaskId.parse(path.rpartition("/")[2]), TaskRead.from_dict(json.loads(json.dumps(body)))
            answer = router.local(N, task, read, Deadline.after(10_000))
        except StateUnavailable as refused:
            return httpx.Response(503, json=refused.to_dict())
        return httpx.Response(200, content=answer.to_arrow(), headers={LAUNCH: url})

    def close(self) -> None:
        return


def endpoint(host, url: str, rack: str = "b") -> Endpoint:
    return Endpoint.from_bytes(host.holder, Endpoint.of(host, url, rack, url).to_bytes())


def request(**bounds) -> Request:
    # A clock that stands still, so that nothing takes time.
    return Request(ReadBounds(**bounds), Deadline(10.0, 10_000, lambda: 0.0), "Bearer t")


def router(own, hosts) -> tuple[Router, Wire]:
    wire = Wire(hosts)
    others = [endpoint(host, url) for url, host in hosts.items() if host is not None]
    return Router(CATALOG, ALL_TASKS, own, lambda: others, wire), wire


def as_counts(answer) -> dict[bytes, int]:
    return {row["key"]: row["value"]["n"] for row in answer.table.to_pylist()}


def split(tasks, **more):
    """A host of some of the tasks."""
    host = counts_host(COUNTS, **more)
    host.held = {task: stores for task, stores in host.held.items() if task in tasks}
    return host


def test_should_ask_the_owner_of_each_key_and_task():
    own, other = split(ALL_TASKS[:1]), split(ALL_TASKS[1:], name="1")
    asked, wire = router(own, {"http://b": other})
    assert as_counts(asked.keys(N, list(COUNTS), request())) == COUNTS
    wire.asked.clear()
    everything = asked.scan(N, RANGE, None, 100, request())
    assert as_counts(everything) == COUNTS
    assert wire.asked == ["http://b"] * 2
    assert [p.holder for p in everything.positions] == ["0", "1", "1"]
    assert asked.count(N, False, request()).count == len(COUNTS)


def test_should_continue_a_page_in_the_task_where_it_ended():
    own, other = split(ALL_TASKS[:1]), split(ALL_TASKS[1:], name="1")
    asked, _ = router(own, {"http://b": other})
    for limit in (1, 4, 30, 31):
        found, cursor = {}, None
        while True:
            page = asked.scan(N, RANGE, cursor, limit, request())
            assert page.table.num_rows <= limit
            found |= as_counts(page)
            cursor = page.cursor
            if cursor is None:
                break
        assert found == COUNTS


def test_should_refuse_a_cursor_of_other_tasks_or_of_another_changelog(monkeypatch):
    """A key may lie in another task, or may be in this one and not in the one that was read."""
    before, after = counts_host(COUNTS), with_generations(queried_plan(), {"n": 2})
    monkeypatch.setattr(routing, "PAGE_BYTES", 1)
    pages = [router(before, {})[0].scan(N, RANGE, None, limit, request()) for limit in (1, 100)]
    assert [page.cursor.task for page in pages] == ALL_TASKS[:2]
    monkeypatch.undo()
    rescaled = Router(CATALOG, ALL_TASKS[:2], counts_host(COUNTS, tasks=2), list, Wire({}))
    rewritten = Router(Catalog.of(after), ALL_TASKS, before, list, Wire({}))
    for cursor in (Cursor.decode(page.cursor.encode()) for page in pages):
        with pytest.raises(PositionGone, match=r"3 tasks and generation 0 .* now has 2 tasks and generation 0"):
            rescaled.scan(N, RANGE, cursor, 100, request())
        with pytest.raises(PositionGone, match=r"3 tasks and generation 0 .* now has 3 tasks and generation 2"):
            rewritten.scan(rewritten.catalog.store("n"), RANGE, cursor, 100, request())
    found = rewritten.scan(rewritten.catalog.store("n"), RANGE, None, 100, request())
    assert as_counts(found) == COUNTS


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_should_end_a_page_of_several_tasks_when_their_results_fill_its_bytes(monkeypatch, spare):
    own, other = split(ALL_TASKS[:1]), split(ALL_TASKS[1:], name="1")
    asked, _ = router(own, {"http://b": other})
    sizes = [asked.scan(N, RANGE, None, 100, replace(request(), task=t)).results[0].size_bytes for t in ALL_TASKS]
    monkeypatch.setattr(routing, "PAGE_BYTES", sum(sizes[:2]) + spare)
    page = asked.scan(N, RANGE, None, 100, request())
    assert [position.task for position in page.positions] == ALL_TASKS[: 3 if spare > 0 else 2]
    found = as_counts(page)
    while page.cursor is not None:
        page = asked.scan(N, RANGE, page.cursor, 100, request())
        found |= as_counts(page)
    assert found == COUNTS


def test_should_call_a_position_gone_that_names_a_task_of_an_earlier_generation():
    own = counts_host(COUNTS, tasks=2)
    rewritten = Catalog.of(with_generations(queried_plan(), {"n": 2}))
    asked = Router(rewritten, ALL_TASKS[:2], own, list, Wire({}))
    for generation, refusal in ((1, PositionGone), (2, QueryInvalid)):
        bounds = {"least_offsets": {ALL_TASKS[2]: ChangelogOffset(5, generation)}}
        with pytest.raises(refusal, match="at_least names task 0_2, which store n does not have"):
            asked.count(rewritten.store("n"), False, request(**bounds))


def test_should_prefer_the_owner_to_its_own_standby_copy_and_use_that_without_one():
    own = counts_host(COUNTS, name="standby-0@a", state=CopyState.STANDBY, lag=3)
    owner = counts_host(COUNTS)
    asked, wire = router(own, {"http://a": owner})
    (position,) = asked.keys(N, [b"k1"], request()).positions
    assert (position.holder, wire.asked) == ("0", ["http://a"])
    wire.hosts["http://a"] = None
    (position,) = asked.keys(N, [b"k1"], request()).positions
    assert (position.holder, position.lag_records) == ("standby-0@a", 3)
    # The owner does not answer: the next query does not wait for it.
    wire.asked.clear()
    assert asked.keys(N, [b"k1"], request()).positions[0].holder == "standby-0@a"
    assert wire.asked == []
    with pytest.raises(StateUnavailable, match=r"lags by 3 records.*http://a does not answer"):
        asked.keys(N, [b"k1"], request(max_lag_records=2))


def test_should_take_a_standby_that_is_fresh_enough():
    stale = counts_host(COUNTS, name="standby-0@a", state=CopyState.STANDBY, lag=9)
    fresh = counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY, lag=1)
    asked, _ = router(stale, {"http://b": fresh})
    assert asked.keys(N, [b"k1"], request()).positions[0].holder == "standby-0@a"
    assert asked.keys(N, [b"k1"], request(max_lag_records=5)).positions[0].holder == "standby-0@b"


def test_should_keep_time_for_a_standby_that_may_answer_after_the_owner():
    owner, standby = counts_host(COUNTS), counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY)
    asked, wire = router(counts_host({}, tasks=0), {"http://a": owner, "http://b": standby})
    asked.keys(N, [b"k1"], request())
    wire.silent.add("http://b")
    asked.keys(N, [b"k1"], request())
    assert wire.seconds == [9.0, 10.0]
    wire.seconds.clear()
    wire.silent.clear()
    wire.hosts["http://a"] = None
    asked.keys(N, [b"k1"], request())
    assert wire.seconds == [9.0, 10.0]


def test_should_name_who_restores_and_how_far_it_is():
    restoring = counts_host({}, name="1", state=CopyState.RESTORING)
    restoring.restoring = [StoreRestore("n", number, 10, 90, 2.0) for number in range(3)]
    asked, wire = router(counts_host({}, tasks=0), {"http://b": restoring})
    with pytest.raises(
        StateUnavailable, match=r"1 restores it \(store n of partition \d is at offset 10 of 90, 2 s left\)"
    ):
        asked.keys(N, [b"k1"], request())
    assert wire.asked == []


def test_should_ask_a_standby_for_a_store_that_is_whole_although_another_one_is_being_built():
    standby = counts_host(COUNTS, name="standby-0@b", state=CopyState.RESTORING)
    standby.restoring = [StoreRestore("w", number, 10, 90, None) for number in range(3)]
    asked, wire = router(counts_host({}, tasks=0), {"http://a": None, "http://b": standby})
    assert asked.keys(N, [b"k1"], request()).positions[0].holder == "standby-0@b"
    standby.restoring = [StoreRestore("n", number, 10, 90, None) for number in range(3)]
    asked, wire = router(counts_host({}, tasks=0), {"http://b": standby})
    with pytest.raises(StateUnavailable, match=r"standby-0@b restores it \(store n of partition"):
        asked.keys(N, [b"k1"], request())
    assert wire.asked == []


@pytest.mark.parametrize(("status", "kind"), [(422, QueryInvalid), (410, PositionGone), (503, StateUnavailable)])
def test_should_say_what_another_process_has_said_if_no_other_can_answer_better(status, kind):
    body = json.dumps({"detail": "the store has no snapshots", "remedy": "add snapshot()"}).encode()
    said = routing.refusal(Endpoint("1", "http://b", {}), status, body)
    assert type(said) is kind


def test_should_show_every_copy_of_a_key():
    own, standby = counts_host(COUNTS), counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY, lag=2)
    asked, wire = router(own, {"http://b": standby})
    (task,) = asked.metadata(N, b"k1", request())
    assert [(c["holder"], c["state"], c["position"]["lag_records"]) for c in task["copies"]] == [
        ("0", "active", 0),
        ("standby-0@b", "standby", 2),
    ]
    assert ([c["rack"] for c in task["copies"]], task["standby_in_other_rack"]) == (["", "b"], True)
    wire.hosts["http://b"] = None
    (task,) = asked.metadata(N, b"k1", request())
    assert "does not answer" in task["copies"][1]["unavailable"]
    assert task["standby_in_other_rack"] is False


def test_should_ask_a_machine_that_is_lost_once_about_all_its_tasks():
    asked, wire = router(counts_host({}, tasks=0), {"http://b": counts_host(COUNTS, name="1")})
    wire.hosts["http://b"] = None
    tasks = asked.metadata(N, None, request())
    assert wire.asked == ["http://b"]
    said = [copy["unavailable"] for task in tasks for copy in task["copies"]]
    assert said == ["http://b does not answer (ConnectError)", *["http://b did not answer a moment ago"] * 2]


def test_should_not_let_processes_that_stand_still_take_the_time_of_those_that_answer(monkeypatch):
    owner = counts_host(COUNTS, name="1")
    mute = [counts_host(COUNTS, name=f"standby-0@{n}", state=CopyState.STANDBY) for n in range(5)]
    near = counts_host(COUNTS, name="standby-0@near", state=CopyState.STANDBY)
    asked, wire = router(
        counts_host({}, tasks=0),
        {f"http://mute{n}": host for n, host in enumerate(mute)} | {"http://b": owner, "http://c": near},
    )
    all_are_asked = threading.Barrier(len(mute))
    answer = wire.post

    def post(url, *given):
        if "mute" in url:
            # It answers nothing before all the others are asked, too.
            all_are_asked.wait(60)
            wire.silent.add(url)
            raise StateUnavailable(f"{url} does not answer (ReadTimeout)", "look")
        return answer(url, *given)

    monkeypatch.setattr(wire, "post", post)
    (task, *_) = asked.metadata(N, None, request())
    answering = [copy["holder"] for copy in task["copies"] if "position" in copy]
    assert answering == ["1", "standby-0@near"]
    assert {copy["unavailable"] for copy in task["copies"] if "position" not in copy} == {
        f"http://mute{n} does not answer (ReadTimeout)" for n in range(5)
    }


def test_should_claim_nothing_of_a_standby_that_there_was_no_time_to_ask():
    own, standby = counts_host(COUNTS), counts_host(COUNTS, name="standby-0@b", state=CopyState.STANDBY)
    asked, wire = router(own, {"http://b": standby})
    late = replace(request(), deadline=Deadline(10.0, 10_000, lambda: 9.99))
    (task,) = asked.metadata(N, b"k1", late)
    assert (wire.asked, task["standby_in_other_rack"]) == ([], None)
    assert task["copies"][1]["unavailable"] == "there was no time left to ask standby-0@b"
    assert "position" in task["copies"][0]


@pytest.mark.parametrize(
    ("launch", "also", "is_silent"),
    [
        (None, ", or one of an earlier version of Tidemark: run the same version everywhere", True),
        ("http://b", "", False),
    ],
)
def test_should_say_who_may_have_answered_instead_of_the_announced_process(launch, also, is_silent):
    asked, wire = router(counts_host({}), {})
    announced = Endpoint("1", "http://a", {}, launch="http://a")
    asked.require_announced(announced, "http://a")
    with pytest.raises(StateUnavailable) as refused:
        asked.require_announced(announced, launch)
    assert refused.value.detail == f"another process than 1 answers at http://a now{also}"
    assert wire.is_silent("http://a") is is_silent


def test_should_not_ask_another_process_without_time_for_its_answer():
    asked, wire = router(counts_host({}, tasks=0), {"http://b": counts_host(COUNTS, name="1")})
    late = replace(request(), deadline=Deadline(10.0, 10_000, lambda: 9.99))
    with pytest.raises(StateUnavailable, match="no time left to ask 1"):
        asked.keys(N, [b"k1"], late)
    assert wire.asked == []


def test_should_take_only_a_process_that_had_time_to_answer_for_silent():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # It accepts connections, and never answers.
        mute = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for url, answer_s, is_silent in ((mute, 0.01, False), (mute, 0.25, True), ("http://127.0.0.1:1", 0.02, True)):
            peers = Peers("app")
            with pytest.raises(StateUnavailable, match="does not answer"):
                peers.post(url, "/", {}, "Bearer t", answer_s)
            assert peers.is_silent(url) is is_silent
            peers.close()


@pytest.mark.parametrize(("answer_s", "left_ms"), [(10.0, 8000), (0.4, 320), (0.02, 16), (0.0001, 1)])
def test_should_leave_time_for_the_way_of_an_answer(answer_s, left_ms):
    assert between_processes("app", answer_s) == {"tidemark-application": "app", "tidemark-time-left-ms": str(left_ms)}


A, R, S = CopyState.ACTIVE, CopyState.RESTORING, CopyState.STANDBY


@pytest.mark.parametrize(
    ("holders", "is_distant"),
    [
        ([(A, "a"), (S, "b")], True),
        ([(A, "a"), (S, "a")], False),
        ([(A, "a"), (S, "a"), (S, "b")], True),
        ([(R, "a"), (S, "a")], False),
        ([(A, "a"), (R, "b"), (S, "b")], False),
        ([(A, "a")], False),
        ([(S, "b")], None),
        ([], None),
    ],
)
def test_should_say_whether_one_lost_rack_would_take_both_a_task_and_its_standby(holders, is_distant):
    task, other = TaskId(0, 0), TaskId(0, 1)
    endpoints = [Endpoint(str(n), "", {task: state}, rack=rack) for n, (state, rack) in enumerate(holders)]
    elsewhere = Endpoint("9", "", {other: S}, rack="z")
    held = [*endpoints, elsewhere]
    assert has_distant_standby(task, held, held) is is_distant
    standbys = [endpoint for endpoint in held if endpoint.copies.get(task) is S]
    assert has_distant_standby(task, held, standbys) is is_distant
    assert not has_distant_standby(task, held, [])


def test_a_standby_that_still_restores_should_not_be_taken_for_an_instance_of_its_rack():
    task = TaskId(0, 0)
    instance = Endpoint("0", "", {task: A}, rack="a")
    level = Endpoint("standby-0@one", "", {task: S}, rack="b")
    restoring = Endpoint("standby-1@two", "", {task: R}, rack="b")
    everyone = [instance, level, restoring]
    assert has_distant_standby(task, everyone, everyone) is True
    assert has_distant_standby(task, [level, restoring], everyone) is None


def test_a_standby_should_know_which_instances_would_be_lost_together_with_it():
    first, second, third = (TaskId(0, number) for number in range(3))
    others = [
        Endpoint("0", "", {first: A}, rack="a"),
        Endpoint("1", "", {second: R, third: A}, rack="b"),
        Endpoint("standby-1@two", "", {first: R, second: S, third: S}, rack="c"),
    ]
    copies = {third: S, second: S, first: R}
    found = {rack: tasks_in_same_rack(Endpoint("standby-0@one", "", copies, rack=rack), others) for rack in "abc"}
    assert found == {"a": [first], "b": [second, third], "c": []}
    assert tasks_in_same_rack(Endpoint("standby-0@one", "", copies, rack="a"), []) == []
