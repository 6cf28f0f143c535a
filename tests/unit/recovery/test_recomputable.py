"""The stores that can be recomputed from the first records of their source topics."""

from __future__ import annotations

import dataclasses

import pytest

from tidemark.recovery.recomputable import not_recomputable_reason, recomputed_part
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import tumbling

PROCESSOR = "tests.support.processors:KeyOf"
SCHEMA = "id STRING, amount DOUBLE, items BIGINT"


def reason_of(topology, name="s"):
    plan = topology.plan()
    subtopology, spec = next((t, s) for t in plan.subtopologies for s in t.stores if s.name == name)
    return not_recomputable_reason(plan, subtopology, spec)


def sold():
    topology = Topology("app")
    return topology, topology.stream("sales", schema=SCHEMA)


@pytest.mark.parametrize(
    ("aggregates", "reason"),
    [
        ({"n": "count(*)", "most": "max(amount)", "least": "min(amount)", "items": "sum(items)"}, None),
        ({"total": "sum(amount)"}, "sum("),
        ({"average": "mean(items)"}, "mean("),
        ({"kinds": "distinct(items)"}, "distinct("),
        ({"middle": "quantile(items, 0.5)"}, "quantile("),
        ({"some": "collect(items, 3)"}, "collect("),
    ],
)
def test_should_accept_only_aggregates_that_are_the_same_for_any_batches(aggregates, reason):
    topology, sales = sold()
    sales.group_by_key().aggregate(store="s", **aggregates).to("out")
    found = reason_of(topology)
    assert found is None if reason is None else found.startswith(reason)


def test_should_refuse_windows():
    topology, sales = sold()
    sales.group_by_key().windowed_by(tumbling("1m")).count(name="n", store="s").to("out")
    assert "which records were late" in reason_of(topology)


@pytest.mark.parametrize("bound", [{"ttl": "1h"}, {"max_entries": 3}], ids=["ttl", "max_entries"])
@pytest.mark.parametrize("name", ["s", "s-order"])
def test_should_refuse_a_store_that_keys_leave_and_the_store_of_their_order(bound, name):
    topology, sales = sold()
    store = Materialized("s", **bound)
    sales.group_by_key().reduce("tests.unit.recovery.test_recomputable:newest", store=store).to("out")
    assert "expired or been evicted" in reason_of(topology, name)


def test_should_refuse_a_store_that_was_carried_over():
    topology, sales = sold()
    sales.group_by_key().count(name="n", store="s").to("out")
    plan = topology.plan()
    (subtopology,) = plan.subtopologies
    (spec,) = subtopology.stores
    assert not_recomputable_reason(plan, subtopology, spec) is None
    assert "carried it over" in not_recomputable_reason(plan, subtopology, dataclasses.replace(spec, generation=1))


def test_should_refuse_a_store_downstream_of_a_repartition_topic():
    topology, sales = sold()
    sales.group_by("CAST(items AS STRING)", name="by-items").count(name="n", store="s").to("out")
    assert "holds only records that are still to be processed" in reason_of(topology)


def test_should_accept_a_table_and_a_reduce_over_unchanged_records():
    topology, sales = sold()
    topology.table("customers", schema="id STRING, name STRING", store="names")
    sales.group_by_key().reduce("tests.unit.recovery.test_recomputable:newest", store="s").to("out")
    assert reason_of(topology) is None
    assert reason_of(topology, "names") is None


def test_should_compute_only_the_stores_that_are_asked_for_without_processors_and_sinks():
    topology, sales = sold()
    counted = sales.group_by_key().count(name="n", store="s")
    counted.to("out")
    counted.to_stream().process(PROCESSOR, emits="n BIGINT").to("processed")
    kept = sales.filter("items > 0")
    kept.process(PROCESSOR)
    kept.to("kept")
    last = kept.group_by_key().reduce("tests.unit.recovery.test_recomputable:newest", store="last")
    kept.group_by_key().reduce("tests.unit.recovery.test_recomputable:newest", store="other")
    customers = topology.table("customers", schema="id STRING, name STRING", store="names")
    kept.select("items").join(customers).to("joined")
    (whole,) = topology.plan().subtopologies
    found = recomputed_part(whole, {"s", "last"})
    part = found.subtopology
    assert part.sources == whole.sources
    assert [store.name for store in part.stores] == ["s", "last"]
    assert [node for node in whole.nodes if node.node == last.node] == [*part.nodes]
    assert part.sinks == ()
    assert [dataclasses.replace(p, sinks=()) for p in whole.pipelines if p.aggregation or p.end == kept.node] == [
        *part.pipelines
    ]
    assert [whole.pipelines[number].end for number in found.pipelines] == [p.end for p in part.pipelines]


def newest(old, new):
    """A reducer."""
    return new
