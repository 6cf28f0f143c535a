"""The checks of the stream that Airflow keeps running find lost, duplicated and wrong records."""

from __future__ import annotations

import json

import pytest
from tests.support.truth.topics import Row
from tests.system.chaos import airflow_stream, checks
from tests.system.chaos.airflow_stream import check_small
from tests.system.chaos.findings import Findings

IN, OUT, COUNTS = "chaos-small-in", "chaos-small-out", "chaos-small-counts"


def row(topic, **body):
    return Row(topic, 0, 0, 1_795_000_000_000, body["id"].encode(), json.dumps(body).encode(), ())


@pytest.fixture
def topics(monkeypatch):
    """Three elements of two keys, and what follows from them; one count was passed over by a batch."""
    made = {
        IN: [row(IN, id="a", n=1), row(IN, id="b", n=2), row(IN, id="a", n=3)],
        OUT: [row(OUT, id="a", n=1), row(OUT, id="b", n=2), row(OUT, id="a", n=3)],
        COUNTS: [row(COUNTS, id="b", count=1), row(COUNTS, id="a", count=2)],
    }

    def read(_bootstrap, names, *_more):
        return {(name, 0): [one._replace(offset=at) for at, one in enumerate(made[name])] for name in names}

    monkeypatch.setattr(checks, "read_all", read)
    monkeypatch.setattr(airflow_stream, "read_all", read)
    return made


def found():
    result = Findings()
    check_small("nowhere", result)
    return result.lost, result.duplicated, result.wrong


def test_should_find_no_fault_in_a_correct_run(topics):
    assert found() == (0, 0, 0)


@pytest.mark.parametrize("sink", [OUT, COUNTS])
def test_should_find_lost_and_duplicate_records(topics, sink):
    last = topics[sink].pop()
    assert found() == (1, 0, 0)
    topics[sink] += [last, last]
    assert found() == (0, 1, 0)


@pytest.mark.parametrize(("count", "expected"), [(1, (1, 0, 0)), (3, (0, 1, 0))])
def test_should_find_a_count_that_is_too_small_or_too_large(topics, count, expected):
    topics[COUNTS][-1] = row(COUNTS, id="a", count=count)
    assert found() == expected


@pytest.mark.parametrize("strange", [row(OUT, id="a", n=4), row(COUNTS, id="c", count=1)])
def test_should_find_results_that_no_input_explains(topics, strange):
    topics[strange.topic].append(strange)
    assert found() == (0, 0, 1)
