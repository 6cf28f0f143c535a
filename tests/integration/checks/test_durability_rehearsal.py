"""Durability rehearsed on three brokers: the loss of acknowledged records is compared with what the check predicted.

Stages of 40 records go to the outputs and to the changelog of one application per profile, by the product's own producers:
while all is well, while the other replicas lag (frozen), and while the leader answers nothing either. Then it is killed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.brokers import brief
from tests.support.durability_rehearsal import EACH, FOLLOWERS, LEADER, App, Profile, Rehearsal

from tidemark.devstack.broker import EmbeddedCluster
from tidemark.verdict import Finding, Verdict

ONE, ALL = "one broker down", "all brokers down"
DOCS = Path(__file__).parents[3] / "docs" / "checks.md"


def _or(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


@dataclass(frozen=True)
class Row:
    """What is expected of one profile in one accident. `said` is part of the verdict's message; the numbers are outputs.

    `lost` has more than one number where it is up to brokers: what a follower fetched in its last moment, who comes back first.
    """

    profile: Profile
    verdict: Verdict
    said: str
    acknowledged: int
    lost: tuple[int, ...]

    def __str__(self) -> str:
        return f"| {self.profile} | {self.verdict}: {self.said} | {self.acknowledged} | {_or(self.lost)} |"


EXACTLY = Profile("exactly_once", "all", 3, 2)
FINE = Profile("at_least_once", "all", 3, 2)
BY_LEADER = Profile("at_least_once", "1", 3, 2)
BY_NOBODY = Profile("at_least_once", "0", 3, 2)
TWO_COPIES = Profile("at_least_once", "all", 2, 1)
ONE_COPY = Profile("at_least_once", "all", 1, 1)
ONE_COPY_BY_LEADER = Profile("at_least_once", "1", 1, 1)
ONE_COPY_BY_NOBODY = Profile("at_least_once", "0", 1, 1)
PROFILES = (EXACTLY, FINE, BY_LEADER, BY_NOBODY, ONE_COPY, ONE_COPY_BY_LEADER, ONE_COPY_BY_NOBODY)

NOTHING = "nothing is lost"
DISK = "if its disk is lost, they are lost"
LEADERS = "are lost if only the leader has them"
FLYING = "are lost if they were in flight"
MAYBE_LEADERS = "may be lost if only the leader has them"
MAYBE_FLYING = "may be lost if they were in flight"
THIN = "records that only the leader has acknowledged are lost with its disk"

LEADER_LOST = [
    Row(EXACTLY, Verdict.OK, NOTHING, EACH, (0,)),
    Row(FINE, Verdict.OK, NOTHING, EACH, (0,)),
    Row(BY_LEADER, Verdict.WARNING, LEADERS, 2 * EACH, (0, EACH)),
    Row(BY_NOBODY, Verdict.WARNING, FLYING, 3 * EACH, (0, EACH, 2 * EACH)),
    Row(ONE_COPY, Verdict.FAILED, DISK, 2 * EACH, (2 * EACH,)),
    Row(ONE_COPY_BY_LEADER, Verdict.FAILED, DISK, 2 * EACH, (2 * EACH,)),
    Row(ONE_COPY_BY_NOBODY, Verdict.FAILED, FLYING, 3 * EACH, (3 * EACH,)),
]
ALL_LOST = [
    Row(EXACTLY, Verdict.OK, NOTHING, EACH, (0,)),
    Row(FINE, Verdict.OK, NOTHING, EACH, (0,)),
    Row(BY_LEADER, Verdict.WARNING, MAYBE_LEADERS, 2 * EACH, (0, EACH)),
    Row(BY_NOBODY, Verdict.WARNING, MAYBE_FLYING, 3 * EACH, (0, EACH, 2 * EACH)),
    Row(ONE_COPY, Verdict.OK, NOTHING, 2 * EACH, (0,)),
    Row(ONE_COPY_BY_LEADER, Verdict.OK, NOTHING, 2 * EACH, (0,)),
    Row(ONE_COPY_BY_NOBODY, Verdict.WARNING, MAYBE_FLYING, 3 * EACH, (0, EACH)),
]
LAGGING = [
    Row(FINE, Verdict.OK, NOTHING, 2 * EACH, (0,)),
    Row(TWO_COPIES, Verdict.WARNING, THIN, 2 * EACH, (2 * EACH,)),
]


@pytest.mark.parametrize("rows", [LEADER_LOST, ALL_LOST, LAGGING], ids=["leader", "all", "lagging"])
def test_should_list_in_the_docs_every_loss_that_is_rehearsed(rows):
    assert "\n".join(map(str, rows)) in DOCS.read_text()


@pytest.fixture(scope="module")
def three(mark, kafka_jars, tmp_path_factory):
    """A cluster of its own, whose brokers may be frozen for longer than the suite's would be taken for alive."""
    slow = {"broker.session.timeout.ms": "8000"}
    with brief(EmbeddedCluster(tmp_path_factory.mktemp("rehearsal"), kafka_jars, overrides=slow)) as running:
        yield running


@pytest.fixture
def rehearse(three, tmp_path, unique):
    """`rehearse(profiles)`: their applications, of which every replica has the first stage."""
    made = []

    def begin(profiles) -> Rehearsal:
        rehearsal = Rehearsal(three, tmp_path, unique("rehearsed"), profiles)
        made.append(rehearsal)
        rehearsal.write_all("whole")
        rehearsal.wait_replicated("whole")
        return rehearsal

    yield begin
    for rehearsal in made:
        rehearsal.close()


def write_to_a_leader_that_goes(rehearsal: Rehearsal) -> None:
    """The other two lag, then the leader answers nothing either. It is killed, and the others are still frozen."""
    rehearsal.signal(signal.SIGSTOP, *FOLLOWERS)
    rehearsal.answer_fetches()
    rehearsal.write("lagging")
    rehearsal.signal(signal.SIGSTOP, LEADER)
    rehearsal.write("unanswered")
    rehearsal.kill(LEADER)


def lost_of(app: App, present: dict) -> tuple[int, int]:
    """Records of outputs, and of the changelog, that were acknowledged and are not there."""
    out, changelog = (len(lane.acknowledged - present[lane.topic]) for lane in app.lanes)
    return out, changelog


def compare(expected: list[Row], findings: list[Finding], rehearsal: Rehearsal) -> None:
    """Beside each other: the verdict before the accident, what was acknowledged, and what is lost."""
    present = rehearsal.present()
    for row, found, app in zip(expected, findings, rehearsal.apps, strict=True):
        lost, lost_state = lost_of(app, present)
        summary = f"{app.profile}: {found.verdict}: {found.message}: {lost} and {lost_state} of state"
        if lost or lost_state:
            assert found.verdict is not Verdict.OK, f"lost, and nothing said so: {summary}"
        assert not lost_state or DISK in found.message or THIN in found.message, summary
        assert (found.verdict, len(app.out.acknowledged)) == (row.verdict, row.acknowledged), summary
        assert lost in row.lost, summary
        assert row.said in found.message, summary


@pytest.mark.broker
def test_should_lose_what_the_check_predicted_when_a_leader_loses_its_disk(rehearse, three):
    rehearsal = rehearse(PROFILES)
    before = [found[ONE] for found in rehearsal.verdicts()]
    write_to_a_leader_that_goes(rehearsal)
    rehearsal.signal(signal.SIGCONT, *FOLLOWERS)
    rehearsal.wait_for(lambda p: p.leader in FOLLOWERS or len(p.replicas) == 1)
    rehearsal.lose_disk(LEADER)
    three.start_node(LEADER)
    rehearsal.wait_whole()
    compare(LEADER_LOST, before, rehearsal)


@pytest.mark.broker
def test_should_lose_what_the_check_predicted_when_all_brokers_are_killed(rehearse, three):
    rehearsal = rehearse(PROFILES)
    before = [found[ALL] for found in rehearsal.verdicts()]
    write_to_a_leader_that_goes(rehearsal)
    for node in FOLLOWERS:
        rehearsal.kill(node)
    three.start()
    rehearsal.wait_whole()
    compare(ALL_LOST, before, rehearsal)


@pytest.mark.broker
def test_should_lose_what_the_check_predicted_when_a_leader_is_lost_while_a_replica_lags(rehearse, three):
    rehearsal = rehearse([FINE, TWO_COPIES])
    before = rehearsal.verdicts()
    assert before[1]["producers"].evidence["acknowledged_by_one"]
    rehearsal.kill(2)
    rehearsal.wait_for(lambda p: 2 not in p.in_sync)
    rehearsal.write_all("lagging")
    alone = rehearsal.apps[1].findings()[ONE]
    assert (alone.verdict, DISK in alone.message) == (Verdict.FAILED, True), alone.message
    rehearsal.kill(LEADER)
    rehearsal.lose_disk(LEADER)
    for node in (2, LEADER):
        three.node(node).launch()
    three.wait_ready()
    rehearsal.wait_whole()
    compare(LAGGING, [found[ONE] for found in before], rehearsal)
