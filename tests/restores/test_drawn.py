"""Two of the restores that `make restores` draws, by name: the real stream, its loss, and a comparison with a recomputation."""

from __future__ import annotations

import random

import pytest
from tests.crash.bench import Bench
from tests.crash.run import FAST_ABORT
from tests.restores.drawn import SOURCES, Drawn, draw, one_restore

from tidemark.local.broker import EmbeddedBroker


@pytest.fixture(scope="module")
def bench(mark, kafka_jars, spark_jars, tmp_path_factory):
    """Patient monitoring with two tasks."""
    folder = tmp_path_factory.mktemp("restores")
    with EmbeddedBroker(folder / "broker", kafka_jars, overrides=FAST_ABORT) as broker:
        made = Bench(broker.bootstrap, folder / "bench", 7, 2)
        yield made
        made.close()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "drawn",
    [
        Drawn("patients", 2, "standby", "6-commit", None),
        Drawn("patients", 2, "run --from savepoint", "5-offsets", "swap-between"),
    ],
    ids=str,
)
def test_should_equal_a_recomputation_after_a_restore_from(bench, drawn):
    assert one_restore(bench, drawn, random.Random(1)) == []


def test_should_draw_every_source_and_stay_with_the_first_ones_application():
    chance = random.Random(3)
    first = draw(chance)
    drawn = [draw(chance, first) for _ in range(200)]
    assert {one.source for one in drawn} == set(SOURCES)
    assert {(one.app, one.partitions) for one in drawn} == {(first.app, first.partitions)}
