"""The demo's sums of what a broker and instances report."""

from __future__ import annotations

import json

from tests.support.overview import instance

from demo.patient_alert import PatientAlert
from demo.pulse_watch import InstanceSummary, Snapshot, current
from tidemark.cli.demo import ALERTS, is_counting
from tidemark.topology.plan import RowSink
from tidemark.topology_loader import load

NOW = 1_700_000_000_000


EMPTY = Snapshot("STARTING", 0, 0, 0, 0.0, 0, None, 0, ())


BUSY = Snapshot("RUNNING", 500, 510, 12_345, 583.3, 700, 0.9, 40, (("p0001", NOW, 61),))


def test_should_treat_a_window_as_current_until_its_grace_is_over():
    counts = {("p1", 0): (60_000, 5), ("p1", 60_000): (120_000, 7)}
    assert current(counts, 64_999, 5_000) == {("p1", 0): 5, ("p1", 60_000): 7}
    assert current(counts, 65_000, 5_000) == {("p1", 60_000): 7}


def test_should_sum_instances_and_ignore_dead_ones():
    first = instance(state="RUNNING", records_per_second=10.0, last_commit_ms=5)
    second = instance(state="RESTORING", records_per_second=None, last_commit_ms=None)
    dead = instance(state="LOST", is_alive=False, records_per_second=99.0, last_commit_ms=9)
    assert InstanceSummary.of([first, second, dead]) == InstanceSummary("RESTORING+RUNNING", 10.0, 5)
    assert InstanceSummary.of([dead]) == InstanceSummary("LOST", 0.0, None)
    assert InstanceSummary.of([]).state == "STARTING"


def test_should_count_only_results_that_were_written_since_the_start():
    assert is_counting(BUSY)
    assert not is_counting(EMPTY)
    assert not is_counting(Snapshot("LOST", 5, 5, 50, 0.0, 0, None, 0, ()))


def test_an_alert_should_be_read_from_the_joined_record():
    value = {"patient_id": "p1", "window_start": 5, "window_end": 65, "pulses": 104, "measured_ms": 7, "celsius": 38.6}
    assert PatientAlert.of(json.dumps({**value, "ward": "surgery"}).encode()) == PatientAlert(
        "p1", "surgery", 5, 104, 38.6
    )


def test_the_sink_of_alerts_should_have_the_fields_that_are_read():
    nodes = [node for s in load("patient_monitoring").plan().subtopologies for node in s.nodes]
    (sink,) = [node for node in nodes if isinstance(node, RowSink) and node.sink.topic == ALERTS]
    (join,) = [node for node in nodes if node.node == sink.inputs[0]]
    assert {"patient_id", "ward", "window_start", "pulses", "celsius"} <= {column.name for column in join.columns}
