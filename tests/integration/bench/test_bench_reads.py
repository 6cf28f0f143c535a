"""The client of the reads, the comparison of its answers with known counts, and the report."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench import peer
from bench.answers import faults, known_counts
from bench.case import PARTITIONS, WINDOW_MS
from bench.errors import BenchFailed
from bench.events import key_name
from bench.key_reads import Answer, Asked, Target, ask, owned, read
from bench.read_clients import Ceiling, Clients, ceiling
from bench.read_run import Load, Measured
from bench.reads_report import last_line, markdown
from bench.topologies.pulse_counting import topology
from tests.support.queries import HeldTasks, ScriptedChanges, fill
from tests.support.query_server import served
from tests.support.standby import count, in_window

from tidemark.kafka.partitioner import partitions_of
from tidemark.names import TaskId
from tidemark.queries.access import Tokens
from tidemark.queries.api import make_api
from tidemark.queries.catalog import Catalog
from tidemark.queries.part_source import LiveSources
from tidemark.queries.peers import Peers
from tidemark.queries.router import Router
from tidemark.settings import Settings
from tidemark.stores.memory import MemoryStore

START_MS = 1_700_000_040_000
LOAD = Load(keys=10, rate=10, history=2, seconds=1)
ASKED = Asked(LOAD.keys, START_MS, START_MS + 10 * WINDOW_MS, 1)
# Each key has 60 events in each of two windows, and then up to 3 in the next one.
LEAST, MOST = (known_counts(LOAD.case, events, 3) for events in (LOAD.history_events, LOAD.history_events + 30))
STORE = "pulse-counts"


def answer(*counts: int, key: int = 7, **changed: object) -> Answer:
    """An answer with these counts in the first windows. `changed` are fields of its last entry."""
    entries = [
        {
            "key": key_name(key),
            "window_start_ms": START_MS + window * WINDOW_MS,
            "window_end_ms": START_MS + (window + 1) * WINDOW_MS,
            "value": {"pulses": counted},
        }
        for window, counted in enumerate(counts)
    ]
    entries[-1] |= changed
    return Answer(key, json.dumps({"entries": entries}).encode())


@pytest.mark.parametrize("live", [(), (1,), (3,)])
def test_should_accept_any_count_that_may_be_known_at_the_time(live: tuple[int, ...]) -> None:
    assert faults([answer(60, 60, *live)], LEAST, MOST, START_MS) == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (answer(60), "counts [60, 0, 0]"),
        (answer(60, 59), "counts [60, 59, 0]"),
        (answer(60, 61), "counts [60, 61, 0]"),
        (answer(60, 60, 4), "counts [60, 60, 4]"),
        (answer(60, 60, window_start_ms=START_MS), "there is no window"),
        (answer(60, 60, 0, 1), "there is no window"),
        (answer(60, 60, window_start_ms=START_MS, window_end_ms=START_MS + WINDOW_MS), "window 0 twice"),
        (answer(60, 60, value={}), "cannot be read"),
        (replace(answer(60, 60, key=8), key=7), "another key"),
        (Answer(7, b"{"), "cannot be read"),
    ],
)
def test_should_find_what_is_wrong_in_an_answer(found: Answer, fault: str) -> None:
    (said,) = faults([answer(60, 60), found], LEAST, MOST, START_MS)
    assert fault in said
    assert said.startswith("p00007")


@contextmanager
def answering(*parts: bytes) -> Iterator[Target]:
    """A server of one connection, which answers each request with these parts one after another, or closes it without any."""

    def serve() -> None:
        accepted, _ = listening.accept()
        with accepted:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while accepted.recv(1 << 16) and parts:
                for part in parts:
                    accepted.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Target("127.0.0.1", listening.getsockname()[1], "/windows")
        thread.join(30)
        assert not thread.is_alive()


def test_should_put_an_answer_together_from_its_parts() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\n\r\n", b"he", b"llo") as target:
        assert ask(target, ASKED, [3, 4]) == [Answer(3, b"hello"), Answer(4, b"hello")]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nwhy!",), "503.*why!"),
        ((), "closed the connection"),
    ],
)
def test_should_end_with_what_a_server_says_instead_of_an_answer(parts: tuple[bytes, ...], said: str) -> None:
    with answering(*parts) as target, pytest.raises(BenchFailed, match=said):
        read([(0, target)], ASKED, 0.0, time.monotonic() + 30)


def test_should_measure_only_the_reads_of_its_time() -> None:
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as target:
        before = read([(0, target)], ASKED, time.monotonic() + 60, time.monotonic() + 0.1)
    assert (len(before.latencies_ms), before.answers, before.cpu_s) == (0, [], 0.0)
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as target:
        since_s = time.monotonic()
        found = read([(0, target)], ASKED, since_s, since_s + 1)
    assert 0 < len(found.answers) <= len(found.latencies_ms)
    assert 0 < found.latencies_ms.min() <= found.latencies_ms.max() <= 1000
    assert len({each.key for each in found.answers}) > 1


def test_should_ask_an_instance_for_keys_of_its_partitions_only() -> None:
    keys = np.arange(1000)
    parts = [owned(Target("", 0, "", partitions=frozenset({number})), keys) for number in range(PARTITIONS)]
    assert all(
        set(partitions_of([key_name(key).encode() for key in part], PARTITIONS)) == {number}
        for number, part in enumerate(parts)
    )
    assert sorted(np.concatenate(parts)) == keys.tolist()
    assert owned(Target("", 0, ""), keys) is keys


def test_instances_of_the_peer_should_be_members_of_their_own() -> None:
    first, second = (
        peer.properties(LOAD.case, "127.0.0.1:1", Path("state"), instance, 2, {}).splitlines() for instance in (0, 1)
    )
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == [
        ("group.instance.id=streams-peer-0", "group.instance.id=streams-peer-1")
    ]


def test_should_know_what_the_clients_can_do_by_themselves() -> None:
    with Clients(2, 3) as clients:
        alone = ceiling(clients, 1.0)
    assert alone.reads_per_s > 0
    assert alone.client_us > 0


def test_should_read_the_store_of_an_instance() -> None:
    plan = topology().plan()
    segment_ms = next(spec.segment_ms for spec in plan.stores if spec.name == STORE)
    tasks = [TaskId(0, partition) for partition in range(PARTITIONS)]
    held = {task: {STORE: MemoryStore()} for task in tasks}
    names = [key_name(key).encode() for key in range(LOAD.keys)]
    for name, partition, counts in zip(names, partitions_of(names, PARTITIONS), MOST.T, strict=True):
        starts = [START_MS + window * WINDOW_MS for window in range(len(counts))]
        stored = {
            (start // segment_ms, in_window(name, start)): count(int(n))
            for start, n in zip(starts, counts, strict=True)
        }
        fill(held[TaskId(0, int(partition))][STORE], stored)
    settings = Settings(query_requests_per_second=0, query_timeout_ms=60_000)
    router = Router(Catalog.of(plan), tasks, HeldTasks(held=held), list, Peers(plan.application_id))
    tokens = Tokens(plan.application_id, {"secret": ["read"]})
    api = make_api(router, bytes, tokens, settings, "1", LiveSources(ScriptedChanges(), None))
    with served(api, settings) as url:
        target = Target("127.0.0.1", int(url.rpartition(":")[2]), f"/v1/stores/{STORE}/windows", "secret")
        assert faults(ask(target, ASKED, list(range(LOAD.keys))), MOST, MOST, START_MS) == []
        since_s = time.monotonic()
        found = read([(0, target), (1, target)], ASKED, since_s, since_s + 1)
    assert faults(found.answers, MOST, MOST, START_MS) == []
    assert len(found.latencies_ms)


def test_should_report_each_number_of_instances_in_their_order() -> None:
    def one(side: str, instances: int, reads_per_s: float, stream: float) -> Measured:
        return Measured(side, instances, 0, reads_per_s, 1.0, 2.0, 100.0, stream, 30.0, 10, [])

    results = [
        one("tidemark", 1, 100.0, 100.0), one("kafka-streams", 1, 400.0, 99.0),
        one("tidemark", 3, 300.0, 98.0), one("kafka-streams", 3, 200.0, 97.0),
    ]  # fmt: skip
    assert last_line(results) == (
        "reads: tidemark=100,300 kafka_streams=400,200 ratio=0.25,1.50 p99_ms=2.0,2.0/2.0,2.0 "
        "stream=1.00,0.98/0.99,0.97 answers_right=true"
    )
    assert last_line([*results, replace(results[0], wrong=["p1"])]).endswith("answers_right=false")
    facts = {"when": "", "cores": 2, "cpu": "", "memory_gb": 1, "java": "", "kafka": "", "pyspark": ""}
    page = markdown(results, LOAD, 8, Ceiling(9000.0, 40.0), facts)
    assert "| 3 | reads per second | 300 | 200 | 1.50 |" in page
    assert "Answers compared: 40, wrong: 0." in page
    assert "9,000 reads per second" in page
