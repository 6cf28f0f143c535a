"""Applications whose changelogs tests write by hand."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest
from tests.support.standby import Application

from tidemark.instance import assembly
from tidemark.standby.copies import StandbyCopies
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import tumbling


@pytest.fixture
def counting(settings, admin, unique):
    """Counts per key: store `n`, two tasks."""
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING", key="id")
    stream.group_by_key().count(name="n", store="n").to(unique("out"))
    return Application(topology.plan(), settings, admin)


@pytest.fixture
def windowed(settings, admin, unique):
    """Counts per key and minute, kept for ten: store `w`, segments of five minutes, one task."""
    topology = Topology(unique("app"))
    stream = topology.stream(unique("in"), schema="id STRING, at BIGINT", key="id", timestamp="at")
    counts = stream.group_by_key().windowed_by(tumbling("60s"))
    counts.count(name="n", store=Materialized("w"), retention="10m").to(unique("out"))
    return Application(topology.plan(), settings, admin, partitions=1)


@pytest.fixture
def table(settings, admin, unique, create_topic):
    """A table whose topic is its changelog: store `t`, one task."""
    topology = Topology(unique("app"), optimised=True)
    topology.table(create_topic(unique("in"), 1, cleanup_policy="compact"), schema="city STRING", store="t")
    return Application(topology.plan(), settings, admin, partitions=1, create_sources=False)


@pytest.fixture
def patient(monkeypatch):
    """Instances wait a minute for a standby's copy, for which a busy machine may need more than their five seconds."""
    monkeypatch.setattr(assembly, "StandbyCopies", partial(StandbyCopies, answer_s=60.0))


@pytest.fixture
def standby():
    """`standby(application, ...)` makes a follower that is closed with the test; so is what it gives back when asked."""
    with ExitStack() as opened:

        def make(application, **more):
            follower, directory = application.follower(**more)

            def close():
                follower.close()
                directory.close()

            opened.callback(close)
            follower.end = close
            return follower

        yield make
