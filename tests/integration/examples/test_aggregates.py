"""Distinct counts, quantiles and lists on the test driver: Spark's partials, merged over several commits."""

from __future__ import annotations

import json
from random import Random

import pytest

from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import hopping, session, sliding, tumbling

pytestmark = pytest.mark.spark

MINUTE = 60_000
T0 = 1_700_000_040_000  # a whole minute
RESULTS = {
    "views": "count(*)",
    "visitors": "distinct(user_id)",
    "p99": "quantile(ms, 0.99)",
    "last": "collect(page, 3)",
}


def views(topology):
    return topology.stream(
        "views", schema="site STRING, user_id BIGINT, ms INT, page STRING, at_ms BIGINT", key="site", timestamp="at_ms"
    )


def pipe(driver, site, at, user=1, ms=10, page="home"):
    view = {"site": site, "user_id": user, "ms": ms, "page": page, "at_ms": T0 + at}
    driver.pipe("views", view, key=site)


@pytest.fixture
def driver_of(topology_driver):
    def make(build, partitions=1):
        topology = Topology("aggregates")
        build(views(topology).group_by_key())
        return topology_driver(topology, partitions=partitions, start_ms=T0 + 60 * MINUTE)

    return make


def test_should_merge_over_several_commits(driver_of):
    driver = driver_of(lambda g: g.aggregate(store="sites", **RESULTS).to("out"), partitions=2)
    chance = Random(7)
    seen = {"a": [], "b": []}
    for commit in range(4):
        for i in range(600):
            site, view = chance.choice("ab"), (chance.randrange(1000), chance.randrange(5000), f'"p{commit}\n{i}"')
            seen[site].append(view)
            pipe(driver, site, i, *view)
        driver.commit()
    emitted = driver.read("out")
    assert len(emitted) == 8
    for site, stored in driver.store("sites").items():
        users, times, pages = zip(*seen[site], strict=True)
        assert stored["views"] == len(users)
        assert stored["visitors"] == pytest.approx(len(set(users)), rel=0.1)
        below = sum(ms <= stored["p99"] for ms in times) / len(times)
        assert abs(below - 0.99) <= 0.0071
        assert json.loads(stored["last"]) == list(pages[-3:])
        assert {"site": site, **stored} in [record.value for record in emitted]


def test_should_be_exact_for_few_values_and_ignore_nulls(driver_of):
    driver = driver_of(lambda g: g.aggregate(store="sites", lists="collect(ms, 2)", **RESULTS))
    pipe(driver, "a", 0, user=None, ms=None, page=None)
    empty = {"views": 1, "visitors": 0, "p99": None, "last": None, "lists": None}
    assert driver.store("sites") == {"a": empty}
    for user, ms, page in ((1, 5, "x"), (2, None, "y"), (1, 3, None)):
        pipe(driver, "a", 1, user, ms, page)
        driver.commit()
    assert driver.store("sites")["a"] == {"views": 4, "visitors": 2, "p99": 5.0, "last": '["x","y"]', "lists": "[5,3]"}


def test_should_count_an_empty_text_only_when_it_is_given_another_value(driver_of):
    named = "distinct(CASE WHEN page = '' THEN '(none)' ELSE page END)"
    driver = driver_of(lambda g: g.aggregate(store="sites", pages="distinct(page)", named=named))
    for page in ("", None, "home", ""):
        pipe(driver, "a", 0, page=page)
    assert driver.store("sites") == {"a": {"pages": 1, "named": 2}}


def test_should_work_in_overlapping_windows_and_in_final_results(driver_of):
    def build(group):
        table = group.windowed_by(hopping("2m", "1m").grace("10s")).aggregate(store="w", **RESULTS)
        table.suppress(until_window_closes()).to("finals")

    driver = driver_of(build)
    for at, user, page in ((0, 1, "a"), (MINUTE, 2, "b")):
        pipe(driver, "a", at, user, page=page)
        driver.commit()
    expected = {"visitors": 2, "views": 2, "p99": 10.0, "last": '["a","b"]'}
    assert driver.store("w")["a", T0] == expected
    assert len(driver.store("w")) == 3
    driver.advance_stream_time(T0 + 2 * MINUTE + 10_000)
    finals = [record.value for record in driver.read("finals")]
    assert finals[-1] == {"site": "a", "window_start": T0, "window_end": T0 + 2 * MINUTE, **expected}
    assert len(finals) == 2


def test_should_merge_sessions(driver_of):
    driver = driver_of(lambda g: g.windowed_by(session("10s")).aggregate(store="s", **RESULTS))
    for at, page in ((0, "a"), (5_000, "b"), (22_000, "d"), (30_000, "e")):
        pipe(driver, "a", at, user=at, ms=at, page=page)
    assert sorted(value["last"] for value in driver.store("s").values()) == ['["a","b"]', '["d","e"]']
    pipe(driver, "a", 14_000, user=0, ms=1, page="c")
    key = ("a", T0, T0 + 30_000)
    assert driver.store("s") == {key: {"views": 5, "visitors": 4, "p99": 30_000.0, "last": '["d","e","c"]'}}


def test_should_merge_values_in_sliding_windows(driver_of):
    driver = driver_of(lambda g: g.windowed_by(sliding("10s")).aggregate(store="s", **RESULTS).to("out"))
    for at, page in ((10_000, "b"), (5_000, "a")):
        pipe(driver, "a", at, user=at, page=page)
        driver.commit()
    found = {(v["window_start"] - T0, v["last"], v["visitors"]) for v in (r.value for r in driver.read("out"))}
    assert (0, '["b","a"]', 2) in found


def test_should_give_each_method_a_store(driver_of):
    def build(group):
        windowed = group.windowed_by(tumbling("1m"))
        windowed.distinct("page", store="d")
        windowed.quantile("ms", 0.5, store="q")
        windowed.collect("user_id > 1", 10, store="c")

    driver = driver_of(build)
    for user in (1, 2, 3):
        pipe(driver, "a", user, user, user, "x")
    key = ("a", T0)
    assert driver.store("d") == {key: {"distinct": 1}}
    assert driver.store("q") == {key: {"quantile": 2.0}}
    assert driver.store("c") == {key: {"collect": "[false,true,true]"}}


NAMES = ("p", "status", "rows", "max_ts", "k", "w", "last_offset", "record_offset", "value", "headers", "deleted")


@pytest.mark.parametrize(
    "windows", [None, tumbling("60s"), hopping("60s", "20s"), session("10s"), sliding("60s")], ids=str
)
def test_should_aggregate_columns_and_name_results_like_columns_that_are_common_words(topology_driver, windows):
    topology = Topology("app")
    grouped = topology.stream("in", schema=", ".join(f"{name} BIGINT" for name in NAMES)).group_by_key()
    grouped = grouped if windows is None else grouped.windowed_by(windows)
    grouped.aggregate(store="sums", **{name: f"sum({name})" for name in NAMES})
    driver = topology_driver(topology, start_ms=T0)
    for times in (1, 2):
        driver.pipe("in", {name: times * number for number, name in enumerate(NAMES)}, key="a")
    expected = {name: 3 * number for number, name in enumerate(NAMES)}
    assert expected in driver.store("sums").values()
