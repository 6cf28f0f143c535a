"""The checks of the chaos tests find lost, duplicated, wrong, aborted and reordered records, and nothing in a correct run."""

from __future__ import annotations

import json

import pytest
from tests.support.truth.topics import NOTHING_PAST, Past, Row
from tests.system.chaos import checks
from tests.system.chaos.findings import Findings
from tests.system.chaos.processor import REFUSED

T0 = 1_795_000_000_000
SOURCES = ("chaos-numbers", "chaos-queue", "chaos-events", "chaos-others")
SINKS = ("stats", "dequeued", "finals", "sessions", "pairs", "named", "totals", "kinds")


def row(topic, key, body, headers=()):
    value = body if isinstance(body, bytes | None) else json.dumps(body, separators=(",", ":")).encode()
    return Row(topic, 0, 0, T0 + 10, key.encode(), value, tuple(headers))


def letter(topic, offset):
    named = {"topic": topic, "partition": "0", "offset": str(offset)}
    return row("dlq", "any", b"", [(f"tidemark.{name}", value.encode()) for name, value in named.items()])


@pytest.fixture
def topics(monkeypatch):
    """Input, and exactly what follows from it; offsets are places in the list."""
    event = lambda at, v, kind="x": row("chaos-events", "i001", {"id": "i001", "ts": T0 + at, "v": v, "kind": kind})  # noqa: E731
    made = {
        "chaos-numbers": [row("chaos-numbers", "a", {"id": "a", "n": n}) for n in (3, 1, 5)],
        "chaos-stats": [
            row("chaos-stats", "a", {"least": 3, "greatest": 3, "total": 3, "times": 1}),
            row("chaos-stats", "a", {"least": 1, "greatest": 5, "total": 9, "times": 3}),
        ],
        "chaos-queue": [row("chaos-queue", "q", {"id": "q", "n": n}) for n in (1, 2, 4)],
        "chaos-dequeued": [row("chaos-dequeued", "q", {"id": "q", "n": n}) for n in (1, 2, 4)],
        "chaos-events": [event(0, 1000), event(1000, 1001), row("chaos-events", "i001", b"{"), event(1500, REFUSED)],
        "chaos-others": [row("chaos-others", "i001", {"id": "i001", "ts": T0 + 2500, "w": 7})],
        "chaos-finals": [],
        "chaos-sessions": [
            row("chaos-sessions", "i001", {"id": "i001", "window_start": T0, "window_end": T0 + 1000, "sum": 2001}),
            row(
                "chaos-sessions",
                "i001",
                {"id": "i001", "window_start": T0, "window_end": T0 + 1500, "sum": REFUSED + 2001},
            ),
        ],
        "chaos-pairs": [row("chaos-pairs", "i001", {"v": v, "w": 7}) for v in (1001, REFUSED)],
        "chaos-named": [row("chaos-named", "i001", {"v": v, "name": "name 1"}) for v in (1000, 1001, REFUSED)],
        "chaos-totals": [row("chaos-totals", "i001", {"id": "i001", "total": total}) for total in (1000, 2001)],
        "chaos-kinds": [row("chaos-kinds", "x", {"kind": "x", "total": REFUSED + 2001})],
        "dlq": [letter("chaos-events", 2), letter("chaos-events", 3)],
    }

    def read(_bootstrap, names, _timeout_s, past=NOTHING_PAST):
        rows = {(name, 0): [one._replace(offset=at) for at, one in enumerate(made[name])] for name in names}
        return {place: past.kept.get(place, []) + found for place, found in rows.items()}

    def each(_bootstrap, places, _timeout_s):
        return (one._replace(offset=at) for name, _ in places for at, one in enumerate(made[name]))

    monkeypatch.setattr(checks, "read_all", read)
    monkeypatch.setattr(checks, "each_row", each)
    monkeypatch.setattr(checks, "partitions", lambda _bootstrap, names: [(name, 0) for name in names])
    return made


def checked(may_double=False, **deleted):
    result = Findings()
    checks.check("nowhere", "dlq", result, may_double, **deleted)
    return result


def found(may_double=False):
    result = checked(may_double)
    return result.lost, result.duplicated, result.wrong


def test_should_find_no_fault_in_a_correct_run(topics):
    assert found() == (0, 0, 0)
    assert checked().records == sum(len(topics[name]) for name in SOURCES)


@pytest.mark.parametrize("sink", ["chaos-stats", "chaos-dequeued", "chaos-pairs", "chaos-named", "chaos-totals", "dlq"])
def test_should_find_lost_results(topics, sink):
    topics[sink].pop()
    lost, duplicated, wrong = found()
    assert lost > 0
    assert (duplicated, wrong) == (0, 0)


@pytest.mark.parametrize(
    "sink",
    [
        "chaos-stats",
        "chaos-dequeued",
        "chaos-sessions",
        "chaos-pairs",
        "chaos-named",
        "chaos-totals",
        "chaos-kinds",
        "dlq",
    ],
)
def test_should_find_duplicate_results(topics, sink):
    topics[sink].append(topics[sink][-1])
    lost, duplicated, wrong = found()
    assert (lost, duplicated, wrong) == (0, 1, 0)


@pytest.mark.parametrize(
    ("sink", "key", "body"),
    [
        ("chaos-stats", "a", {"least": 1, "greatest": 5, "total": 8, "times": 3}),
        ("chaos-dequeued", "q", {"id": "q", "n": 3}),
        ("chaos-sessions", "i001", {"id": "i001", "window_start": T0, "window_end": T0 + 1000, "sum": 5}),
        ("chaos-pairs", "i001", {"v": 1000, "w": 8}),
        ("chaos-named", "i001", {"v": 1000, "name": "name 2"}),
        ("chaos-totals", "i001", {"id": "i001", "total": 5}),
        ("chaos-finals", "i001", {"id": "i001", "window_start": T0, "count": 1}),
    ],
)
def test_should_find_results_that_no_input_explains(topics, sink, key, body):
    topics[sink].append(row(sink, key, body))
    assert found() == (0, 0, 1)


def test_should_find_results_in_another_order(topics):
    topics["chaos-dequeued"].reverse()
    assert found()[2] == 2


def test_should_expect_a_window_once_it_has_closed(topics):
    later = T0 + 10_000 + 3_600_000
    topics["chaos-events"].append(
        row("chaos-events", "last", {"id": "last", "ts": later, "v": 0, "kind": "last"})._replace(timestamp_ms=later)
    )
    topics["chaos-totals"].append(row("chaos-totals", "last", {"id": "last", "total": 0}))
    assert found() == (1, 0, 0)
    topics["chaos-finals"].append(row("chaos-finals", "i001", {"id": "i001", "window_start": T0, "count": 3}))
    assert found() == (0, 0, 0)


def test_should_report_where_outputs_were_written_again(topics):
    for sink in ("chaos-stats", "chaos-dequeued"):
        topics[sink].append(topics[sink][-1])
    assert checked().again == [("chaos-stats", 0, 2), ("chaos-dequeued", 0, 3)]


# What retention has taken.


def test_should_expect_results_of_deleted_records_except_those_nobody_had_read(topics):
    past = Past(kept={("chaos-queue", 0): [row("chaos-queue", "q", {"id": "q", "n": n}) for n in (-3, -2, -1)]})
    read = [row("chaos-dequeued", "q", {"id": "q", "n": n}) for n in (-3, -2)]
    topics["chaos-dequeued"] = read + topics["chaos-dequeued"]
    summary = [checked(past=past, excused=excused) for excused in ({-1}, set(), {-2, -1})]
    assert [(one.lost, one.duplicated, one.wrong) for one in summary] == [(0, 0, 0), (1, 0, 0), (0, 0, 1)]


# At least once: what may hold records twice.


def of_sink(topics, sink, at=-1, **changed):
    """Change what one of the records of a sink says."""
    topics[sink][at] = row(sink, topics[sink][at].key.decode(), json.loads(topics[sink][at].value) | changed)


def close_window(topics, count):
    later = T0 + 10_000 + 3_600_000
    topics["chaos-events"].append(
        row("chaos-events", "last", {"id": "last", "ts": later, "v": 0, "kind": "last"})._replace(timestamp_ms=later)
    )
    topics["chaos-totals"].append(row("chaos-totals", "last", {"id": "last", "total": 0}))
    topics["chaos-finals"].append(row("chaos-finals", "i001", {"id": "i001", "window_start": T0, "count": count}))


def test_should_find_no_fault_in_a_correct_run_under_at_least_once(topics):
    close_window(topics, 3)
    assert found(may_double=True) == (0, 0, 0)


@pytest.mark.parametrize(
    ("sink", "changed"),
    [
        ("chaos-stats", {"total": 14, "times": 4}),
        ("chaos-sessions", {"sum": REFUSED + 3002}),
        ("chaos-totals", {"total": 3001}),
        ("chaos-kinds", {"total": REFUSED + 3002}),
    ],
)
def test_should_report_a_duplicate_when_a_sum_holds_a_record_twice_under_at_least_once(topics, sink, changed):
    of_sink(topics, sink, **changed)
    lost, duplicated, wrong = found(may_double=True)
    assert (lost, duplicated, wrong) == (0, 1, 0)


@pytest.mark.parametrize(
    ("sink", "changed"),
    [
        ("chaos-stats", {"total": 8, "times": 2}),
        ("chaos-stats", {"total": 8, "times": 3}),
        ("chaos-sessions", {"window_end": T0 + 1400}),
        ("chaos-sessions", {"sum": REFUSED}),
        ("chaos-totals", {"total": 2000}),
        ("chaos-kinds", {"total": REFUSED + 1001}),
    ],
)
def test_should_report_a_loss_when_a_sum_lacks_a_record_under_at_least_once(topics, sink, changed):
    of_sink(topics, sink, **changed)
    assert found(may_double=True) == (1, 0, 0)


@pytest.mark.parametrize(("count", "expected"), [(2, (1, 0, 0)), (4, (0, 1, 0))])
def test_should_compare_a_window_with_its_events_under_at_least_once(topics, count, expected):
    close_window(topics, count)
    assert found(may_double=True) == expected


def test_should_report_a_loss_when_a_sum_decreases_even_if_it_ends_large_enough_under_at_least_once(topics):
    topics["chaos-stats"][0] = row("chaos-stats", "a", {"least": 1, "greatest": 5, "total": 18, "times": 6})
    of_sink(topics, "chaos-stats", total=14, times=4)
    assert found(may_double=True) == (1, 1, 0)


@pytest.mark.parametrize(
    ("sink", "key", "changed"),
    [
        ("chaos-stats", "a", {"least": 2}),
        ("chaos-stats", "a", {"greatest": 6}),
        ("chaos-sessions", "i001", {"window_start": T0 + 1}),
    ],
)
def test_should_find_results_that_no_input_explains_under_at_least_once(topics, sink, key, changed):
    topics[sink].append(row(sink, key, json.loads(topics[sink][-1].value) | changed))
    assert found(may_double=True) == (0, 0, 1)


@pytest.mark.parametrize("sink", ["chaos-dequeued", "chaos-pairs", "chaos-named", "dlq"])
def test_should_report_a_missing_element_when_another_came_twice_under_at_least_once(topics, sink):
    topics[sink][0] = topics[sink][1]
    assert found(may_double=True) == (1, 1, 0)


def test_should_report_where_elements_but_not_updates_were_written_again_under_at_least_once(topics):
    for sink in ("chaos-stats", "chaos-dequeued"):
        topics[sink].append(topics[sink][-1])
    assert checked(may_double=True).again == [("chaos-dequeued", 0, 3)]
