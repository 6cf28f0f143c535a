"""The topics whose expected contents the audit computes, and the reason why it does not for others."""

from __future__ import annotations

from tidemark.audit.derivable import derivable, keyed_sinks, read_again
from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import session, tumbling
from tidemark.topology_loader import load


def test_should_compute_updates_finals_and_changelogs_of_plain_aggregations():
    topology = Topology("app")
    grouped = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key()
    minutes = grouped.windowed_by(tumbling("1m")).aggregate(n="count(*)", low="min(x)", mean="mean(x)", store="minutes")
    minutes.to("updates").suppress(until_window_closes(), store="open").to("finals")
    found = derivable(topology.plan())
    (one,) = found.derived
    assert (one.update_sinks, one.final_sinks, one.changelog) == (("updates",), ("finals",), "app-minutes-changelog")
    assert (one.rising, one.falling) == (("n",), ("low",))
    assert [(n.topic, n.reason) for n in found.not_derived] == [
        ("app-open-changelog", "it is not the result of a plain aggregation")
    ]
    assert found.late_rows == {0}


def test_should_say_why_other_results_are_not_recomputed():
    patients = derivable(load("patient_monitoring").plan())
    assert {n.topic: n.reason for n in patients.not_derived}["alerts"] == "its records come from a StreamTableJoin"
    assert [d.update_sinks for d in patients.derived] == [("pulse-counts",)]
    # Joins drop late rows of their own, which are not counted again.
    assert patients.late_rows == frozenset()
    clicks = derivable(load("clicks").plan())
    assert clicks.derived == ()
    reasons = {n.topic: n.reason for n in clicks.not_derived}
    assert reasons["page-clicks"] == "its records come through clicks-by-page-repartition, which is purged"
    assert "user-sessions" in reasons


def test_should_not_compute_sketches_sessions_and_early_results():
    topology = Topology("app")
    grouped = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key()
    grouped.distinct("x", store="d").to("sketches")
    grouped.windowed_by(session("1m")).count(store="s").to("sessions")
    early = until_window_closes(max_records=5, when_full="emit_early_when_full")
    grouped.windowed_by(tumbling("1m")).count(store="w").suppress(early).to("early")
    found = derivable(topology.plan())
    assert [d.aggregation.store.name for d in found.derived] == ["w"]
    assert found.derived[0].final_sinks == ()
    assert {"sketches", "sessions", "early"} <= {n.topic for n in found.not_derived}


def test_should_attribute_a_sink_to_tasks_by_key_only_when_the_key_is_kept():
    topology = Topology("app")
    counted = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key().count(store="s")
    counted.to("same")
    counted.to_stream().process("module:Processor", emits="y BIGINT").to("other")
    counted.to_stream().process("module:Processor", emits="y BIGINT", keeps_key=True).to("kept")
    counted.to_stream().repartition("count", name="by-count").group_by_key().count(name="times", store="t").to("again")
    first, second = topology.plan().subtopologies
    assert keyed_sinks(first) == {"same", "kept"}
    assert keyed_sinks(second) == {"again"}


def test_should_attribute_records_without_state_to_tasks_only_when_they_keep_their_kafka_key():
    def sinks(key, *, counts=False):
        topology = Topology("app")
        stream = topology.stream("in", schema="id STRING, x BIGINT", key=key)
        stream.filter("x > 0").to("filtered")
        stream.process("module:Processor", emits="y BIGINT").select("y").to("other")
        if counts:
            stream.group_by_key().count(store="n").to("counts")
        return keyed_sinks(topology.plan().subtopologies[0])

    assert sinks("_key") == {"filtered"}
    assert sinks("id") == set()
    # A store makes the source compare its key with the Kafka key.
    assert sinks("id", counts=True) == {"filtered", "counts"}


def test_should_not_compare_a_topic_as_a_sink_when_the_application_reads_it():
    topology = Topology("app")
    counted = topology.stream("in", schema="id STRING, x BIGINT", key="id").group_by_key().count(name="n", store="s")
    counted.to("mid")
    counted.to("out")
    again = topology.stream("mid", schema="n BIGINT", key="_key").group_by_key()
    again.aggregate(high="max(n)", store="t").to("end")
    plan = topology.plan()
    found = derivable(plan)
    assert read_again(plan) == {"mid"}
    assert {d.changelog: d.update_sinks for d in found.derived} == {
        "app-s-changelog": ("out",),
        "app-t-changelog": ("end",),
    }
    assert [(n.topic, n.reason) for n in found.not_derived] == [("mid", "the application also reads it")]
