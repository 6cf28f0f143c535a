"""Queries of real instances and a real standby over HTTP, while they commit, rebalance and stop."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.counting import NO_PROBE, PARTITIONS, CountingApp, in_thread
from tests.support.truth.topics import end_offsets, read_all

from tidemark.commit.record import CommitRecord
from tidemark.instance.assembly import make_instance
from tidemark.kafka.topics import partition_counts
from tidemark.metrics import table
from tidemark.metrics.metric import Metric, MetricSource
from tidemark.names import changelog_topic, commits_topic, endpoints_topic
from tidemark.processes import wait_until
from tidemark.queries.access import token_file
from tidemark.queries.tls import trusted
from tidemark.standby.process import run_standby
from tidemark.supervision.run_file import QUERY_ERROR, QUERY_URL, read_run_file, run_file_path, standby_file_path
from tidemark.tasks.values import value_layouts

pytestmark = pytest.mark.broker


@pytest.fixture
def app(settings, admin, unique):
    return CountingApp(
        settings.model_copy(update={"query_port": 0, "query_timeout_ms": 30_000}), admin, unique("queried")
    )


@contextmanager
def running(app: CountingApp, number: int = 0, probe=NO_PROBE, settings=None):
    """An instance that runs until the block ends; gives its client."""
    used = settings or app.settings
    instance = make_instance(app.plan, used, number, "counting", probe)
    with in_thread(instance, app.make_source(instance, threading.Event())) as failures:
        path = run_file_path(used.var_dir, app.name, number)
        yield client_of(app, lambda: (read_run_file(path) or {}).get(QUERY_URL))
    assert failures == []


@contextmanager
def standing_by(app: CountingApp):
    """A standby that follows until the block ends; gives its client."""
    stop = threading.Event()
    thread = threading.Thread(
        target=run_standby, args=(app.plan, app.settings, 0, "counting", stop, lambda _: None), daemon=True
    )
    thread.start()
    try:
        path = standby_file_path(app.settings.var_dir, app.name, 0)
        yield client_of(app, lambda: (read_run_file(path) or {}).get(QUERY_URL))
    finally:
        stop.set()
        thread.join(60)


def client_of(app: CountingApp, url) -> httpx.Client:
    assert wait_until(url, 60)
    (token,) = json.loads(token_file(app.settings.var_dir, app.name).read_text())
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url(), headers=headers, timeout=60, verify=trusted(app.settings))


def value(client: httpx.Client, key: str, **bounds) -> tuple[int | None, dict]:
    """The count of a key and the position of the answer; None while nobody answers, which only 503 may say."""
    answer = client.get("/v1/stores/n/key", params={"key": key, **bounds})
    if answer.status_code == 503:
        assert answer.headers["Retry-After"]
        assert answer.json()["detail"]
        return None, {}
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return (body["entry"]["value"]["n"] if body["entry"] else 0), body["positions"][0]


def folded(app: CountingApp) -> dict[str, int]:
    """What the changelog holds, which an instance never read to answer."""
    layout = value_layouts(app.plan.subtopologies[0])["n"]
    rows = read_all(app.settings.bootstrap_servers, [changelog_topic(app.name, "n")])
    held = {row.key: row.value for found in rows.values() for row in found}
    return {key.decode(): int(layout.decode([v])["f0"][0]) for key, v in held.items() if v is not None}


def everything(client: httpx.Client, limit: int = 37, **bounds) -> dict[str, int] | None:
    """All counts, page by page; None if nobody answers, which only 503 may say."""
    found: dict[str, int] = {}
    cursor: dict[str, str] = {}
    while True:
        answer = client.get("/v1/stores/n/range", params={"limit": limit, **cursor, **bounds})
        if answer.status_code == 503:
            assert answer.json()["detail"]
            return None
        assert answer.status_code == 200, answer.text
        body = answer.json()
        for entry in body["entries"]:
            assert entry["key"] not in found
            found[entry["key"]] = entry["value"]["n"]
        if body["cursor"] is None:
            return found
        cursor = {"cursor": body["cursor"]}


def is_level(app: CountingApp, client: httpx.Client) -> bool:
    return everything(client) == dict(app.expected)


def test_should_answer_through_either_of_two_instances_while_they_commit_and_rebalance(app):
    app.feed(2000)
    with running(app, 0) as first:
        assert wait_until(lambda: is_level(app, first), 60)
        before = dict(app.expected)
        with running(app, 1) as second:
            clients = {"0": first, "1": second}
            highest: Counter[str] = Counter(before)
            keys = sorted(app.expected)[:20]
            app.feed(2000)
            fed = Counter(app.expected)

            def two_owners() -> bool:
                answer = first.get("/v1/metadata", params={"store": "n"}).json()
                active = {c["holder"] for t in answer["tasks"] for c in t["copies"] if c["state"] == "active"}
                return active == {"0", "1"}

            def look() -> bool:
                """A count never falls, is never more than was fed, and every answer is the owner's."""
                for key in keys:
                    for client in clients.values():
                        found, position = value(client, key)
                        if found is not None:
                            assert highest[key] <= found <= fed[key]
                            assert position["role"] == "active"
                            highest[key] = found
                return two_owners() and all(is_level(app, client) for client in clients.values())

            assert wait_until(look, 90)
            assert everything(first) == everything(second) == folded(app) == dict(fed)
            counts = [c.get("/v1/stores/n/count").json()["count"] for c in clients.values()]
            assert counts == [len(fed)] * 2
            asked = {"keys": [*keys, "no such key", ""]}
            for client in clients.values():
                body = client.post("/v1/stores/n/keys", json=asked).json()
                assert {e["key"]: e["value"]["n"] for e in body["entries"]} == {key: fed[key] for key in keys}
                prefixed = client.get("/v1/stores/n/range", params={"prefix": "k0001", "limit": 1000}).json()
                assert {e["key"] for e in prefixed["entries"]} == {key for key in fed if key.startswith("k0001")}
        # The second instance has stopped: its keys are the first one's.
        assert wait_until(lambda: is_level(app, first), 60)


def test_should_never_show_a_value_before_it_is_committed(app):
    app.feed(200, keys=10)
    reached, may_go_on, blocks = threading.Event(), threading.Event(), threading.Event()

    def probe(point: str) -> None:
        # Outputs, changelog, commit record and offsets are written, and the transaction is open.
        if point == "5-offsets" and blocks.is_set():
            reached.set()
            assert may_go_on.wait(120)

    with ExitStack() as cleanup:
        # Its transaction stays open while the test asks.
        patient = app.settings.model_copy(update={"transaction_timeout_ms": 60_000})
        client = cleanup.enter_context(running(app, 0, probe, patient))
        cleanup.callback(may_go_on.set)
        assert wait_until(lambda: is_level(app, client), 60)
        before = dict(app.expected)
        blocks.set()
        app.feed(200, keys=10)
        assert reached.wait(60)
        assert everything(client) == before
        found, position = value(client, "k00000")
        assert (found, position["lag_records"]) == (before["k00000"], 0)
        blocks.clear()
        may_go_on.set()
        assert wait_until(lambda: is_level(app, client), 60)


def test_should_find_what_a_commit_record_and_an_earlier_answer_promise(app):
    app.feed(500)
    with running(app, 0) as client:
        assert wait_until(lambda: is_level(app, client), 60)
        rows = read_all(app.settings.bootstrap_servers, [commits_topic(app.name)])
        batches = {row.key.decode(): json.loads(row.value)["batch"] for found in rows.values() for row in found}
        assert len(batches) == PARTITIONS
        committed = ",".join(f"{task}@{batch}" for task, batch in batches.items())
        assert everything(client, at_least=committed) == dict(app.expected)
        (task, batch) = next(iter(batches.items()))
        later = client.get("/v1/stores/n/count", params={"at_least": f"{task}@{batch + 1}"})
        assert later.status_code == 503
        assert f"at_least is batch {batch + 1}" in later.json()["detail"]
        own = client.get("/v1/stores/n/count").json()["position"]
        assert everything(client, at_least=own) == dict(app.expected)


def test_should_answer_from_a_standby_when_the_instance_is_gone_and_say_so(app):
    app.settings = app.settings.model_copy(update={"standby_queue": "standbys"})
    app.feed(500)
    app.run()

    def same_rack() -> list[str] | None:
        return (read_run_file(standby_file_path(app.settings.var_dir, app.name, 0)) or {}).get("same_rack_tasks")

    with standing_by(app) as standby:
        app.feed(500)
        with running(app, 0) as client:
            assert wait_until(lambda: is_level(app, client), 60)
            own = client.get("/v1/stores/n/count").json()["position"]
            # Asked of the standby, the owner answers as long as it can be reached.
            assert wait_until(lambda: value(standby, "k00000")[1].get("role") == "active", 60)
            # It was to be on another machine.
            assert wait_until(lambda: same_rack() == ["0_0", "0_1"], 60)

        def answers_itself() -> bool:
            found, position = value(standby, "k00000", at_least=own)
            return found == app.expected["k00000"] and position["role"] == "standby"

        assert wait_until(answers_itself, 60)
        assert wait_until(lambda: same_rack() == [], 60)
        assert everything(standby, at_least=own) == folded(app) == dict(app.expected)
        _, position = value(standby, "k00000")
        assert position["holder"].startswith("standby-0@")
        assert position["end_offset"] >= position["changelog_offset"] > 0
        assert position["lag_ms"] >= 0
        fresh = standby.get("/v1/stores/n/key", params={"key": "k00000", "at_least": "0_0:999999,0_1:999999"})
        assert fresh.status_code == 503
        assert "at_least is 999999" in fresh.json()["detail"]
    assert endpoints_topic(app.name) in partition_counts(app.admin, app.settings)


def test_should_run_without_queries_if_they_cannot_be_answered(app):
    app.feed(100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        app.run(settings=app.settings.model_copy(update={"query_port": port}))
    said = read_run_file(run_file_path(app.settings.var_dir, app.name, 0))
    assert said[QUERY_URL] is None
    assert str(port) in said[QUERY_ERROR]
    assert "TIDEMARK_QUERY_PORT" in said[QUERY_ERROR]
    assert folded(app) == dict(app.expected)


def scraped(client: httpx.Client) -> dict[str, dict[frozenset[str], float]]:
    """The values of a scrape by metric and by the values of its labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    found: dict[str, dict[frozenset[str], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.values())] = sample.value
    return found


def counted_by_commit_records(app: CountingApp) -> dict[str, Counter[frozenset[str]]]:
    """What counters must show of instance 0, from the records that it has committed."""
    rows = read_all(app.settings.bootstrap_servers, [commits_topic(app.name)])
    records = [CommitRecord.from_bytes(row.value) for found in rows.values() for row in found]
    counted: dict[str, Counter[frozenset[str]]] = defaultdict(Counter)

    def count(metric: Metric, records: int, *labels: str) -> None:
        counted[metric.name][frozenset([app.name, "0", *labels])] += records

    for record in records:
        task = str(record.task)
        count(table.PROCESS_BATCHES, 1, task)
        count(table.PROCESS_RECORDS, record.rows + record.filtered_rows + record.bad_rows, task)
        count(table.STATE_ROWS, record.rows, task)
        count(table.FILTERED_RECORDS, record.filtered_rows, task)
        count(table.DROPPED_RECORDS, record.late_rows, task, "late")
        count(table.DROPPED_RECORDS, record.bad_rows, task, "bad")
        for topic, sent in record.sinks.items():
            count(table.PRODUCED_RECORDS, sent, task, topic)
        for sent in record.changelogs.values():
            count(table.STORE_PUTS, sent, task, "n")
    for kind, _ in {(record.kind, record.commit_time_ms) for record in records}:
        count(table.COMMITS, 1, kind)
    return counted


def named(*sources: MetricSource) -> set[str]:
    return {metric.name for metric in table.METRICS if metric.source in sources}


ONLY_SOMETIMES = {
    metric.name
    for metric in (
        table.DEAD_LETTERS, table.RESTORES, table.RESTORE_RECORDS, table.RESTORE_DURATION, table.RESTORE_REMAINING,
    )
}  # fmt: skip


def test_metrics_of_an_instance_and_of_its_standby_should_be_what_is_committed(app):
    app.feed(2000)
    with running(app) as client, standing_by(app) as standby:
        assert wait_until(lambda: is_level(app, client), 60)

        found = {}

        def is_level_and_counted() -> bool:
            expected = counted_by_commit_records(app)
            found.clear()
            found.update(scraped(client))
            lags, reachable = (found.get(metric.name, {}) for metric in (table.RECORDS_LAG, table.BROKER_REACHABLE))
            return (list(lags.values()), set(reachable.values())) == ([0] * PARTITIONS, {1}) and all(
                {labels: value for labels, value in found[name].items() if value}
                == {k: v for k, v in counts.items() if v}
                for name, counts in expected.items()
            )

        # An instance counts a commit a moment after its stores were written, and asks for its lag every few seconds.
        assert wait_until(is_level_and_counted, 60), (counted_by_commit_records(app), found)
        assert sum(found[table.PROCESS_RECORDS.name].values()) == 2000
        assert found.keys() == named(MetricSource.INSTANCE, MetricSource.INSTANCE_AND_STANDBY) - ONLY_SOMETIMES
        assert found[table.STATE.name][frozenset([app.name, "0", "RUNNING"])] == 1
        offsets = found[table.COMMITTED_OFFSET.name]
        ends = end_offsets(
            app.settings.bootstrap_servers, [(f"{app.name}-in", p) for p in range(PARTITIONS)], "read_committed"
        )
        assert offsets == {frozenset([app.name, "0", f"0_{p}", topic]): end for (topic, p), end in ends.items()}

        changelog = read_all(app.settings.bootstrap_servers, [changelog_topic(app.name, "n")])

        def is_followed() -> bool:
            copies = scraped(standby)
            lags, records = copies[table.STANDBY_LAG.name], copies[table.STANDBY_RECORDS.name]
            whole = copies[table.STANDBY_WHOLE.name]
            return (
                set(lags.values()) == {0}
                and set(whole.values()) == {1}
                and sum(records.values()) == sum(map(len, changelog.values()))
            )

        assert wait_until(is_followed, 60), scraped(standby)
        shown = named(MetricSource.STANDBY, MetricSource.INSTANCE_AND_STANDBY)
        assert scraped(standby).keys() == shown
