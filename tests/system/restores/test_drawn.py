"""The draws of `make restores`, and two of them by name with the real stream and an independent count."""

from __future__ import annotations

import random

import pytest
from tests.support.brokers import brief
from tests.system.crash.bench import CHEAP, Bench
from tests.system.crash.run import FAST_ABORT
from tests.system.restores.drawn import APPS, KINDS, Drawn, Family, deal
from tests.system.restores.restoring import Outcome, Verdict, one_restore
from tests.system.restores.run import summary
from tests.system.restores.scene import Scene

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.settings import Settings


@pytest.mark.parametrize("seed", range(50))
def test_should_draw_every_kind_of_restore_within_sixty_draws_for_any_seed(seed):
    drawn = deal(random.Random(seed), 60, 5)
    assert len(drawn) == 60
    assert {one.kind.name for one in drawn} == {kind.name for kind in KINDS}
    assert {one.app for one in drawn} == set(APPS)
    assert {one.instances for one in drawn} == {1, 2, 3}


def test_should_give_each_kind_its_requirements_and_keep_an_application_until_the_next_begins():
    before = None
    for one in deal(random.Random(3), 500, 5):
        assert one.kind.app in (None, one.app)
        assert one.kind.instances in (None, one.instances)
        assert one.killed_at is None or one.killed_at in one.kind.points
        assert not (one.running and one.kind.family in (Family.HEALTHY, Family.DISK))
        assert one.begins or (before is not None and (one.app, one.partitions) == (before.app, before.partitions))
        before = one


def test_should_name_each_kind_once():
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_should_group_refusals_by_reason_in_the_last_line():
    outcomes = [
        Outcome(Verdict.EQUAL),
        Outcome(Verdict.REFUSED, ["changelog deleted"]),
        Outcome(Verdict.REFUSED, ["changelog deleted"]),
        Outcome(Verdict.REFUSED, ["disk full"]),
        Outcome(Verdict.WRONG, ["disk full"]),
        Outcome(Verdict.SILENT),
    ]
    assert summary(outcomes) == "restores: n=6 wrong=1 silent=1 refused=3 (changelog deleted: 2, disk full: 1)"
    assert summary(outcomes[:1]) == "restores: n=1 wrong=0 silent=0 refused=0"


class Patient(Bench):
    """Its instances wait for a standby's copy as long as a busy machine needs."""

    def environment(self, disk: str = "state") -> dict[str, str]:
        return {**super().environment(disk), "TIDEMARK_PROBE": "tests.system.crash.patient:kill"}


@pytest.fixture(scope="module")
def scene(mark, kafka_jars, spark_jars, tmp_path_factory):
    """Patient monitoring with two tasks."""
    folder = tmp_path_factory.mktemp("restores")
    with brief(EmbeddedBroker(folder / "broker", kafka_jars, overrides=FAST_ABORT)) as broker:
        bench = Patient(broker.bootstrap, folder / "bench", 7, 2, CHEAP)
        settings = Settings.load(bootstrap_servers=broker.bootstrap, var_dir=bench.var_dir, state_dir=bench.state_dir())
        yield Scene(bench, settings)
        bench.close()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "death", "killed_at"),
    [("standby", "6-commit", None), ("run --from savepoint", "5-offsets", "swap-between")],
)
def test_should_equal_a_recomputation_after_a_restore_from(scene, name, death, killed_at):
    kind = next(kind for kind in KINDS if kind.name == name)
    outcome = one_restore(scene, Drawn(kind, "patients", 2, 1, death, killed_at), random.Random(1))
    assert outcome == Outcome(Verdict.EQUAL)
