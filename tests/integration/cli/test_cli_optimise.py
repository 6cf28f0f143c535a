"""`tidemark optimise`: its report on a topology, and a small measured run on real brokers with real instances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.crash.bench import CHEAP
from typer.testing import CliRunner

import topologies
from tidemark.cli import main
from tidemark.cli.optimise import report
from tidemark.devstack import measure
from tidemark.devstack.measure import Measured
from tidemark.devstack.synthetic_records import made_records, made_sources
from tidemark.errors import InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology.optimisation import difference
from tidemark.topology.plan import Column, Source
from tidemark.topology_loader import load

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _topologies_of_this_folder(monkeypatch):
    monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(HERE / "topologies")])


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main.build(), ["optimise", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def planned(build, optimised):
    topology = Topology("app", optimised=optimised)
    build(topology)
    return topology.plan()


def difference_of(build):
    plain, optimised = planned(build, False), planned(build, True)
    found = difference(plain, optimised)
    left = set(plain.repartition_topics) - {topic for topic, _ in found.merged}
    assert len(left) == len(optimised.repartition_topics)
    return found


def views(topology):
    return topology.stream("views", schema="user STRING, page STRING, ms INT", key="user")


def test_should_report_which_topics_merge_and_what_that_saves():
    summary = run("plan", "measured").splitlines()
    assert summary[1:] == [
        "  merges   measured-by-page-again-repartition into measured-by-page-repartition",
        "  saves    measured-users-changelog: users itself is the changelog, and must be compacted",
    ]


def test_should_report_that_nothing_changes_without_measuring(monkeypatch):
    monkeypatch.setattr(measure, "measure", lambda *_, **__: pytest.fail("nothing to measure"))
    assert "changes nothing" in run("measure", "clicks")


def test_should_refuse_a_topology_that_is_built_once_at_import():
    load("ready_made", optimised=False)
    with pytest.raises(InvalidTopology, match=r"create it inside of topology\(\)"):
        load("ready_made", optimised=True)


def test_should_optimise_only_the_load_that_asks_for_it():
    assert load("measured", optimised=True).is_optimised
    assert not load("measured").is_optimised


def test_should_merge_repartition_topics_whose_sources_have_merged():
    def build(topology):
        for name in ("a", "b"):
            by_page = views(topology).repartition("page", name)
            by_page.group_by("ms", name=f"{name}-ms").count(store=name)

    assert difference_of(build).merged == (
        ("app-b-repartition", "app-a-repartition"), ("app-b-ms-repartition", "app-a-ms-repartition"),
    )  # fmt: skip


def test_should_not_merge_repartitions_of_different_records_or_keys():
    def build(topology):
        stream = views(topology)
        stream.group_by("page", name="a").count(store="a")
        stream.group_by("ms", name="b").count(store="b")
        stream.filter("ms > 1").group_by("page", name="c").count(store="c")
        stream.filter("ms > 1").group_by("page", name="d").count(store="d")

    assert difference_of(build).is_empty


def test_should_not_merge_repartitions_whose_keys_differ_in_the_case_of_a_text():
    def build(topology):
        stream = views(topology)
        stream.group_by("concat(page, 'X')", name="a").count(store="a")
        stream.group_by("concat(page, 'x')", name="b").count(store="b")

    assert difference_of(build).is_empty


def test_should_merge_equal_repartitions_downstream_of_a_stateful_node():
    def build(topology):
        counts = views(topology).group_by_key().count(store="counts").to_stream()
        for name in ("a", "b"):
            counts.group_by("count", name=name).count(name="again", store=name)

    assert difference_of(build).merged == (("app-b-repartition", "app-a-repartition"),)


def test_should_report_which_generated_names_change():
    def build(topology):
        stream = views(topology)
        stream.group_by("page", name="a").count(store="a")
        stream.group_by("page", name="b").count(store="b")
        stream.group_by_key().count()

    ((old, new),) = difference_of(build).renamed
    assert old != new
    assert all("KSTREAM-AGGREGATE-STATE-STORE" in name for name in (old, new))


def test_should_not_report_a_store_as_renamed_when_another_sub_topology_keeps_it():
    def build(topology):
        stream = views(topology)
        for key, name in (("page", "a"), ("ms", "b"), ("page", "c")):
            stream.group_by(key, name=name).count(store=name)

    found = difference_of(build)
    assert found.merged == (("app-c-repartition", "app-a-repartition"),)
    assert found.renamed == ()


def test_should_generate_the_same_records_under_the_sources_key_when_the_seed_is_the_same():
    sources = made_sources(load("measured").plan())
    assert set(sources) == {"clicks", "users"}
    first, again, other = (list(made_records(sources["clicks"], 50, seed, 1_000_000)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(json.loads(value)["user_id"].encode() == key for key, value in first)


def test_should_end_the_event_time_of_generated_records_at_the_given_time():
    columns = (Column("id", "BIGINT"), Column("at", "TIMESTAMP"), Column("d", "DECIMAL(3, 1)"), Column("s", "DATE"))
    source = Source("S", "t", columns, "CAST(id AS STRING)", "unix_millis(at)")
    values = [json.loads(value) for _, value in made_records(source, 3, 0, 1_000)]
    assert [value["at"] for value in values] == [f"1970-01-01T00:00:0{at}Z" for at in ("0.980", "0.990", "1.000")]


def test_should_report_both_runs_side_by_side():
    lines = report(Measured(1000, 2.0, 4000, 100), Measured(1000, 1.0, 2000, 0))
    assert [line.split()[-3:] for line in lines[1:]] == [
        ["500", "1,000", "+100%"], ["4,000", "2,000", "-50%"], ["100", "0", "-100%"],
    ]  # fmt: skip


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_should_measure_both_plans_and_find_fewer_bytes(monkeypatch, kafka_jars, spark_jars):
    monkeypatch.setenv("TIDEMARK_TOPOLOGY_PATH", str(HERE / "topologies"))
    for name, value in {"TIDEMARK_SPARK_DRIVER_MEMORY": "512m", **CHEAP}.items():
        monkeypatch.setenv(name, value)
    summary = run("measure", "measured", "--records", "3000")
    rows = {
        line[:28].strip(): [int(n.replace(",", "")) for n in line[28:56].split()] for line in summary.splitlines()[-3:]
    }
    assert list(rows) == ["records/s", "bytes to repartition topics", "bytes to changelog topics"]
    assert min(rows["records/s"]) > 0
    before, after = rows["bytes to repartition topics"]
    assert 0.4 * before < after < 0.7 * before
    before, after = rows["bytes to changelog topics"]
    assert 0 < after < before
