"""The example in `docs/testing.md` is a test, and passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tidemark.topology.builder import Topology
from tidemark.topology.table import until_window_closes
from tidemark.topology.windows import tumbling

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


@pytest.mark.spark
def test_should_pass_the_test_on_the_page(topology_driver):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    names["test_a_minute_should_be_final_once_its_grace_is_over"](topology_driver)


T0 = 1_700_000_040_000  # a whole minute
MINUTE = 60_000
BEAT = "id STRING, at BIGINT, n INT"


@pytest.mark.spark
def test_should_return_every_window_that_waits_in_a_buffer(topology_driver):
    topology = Topology("app")
    beats = topology.stream("beats", schema=BEAT, key="id", timestamp="at")
    counts = beats.group_by_key().windowed_by(tumbling("60s").grace("10m")).count(name="n", store="counts")
    counts.suppress(until_window_closes(), store="buffer").to("finals")
    driver = topology_driver(topology)
    for at in (T0, T0 + MINUTE, T0 + 2 * MINUTE):
        driver.pipe("beats", {"id": "é", "at": at, "n": 1}, key="é")
    assert driver.store("buffer") == {
        ("é", start, start + MINUTE): {"id": "é", "window_start": start, "window_end": start + MINUTE, "n": 1}
        for start in (T0, T0 + MINUTE, T0 + 2 * MINUTE)
    }


@pytest.mark.spark
def test_should_return_every_row_that_waits_in_a_join(topology_driver):
    topology = Topology("app")
    lefts = topology.stream("lefts", schema=BEAT, key="id", timestamp="at").select("id", "n AS x")
    rights = topology.stream("rights", schema=BEAT, key="id", timestamp="at").select("id AS other", "n AS y")
    lefts.outer_join(rights, within="5m", name="met").to("out")
    driver = topology_driver(topology)
    for n in (1, 2):
        driver.pipe("lefts", {"id": "a", "at": T0, "n": n}, key="a")
    driver.pipe("rights", {"id": "b", "at": T0, "n": 3}, key="b")
    this, other, alone = (spec.name for spec in topology.plan().stores)
    assert driver.store(this) == {("a", T0, n - 1): {"id": "a", "x": n} for n in (1, 2)}
    assert driver.store(other) == {("b", T0, 0): {"other": "b", "y": 3}}
    waiting = driver.store(alone)
    assert list(waiting) == [("b", T0, 0, "right"), ("a", T0, 0, "left"), ("a", T0, 1, "left")]
    assert [(row["x"], row["y"]) for row in waiting.values()] == [(None, 3), (1, None), (2, None)]
