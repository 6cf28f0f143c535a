"""The metadata of a committed offset must not be longer than brokers accept."""

from __future__ import annotations

import pytest

from tidemark.commit.metadata import OffsetMetadata, verify_metadata_fits
from tidemark.errors import PreflightFailed
from tidemark.kafka import cluster
from tidemark.kafka.cluster import OFFSET_METADATA_BYTES, offset_metadata_limit
from tidemark.settings import Settings
from tidemark.stream_times import StreamTimes
from tidemark.topology.builder import Topology

NOW = 1_700_000_000_000


def a_plan(stores: int):
    """One sub-topology whose stores have names of 50 characters."""
    topology = Topology("app")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at")
    for number in range(stores):
        stream.group_by_key().count(store=f"s{number:049}")
    return topology.plan()


def not_asked() -> int:
    raise AssertionError("the default is enough")


def test_should_not_ask_brokers_about_a_topology_of_few_stores():
    verify_metadata_fits(a_plan(10), not_asked)


def test_should_name_the_sub_topology_whose_metadata_brokers_would_refuse():
    plan = a_plan(61)
    (subtopology,) = plan.subtopologies
    times = StreamTimes(NOW, {store.name: NOW for store in subtopology.stores})
    written = len(OffsetMetadata(7, times, plan.version).encode())
    assert written > OFFSET_METADATA_BYTES
    with pytest.raises(PreflightFailed, match="sub-topology 0 of app has 61 stores"):
        verify_metadata_fits(plan, lambda: OFFSET_METADATA_BYTES)
    verify_metadata_fits(plan, lambda: written + 100)
    # An application that runs with a larger limit, which its user may not see, is not refused.
    verify_metadata_fits(plan, lambda: None)
    with pytest.raises(PreflightFailed):
        verify_metadata_fits(plan, lambda: written)


@pytest.mark.parametrize(
    ("config", "limit"),
    [({"offset.metadata.max.bytes": "9000"}, 9000), ({}, None), (PreflightFailed("no right"), None)],
)
def test_should_know_the_limit_of_the_brokers(monkeypatch, config, limit):
    def broker_config(admin, broker, settings):
        assert broker == 3
        if isinstance(config, Exception):
            raise config
        return config

    monkeypatch.setattr(cluster, "describe_replicas", lambda *_: (frozenset({4, 3}), {}))
    monkeypatch.setattr(cluster, "broker_config", broker_config)
    assert offset_metadata_limit(None, Settings.load()) == limit
