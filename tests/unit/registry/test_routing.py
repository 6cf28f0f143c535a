"""Plans with routers, and the task to which a stored key belongs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.changes import version_one
from tests.support.routing import SCHEMA

from tidemark.errors import StartRefused
from tidemark.instance import resolve_plan
from tidemark.instance.resolve_plan import ResolvedPlan
from tidemark.operations.change.key_owner import owner_of
from tidemark.registry.description import describe_state
from tidemark.registry.reader import describe_resolved, resolved
from tidemark.registry.routing import next_routing, require_routable, routed
from tidemark.topology.builder import Topology
from tidemark.topology.key_serde import KeySerde
from tidemark.topology.stores import Materialized, store


def rekeyed():
    topology = Topology("app")
    pages = topology.stream("in", schema=SCHEMA, key="id", timestamp="v").repartition("page", "by-page")
    pages.group_by_key().count(name="n", store="n").to("out")
    return topology


def test_should_route_each_source_through_a_repartition_topic_that_the_rest_reads():
    plan = routed(version_one("app").plan(), 2)
    counting, router = plan.subtopologies
    assert counting.source_topics == ("app-source-app-in-2-repartition",)
    assert (counting.lead.key, counting.lead.timestamp) == ("_key", "_timestamp")
    assert counting.lead.schema == router.lead.schema
    assert router.source_topics == ("app-in",)
    assert router.lead.key == "id"
    # The same records are dead letters before and after a rescale.
    assert (counting.lead.checks_key, router.lead.checks_key) == (False, True)
    assert router.sink_topics == counting.source_topics
    assert plan.repartition_topics == counting.source_topics
    assert plan.routed == ("app-in",)


def test_should_read_keys_in_their_form_in_the_router_alone():
    topology = Topology("app")
    orders = topology.stream("in", schema=SCHEMA, key_serde="long")
    orders.select("v").repartition(name="by-key").group_by_key().count(store="n").to("out", key_serde="long")
    plan = routed(topology.plan(), 1)
    assert [s.lead.key_serde for s in plan.subtopologies] == [KeySerde.STRING, KeySerde.STRING, KeySerde.LONG]
    assert {sink.topic: sink.key_serde for s in plan.subtopologies for sink in s.sinks} == {
        "app-by-key-1-repartition": KeySerde.STRING,
        "app-source-in-1-repartition": KeySerde.STRING,
        "out": KeySerde.LONG,
    }


def test_should_rename_topics_between_sub_topologies_on_both_sides():
    plan = routed(rekeyed().plan(), 1)
    assert [s.source_topics for s in plan.subtopologies] == [
        ("app-source-in-1-repartition",),
        ("app-by-page-1-repartition",),
        ("in",),
    ]
    assert plan.subtopologies[0].sink_topics == ("app-by-page-1-repartition",)


def test_should_keep_the_sources_of_the_routed_plan_in_a_skeleton():
    for topology in (version_one("app"), rekeyed()):
        plan, counts = topology.plan(), {"in": 4, "app-in": 4}
        held = replace(describe_state(plan, counts), routing=3)
        running = resolved(plan, held, counts)
        assert [s.source_topics for s in held.skeleton().subtopologies] == [
            s.source_topics for s in running.subtopologies
        ]
        assert held.skeleton().routed == running.routed
        assert describe_resolved(plan, held, counts, {}, {}) == held


def test_should_allow_a_routed_topic_to_grow_but_not_to_shrink():
    plan = version_one("app").plan()
    held = replace(describe_state(plan, {"app-in": 4}), routing=1)
    resolved(plan, held, {"app-in": 5})
    with pytest.raises(StartRefused, match="app-in has 3 partitions, it had 4"):
        resolved(plan, held, {"app-in": 3})


@pytest.mark.parametrize(
    ("existing", "recorded", "expected"),
    [
        ([], 0, 1),
        ([], 4, 5),
        (["app-source-in-1-repartition"], 0, 2),
        (["app-by-page-1-repartition", "app-source-in-2-repartition"], 0, 3),
        (["app-other-1-repartition", "app-by-page-repartition", "other-source-in-1-repartition"], 0, 1),
    ],
)
def test_should_choose_a_number_under_which_nothing_was_sent(existing, recorded, expected):
    assert next_routing("app", ["app-by-page-repartition"], existing, recorded) == expected


def filtered(condition, **source):
    """A count of the records that meet the condition."""
    topology = Topology("app")
    topology.stream("in", schema=SCHEMA, **source).filter(condition).group_by_key().count(store="n")
    return topology.plan()


@pytest.mark.parametrize("name", ["_offset", "_partition", "_topic", "_timestamp"])
@pytest.mark.parametrize("written", ["{}", "`{}`", "{upper}", "`{upper}`"])
def test_should_refuse_columns_that_a_routed_record_lacks(name, written):
    plan = filtered(f"{written.format(name, upper=name.upper())} IS NOT NULL AND v > 3")
    with pytest.raises(StartRefused, match=f"uses {name}"):
        require_routable(plan)


@pytest.mark.parametrize("written", ["_key", "_KEY", "`_key`"])
def test_should_refuse_the_records_own_key_if_it_is_routed_by_another(written):
    topology = Topology("app")
    topology.stream("in", schema=SCHEMA, key="id").group_by(written, "by-own-key").count(store="n")
    with pytest.raises(StartRefused, match=r"uses _key .* has the key id there; use id instead"):
        require_routable(topology.plan())
    require_routable(filtered(f"{written} <> ''"))


def test_should_accept_the_records_own_key_if_records_with_another_are_dead_letters():
    require_routable(filtered("_key <> 'x'", key="id"))
    topology = Topology("app")
    stream = topology.stream("in", schema=SCHEMA, key="id")
    stream.group_by_key().count(store="n")
    stream.group_by("concat(_key, page)", "by-page").count(store="of-page")
    require_routable(topology.plan())


def test_should_accept_names_that_only_resemble_such_columns():
    topology = Topology("app")
    schema = "id STRING, my_offset BIGINT, a_key STRING, meta STRUCT<_timestamp: BIGINT, _key: STRING>"
    stream = topology.stream("in", schema=schema, key="id").filter("my_offset > 3 AND a_key <> ''")
    stream.filter("meta._timestamp > 3 AND id <> '_topic' AND meta._key <> '_key'").to("out")
    require_routable(topology.plan())


@pytest.mark.parametrize("routing", [0, 1])
def test_should_start_with_a_column_that_a_routed_record_lacks_and_warn_of_it(routing, monkeypatch, caplog):
    counts, plan = {"in": 2}, filtered("_offset > 3")
    found = replace(describe_state(filtered("v > 3"), counts), routing=routing)
    watch = SimpleNamespace(found=found, plan=resolved(plan, found, counts))
    monkeypatch.setattr(resolve_plan, "DescriptionWatch", lambda *_: watch)
    assert ResolvedPlan.of(plan, None, None).plan == watch.plan
    assert [("uses _offset" in text) for text in caplog.messages] == [True] * routing


def test_should_refuse_keys_that_do_not_name_their_task():
    bounded = Topology("app")
    bounded.table("in", schema=SCHEMA, store=Materialized("n", max_entries=5))
    processed = Topology("app")
    stream = processed.stream("in", schema=SCHEMA, key="id")
    stream.process("package.module:Class", emits="v BIGINT", stores=[store("n", "v BIGINT")]).to("out")
    for topology, message in ((bounded, "max_entries"), (processed, "keys may be anything")):
        with pytest.raises(StartRefused, match=message):
            owner_of(describe_state(topology.plan(), {}).stores["n"])
