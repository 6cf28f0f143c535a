"""Resets of offsets on a real broker: everything is counted again on an empty or the old state, or left out."""

from __future__ import annotations

import pytest

from tidemark.errors import StartRefused
from tidemark.kafka.offsets import EndOffsets
from tidemark.names import TopicPartition
from tidemark.operations.change.reset_plan import parse_offsets, require_kept, target_offsets
from tidemark.operations.change.reset_target import ResetTo
from tidemark.recovery.evidence import Watermarks
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


SOURCES = {P0: Watermarks(5, 100), P1: Watermarks(0, 7)}


def test_should_reset_to_the_earliest_or_latest_offset():
    nobody = EndOffsets(None, 1)
    assert target_offsets(ResetTo.EARLIEST, SOURCES, {}, None, nobody) == {P0: 5, P1: 0}
    assert target_offsets(ResetTo.LATEST, SOURCES, {}, None, nobody) == {P0: 100, P1: 7}


@pytest.mark.parametrize("offset", [4, 5, 6, 99, 100])
def test_should_reset_to_offsets_up_to_the_end(offset):
    given = parse_offsets([f"in:0={offset}", "in:1=0"])
    assert target_offsets(ResetTo.OFFSETS, SOURCES, given, None, EndOffsets(None, 1)) == {P0: offset, P1: 0}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["in:0=101", "in:1=0"], "101 does not exist, the partition ends at offset 100"),
        (["in:0=5"], r"--offset in:1=… is missing"),
        (["in:0=5", "in:1=0", "in:2=0"], "does not read this partition"),
        (["in:0=5", "in:0=6"], "given twice"),
        (["in=5"], "write TOPIC:PARTITION=OFFSET"),
        (["in:0=-1"], "write TOPIC:PARTITION=OFFSET"),
    ],
)
def test_should_refuse_offsets_outside_the_topic(texts, message):
    with pytest.raises(StartRefused, match=message):
        target_offsets(ResetTo.OFFSETS, SOURCES, parse_offsets(texts), None, EndOffsets(None, 1))


def kept_in(**options):
    """The only store of a topology that counts by key."""
    topology = Topology("kept")
    stream = topology.stream("in", schema="id STRING", key="id")
    stream.group_by_key().count(store=Materialized("n", **options)).to("out")
    return topology.plan().stores


def test_should_refuse_to_keep_a_store_that_only_its_folder_holds():
    with pytest.raises(StartRefused, match=r"contents of: n; .*`tidemark upgrade run NAME --drop n`"):
        require_kept(kept_in(logging=False))


@pytest.mark.parametrize("options", [{}, {"in_memory": True}, {"in_memory": True, "logging": False}])
def test_should_keep_a_store_of_which_a_reset_loses_nothing(options):
    require_kept(kept_in(**options))
