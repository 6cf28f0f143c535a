"""The short form of `make failover`: a machine is lost, and the standby of the other one helps."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.support.brokers import brief
from tests.system.crash.bench import CHEAP, RULES
from tests.system.crash.run import FAST_ABORT
from tests.system.failover.cases import CASES, Case, Loss, Outcome, Queries, summary, table
from tests.system.failover.run import run
from tests.system.failover.streams import copied_offsets
from tests.system.failover.ward import FIRST, Ward, faults_of_queries

from tidemark.devstack.broker import EmbeddedBroker


class Quick(Ward):
    """A `Ward` whose drivers start faster and whose sessions end earlier."""

    session_timeout_ms = 6_000
    commit_interval_ms = 200

    def environment(self, disk: str = FIRST) -> dict[str, str]:
        brief = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "TIDEMARK_SPARK_DRIVER_MEMORY": "512m"}
        patient = {"TIDEMARK_PROBE": "tests.system.crash.patient:kill"}
        return {**super().environment(disk), **brief, **patient, **CHEAP}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(420)
def test_should_answer_queries_and_lose_nothing_when_a_machine_is_lost_and_a_standby_is_there(
    mark, kafka_jars, spark_jars, tmp_path
):
    with brief(EmbeddedBroker(tmp_path / "broker", kafka_jars, overrides=FAST_ABORT)) as broker:
        ward = Quick(broker.bootstrap, tmp_path / "ward", 7, 2)
        try:
            (outcome,) = run(ward, [Case(Loss.MACHINE, has_standby=True, has_other=False)], 3_000, Console())
            handed_over = (ward.folder / "standby.log").read_text()
        finally:
            ward.close()
    assert outcome.faults == ()
    assert outcome.queries.by_standby > 0
    assert outcome.queries.unanswered == 0
    assert 0 < outcome.running_s < outcome.commit_s
    # The new process of instance 0 took the copies, and read only what came after them.
    for partition in (0, 1):
        assert f"handed over: store=0_{partition}/{RULES.store}" in handed_over


def test_should_play_each_combination_once():
    assert len(set(CASES)) == 3 * 2 * 2


def test_should_launch_an_instance_again_unless_its_machine_is_lost_and_another_instance_runs():
    assert [case for case in CASES if not case.is_launched_again] == [
        Case(Loss.MACHINE, has_standby, has_other=True) for has_standby in (False, True)
    ]


def test_should_leave_out_of_the_comparison_only_a_standby_that_is_no_instance():
    assert [case for case in CASES if not case.has_peer] == [Case(loss, True, has_other=False) for loss in Loss]


OUTCOME = Outcome(CASES[0], 3.0, 4.5, Queries(answered=5, unanswered=2, outage_s=2.25), ())
TAKEN_OVER = Case(Loss.MACHINE, has_standby=False, has_other=True)


def test_should_name_the_worst_time_and_whether_all_is_exact_in_the_last_line():
    wrong = Outcome(CASES[7], 1.0, 2.0, Queries(answered=5, by_standby=2), ("sink: …",), peer_commit_s=9.0)
    assert summary([OUTCOME]) == "failover: cases=1 exact=true worst_ms=4500"
    assert summary([OUTCOME, wrong]) == "failover: cases=2 exact=false worst_ms=4500"
    assert summary([]) == "failover: cases=0 exact=false worst_ms=0"


def test_should_measure_an_outage_from_the_loss_to_the_last_query_that_nobody_answered():
    queries = Queries(answered=3, unanswered=1)
    queries.begin(10.0)
    queries.miss(10.5)
    queries.answered += 1
    queries.miss(12.5)
    assert (queries.answered, queries.unanswered, queries.outage_s) == (1, 2, 2.5)
    queries.begin(20.0)
    assert (queries.answered, queries.unanswered, queries.outage_s) == (0, 0, 0.0)


def test_should_not_accept_a_case_in_which_nobody_asked():
    assert faults_of_queries(TAKEN_OVER, Queries(), 10_000) == ["no query was asked after the loss"]


def test_should_accept_unanswered_queries_for_the_session_and_two_seconds_when_another_instance_takes_over():
    assert faults_of_queries(TAKEN_OVER, Queries(unanswered=9, outage_s=12.0), 10_000) == []
    assert faults_of_queries(TAKEN_OVER, Queries(unanswered=9, outage_s=12.1), 10_000) == [
        "a key was not answered 12.1 s after the loss, and should be after 12.0 s"
    ]


def test_should_accept_unanswered_queries_until_an_instance_is_launched_again_but_none_beside_a_standby():
    missed = Queries(unanswered=1, outage_s=30.0, examples=["query of p0001 was not answered"])
    for case in CASES:
        if case.has_standby:
            assert faults_of_queries(case, missed, 10_000) == missed.examples
        elif case.is_launched_again:
            assert faults_of_queries(case, missed, 10_000) == []


def test_should_show_a_case_in_each_row_of_the_table():
    rows = table([OUTCOME, Outcome(CASES[7], 1.0, 2.0, Queries(answered=5, by_standby=2), ())], has_peer=False)
    assert rows[2] == "| process | no | no | 3.0 s | 4.5 s | not 2 of 7, the last after 2.2 s |"
    assert rows[3] == "| process and machine | yes | yes | 1.0 s | 2.0 s | all 5 (2 by the standby) |"


def test_should_show_kafka_streams_beside_each_case_that_it_has():
    measured = Outcome(CASES[1], 3.0, 4.5, Queries(answered=5), (), peer_commit_s=2.25)
    rows = table([measured, Outcome(CASES[2], 1.0, 2.0, Queries(answered=5), ())], has_peer=True)
    assert rows[2] == "| process | no | yes | 3.0 s | 4.5 s | 2.2 s | all 5 (0 by the standby) |"
    assert rows[3] == "| process | yes | no | 1.0 s | 2.0 s | – | all 5 (0 by the standby) |"


def test_should_know_how_far_each_copy_of_kafka_streams_is():
    log = "state A -> B\nstandby 1 at 7\nstandby 0 at 5\nstandby 1 at 9\nstandby 0 ended\nstandby 2 at"
    assert copied_offsets(log) == {1: 9}
