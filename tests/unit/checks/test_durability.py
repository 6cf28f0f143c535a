"""Verdicts on durability: one table of clusters, each a change to one with which all is well."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tidemark.checks.broker_loss import losses
from tidemark.checks.durability import durability_findings
from tidemark.checks.durability_sampling import parse_eligible_leaders
from tidemark.checks.replicas import ClusterDurability, Replicas, TopicDurability, TopicRole
from tidemark.names import TopicPartition
from tidemark.registry.topic_identities import LostTopic, TopicUse
from tidemark.topology.plan import Acks
from tidemark.verdict import Verdict

NONE, LEADER, ALL = Acks
OK, WARNING, FAILED, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.NOT_ENOUGH_EVIDENCE


def partition(number=0, leader=1, replicas=(1, 2, 3), in_sync=(1, 2, 3), eligible=None):
    found = None if eligible is None else frozenset(eligible)
    return Replicas(TopicPartition("log", number), leader, frozenset(replicas), frozenset(in_sync), found)


LOG = TopicDurability("log", TopicRole.INTERNAL, 2, False, (partition(0), partition(1, leader=2)))
FINE = ClusterDurability(frozenset({1, 2, 3}), (LOG,), {0: ALL}, 3, 2, 2**63 - 1)
SINGLE = ClusterDurability(
    frozenset({1}),
    (replace(LOG, min_in_sync=1, partitions=(partition(replicas=(1,), in_sync=(1,)),)),),
    {0: ALL},
    1,
    1,
    2**63 - 1,
)


def log(*partitions, **changes):
    return replace(FINE, topics=(replace(LOG, partitions=partitions or LOG.partitions, **changes),))


def output(acks, *partitions, said=(), **changes):
    """The cluster with a topic of outputs beside the log. `said`: what running instances say, else what is stated."""
    own = tuple(replace(p, partition=replace(p.partition, topic="out")) for p in partitions or LOG.partitions)
    sink = replace(LOG, topic="out", role=TopicRole.SINK, partitions=own, **changes)
    running = dict(enumerate(said or [acks]))
    return replace(FINE, topics=(LOG, sink), stated_acks=acks, acks=running)


REMADE = LostTopic("log", TopicUse.CHANGELOG, "first", "second")
GONE = LostTopic("in", TopicUse.SOURCE, "first", None)
ALONE = partition(replicas=(1,), in_sync=(1,))
CASES = [
    (FINE, "log", OK, "3 replicas, 2 must be in sync, all are"),
    (log(partition(in_sync=(1, 2))), "log", WARNING, "under-replicated, if one more fails, writes are refused: start broker 3"),
    (log(partition(in_sync=(1, 2)), min_in_sync=1), "log", WARNING, "1 more may fail"),
    (log(partition(in_sync=(1,))), "log", FAILED, "fewer than min.insync.replicas=2 in sync: writes are refused"),
    (replace(log(partition(leader=None, in_sync=(), eligible=(2,))), brokers=frozenset({1, 3})), "log", FAILED,
     "start broker 2, which has all that was acknowledged; any other"),
    (replace(log(partition(leader=None, in_sync=())), brokers=frozenset({1})), "log", FAILED,
     "start broker 2, 3, which have all that was acknowledged; the eligible leaders are not known"),
    (log(unclean_election=True), "log", FAILED, "unclean.leader.election.enable=false"),
    (log(deleted_above_bytes=0), "log", FAILED, "retention.bytes=0: the broker deletes the oldest records"),
    (log(min_in_sync=4), "log", FAILED, "nothing can be written"),
    (log(min_in_sync=3), "log", WARNING, "if one broker is away, writes are refused"),
    (log(min_in_sync=1), "log", WARNING, "--add-config min.insync.replicas=2"),
    (log(ALONE, min_in_sync=1), "log", FAILED, "one replica, though there are more brokers"),
    (log(ALONE, min_in_sync=1, role=TopicRole.SOURCE), "log", WARNING, "one replica, though there are more brokers"),
    # With one copy there is no other that could lead.
    (log(ALONE, min_in_sync=1, role=TopicRole.SINK, unclean_election=True), "log", WARNING, "one replica"),
    # A single broker is meant so; what is offline is not.
    (SINGLE, "log", WARNING, "on the only broker there is"),
    (replace(SINGLE, topics=(replace(LOG, min_in_sync=1, partitions=(partition(leader=None, replicas=(1,), in_sync=(1,)),)),)),
     "log", FAILED, "have no leader"),
    # A broker that is away makes no single broker of the one that is left.
    (replace(log(partition(replicas=(1, 2), in_sync=(1,))), brokers=frozenset({1})), "log", FAILED, "writes are refused"),
    (replace(FINE, tolerated_broker_failures=1), "log", OK, "3 replicas"),
    (
        replace(FINE, tolerated_broker_failures=2),
        "log",
        FAILED,
        "survive the loss of 1 brokers, the topology asks for 2: that takes 5 replicas",
    ),
    (
        replace(log(min_in_sync=1), tolerated_broker_failures=1),
        "log",
        FAILED,
        "min.insync.replicas=1 survive the loss of 0 brokers",
    ),
    (replace(log(min_in_sync=3), tolerated_broker_failures=1), "log", FAILED, "and min.insync.replicas=2"),
    # Meant so or not: it was asked for.
    (replace(SINGLE, tolerated_broker_failures=1), "log", FAILED, "the topology asks for 1"),
    (
        replace(SINGLE, tolerated_broker_failures=1),
        "transaction.state.log",
        FAILED,
        "the topology asks to survive the loss of 1 brokers",
    ),
    (replace(FINE, tolerated_broker_failures=1), "transaction.state.log", OK, "factor=3"),
    (FINE, "transaction.state.log", OK, "factor=3, min.isr=2"),
    (SINGLE, "transaction.state.log", WARNING, "the only broker there is"),
    (replace(FINE, transaction_replication=1, transaction_min_in_sync=1), "transaction.state.log", FAILED, "lost with a disk"),
    (replace(FINE, transaction_replication=2), "transaction.state.log", FAILED, "lost with two disks"),
    (replace(FINE, transaction_min_in_sync=1), "transaction.state.log", WARNING, "set min.isr=2"),
    (replace(FINE, transaction_min_in_sync=4), "transaction.state.log", FAILED, "no transaction can begin"),
    (FINE, "producers", OK, "acks=all in 1 running"),
    (output(LEADER), "producers", OK, "acks=1 in 1 running instances, as the topology states"),
    (output(NONE), "producers", OK, "acks=0 in 1 running instances, as the topology states"),
    (replace(FINE, acks={0: ALL, 1: LEADER}), "producers", FAILED, "states acks=all, and instances 1 do not wait for that"),
    (output(LEADER, said=(NONE, LEADER)), "producers", FAILED, "states acks=1, and instances 0 do not wait for that"),
    (output(LEADER, said=(LEADER, ALL)), "producers", WARNING, "states acks=1, and instances 1 wait for more"),
    # What is wrong comes before what is not known, and that before what is merely more than enough.
    (output(LEADER, said=(NONE, None, ALL)), "producers", FAILED, "instances 0 do not wait for that"),
    (output(LEADER, said=(None, ALL)), "producers", UNKNOWN, "instances 0 do not report it"),
    (replace(FINE, acks={0: ALL, 1: None}), "producers", UNKNOWN, "instances 1 do not report it"),
    (replace(FINE, acks={}), "producers", UNKNOWN, "no instance runs on this machine"),
    (log(min_in_sync=1), "producers", WARNING, "min.insync.replicas=1 of log lets a leader alone acknowledge"),
    (output(ALL, min_in_sync=1), "producers", WARNING, "min.insync.replicas=1 of out lets"),
    # With acks=1 the leader alone acknowledges anyway, and with one replica there is no other.
    (output(LEADER, min_in_sync=1), "producers", OK, "acks=1"),
    (log(ALONE, min_in_sync=1), "producers", OK, "acks=all"),
    # The source's producer is not ours.
    (log(min_in_sync=1, role=TopicRole.SOURCE), "producers", OK, "acks=all"),
    # A leader takes outputs that wait for no other, however few replicas are in sync.
    (output(LEADER, partition(in_sync=(1,))), "out", WARNING, "under-replicated, if one more fails, writes are refused"),
    (output(LEADER, partition(in_sync=(1, 2))), "out", WARNING, "under-replicated, 1 more may fail"),
    (output(LEADER, min_in_sync=4), "out", OK, "3 replicas"),
    (output(ALL, partition(in_sync=(1,))), "out", FAILED, "writes are refused"),
    (output(ALL), "one broker down", OK, "nothing is lost, and the application continues"),
    (output(LEADER), "one broker down", WARNING, "acks=1: outputs to out are lost if only the leader has them"),
    (output(NONE), "one broker down", WARNING, "acks=0: outputs to out are lost if they were in flight, or"),
    # What instances do counts, not only what is stated.
    (output(ALL, said=(ALL, LEADER)), "one broker down", WARNING, "acks=1: outputs to out are lost"),
    (output(LEADER, said=(ALL,)), "one broker down", WARNING, "acks=1: outputs to out are lost"),
    (output(LEADER, said=(None,)), "one broker down", WARNING, "acks=1: outputs to out are lost"),
    # Without a second replica nothing more is lost by acks=1, by acks=0 what is on its way.
    (output(LEADER, ALONE, min_in_sync=1), "one broker down", WARNING, "if its disk is lost, they are lost"),
    (output(NONE, ALONE, min_in_sync=1), "one broker down", WARNING, "they are lost; acks=0: outputs to out"),
    (output(LEADER, partition(in_sync=(1,))), "one broker down", WARNING, "alone holds 1 partitions"),
    (log(min_in_sync=1), "one broker down", WARNING, "min.insync.replicas=1 of log: if the other replicas are behind"),
    (output(LEADER), "all brokers down", WARNING, "killed, acks=1: outputs to out may be lost if only the leader has them"),
    (output(NONE), "all brokers down", WARNING, "killed, acks=0: outputs to out may be lost if they were in flight"),
    (output(LEADER, ALONE, min_in_sync=1), "all brokers down", OK, "stopped or killed, nothing is lost"),
    # That a leader has it on its disk does not help where another leads.
    (replace(output(LEADER), flush_messages=1), "all brokers down", WARNING, "acks=1: outputs to out may be lost"),
    (log(unclean_election=True), "all brokers down", FAILED, "unclean.leader.election.enable=true of log: the replica that is"),
    (FINE, "one broker down", OK, "the application continues"),
    (log(partition(in_sync=(1, 2))), "one broker down", WARNING, "without broker 1, 1 partitions refuse writes"),
    (log(partition(in_sync=(2,)), min_in_sync=1), "one broker down", FAILED, "broker 2 alone holds 1 partitions"),
    (log(ALONE, min_in_sync=1, role=TopicRole.SINK), "one broker down", WARNING, "are lost"),
    (SINGLE, "one broker down", WARNING, "the state with them"),
    (FINE, "all brokers down", OK, "lose power at the same moment"),
    (SINGLE, "all brokers down", WARNING, "if the machine loses power"),
    (replace(SINGLE, flush_messages=1), "all brokers down", OK, "on disk before it is acknowledged"),
    (replace(FINE, lost=(REMADE,), known_topics=4), "log", FAILED, "changelog log was deleted and created again"),
    (replace(FINE, lost=(REMADE,), known_topics=4), "topic identities", FAILED, "tidemark repair run NAME"),
    # What is gone has no finding of its own.
    (replace(FINE, lost=(GONE,), known_topics=4), "topic identities", FAILED, "source topic in was deleted: this lost"),
    (replace(FINE, lost=(GONE,), known_topics=4), "log", OK, "3 replicas"),
    (replace(FINE, known_topics=4), "topic identities", OK, "4 topics have the ids that the last commit knew"),
    (FINE, "topic identities", UNKNOWN, "wait until an instance has committed"),
    (log(truncated=(0, 1)), "log", FAILED, "partitions 0, 1 have lost their beginning"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_should_judge_a_cluster(case):
    found, subject, verdict, said = CASES[case]
    finding = {finding.subject: finding for finding in durability_findings(found)}[subject]
    assert finding.verdict is verdict, finding.message
    assert said in finding.message
    assert json.dumps(dict(finding.evidence))


def test_should_refuse_no_write_to_an_acks_0_output_while_its_leader_is_up():
    found = output(LEADER, partition(in_sync=(1, 2)))
    assert [loss.refused for loss in losses(found)] == [(), (), ()]
    assert [len(loss.refused) for loss in losses(replace(found, stated_acks=ALL, acks={0: ALL}))] == [1, 1, 0]


def test_should_state_in_the_evidence_which_acks_each_topic_uses():
    evidence = {f.subject: f.evidence for f in durability_findings(output(NONE, said=(LEADER, None)))}
    assert (evidence["log"]["acks"], evidence["out"]["acks"]) == ("all", "0")
    assert evidence["producers"] == {"stated": "0", "acks": {"0": "1", "1": None}, "acknowledged_by_one": []}
    assert evidence["one broker down"]["acknowledged_too_early"] == ["out"]


def test_should_count_what_is_lost_with_each_broker():
    found = log(partition(0), partition(1, in_sync=(2, 3)), partition(2, in_sync=(3,)))
    summary = [
        (loss.broker, [p.partition for p in loss.gone], [p.partition for p in loss.refused]) for loss in losses(found)
    ]
    assert summary == [(1, [], []), (2, [], [1]), (3, [2], [1])]


def test_should_read_the_eligible_leaders_that_kafka_prints():
    said = (
        "Topic: log\tTopicId: x\tPartitionCount: 2\tReplicationFactor: 3\tConfigs: min.insync.replicas=2\n"
        "\tTopic: log\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1\tElr: 2,3\tLastKnownElr: 9\n"
        "\tTopic: log\tPartition: 1\tLeader: none\tReplicas: 1\tIsr: \tElr: \tLastKnownElr: 1\n"
    )
    assert parse_eligible_leaders("log", said) == {0: {2, 3}, 1: frozenset()}
    # A cluster without the feature says N/A.
    assert parse_eligible_leaders("log", said.replace("Elr: 2,3", "Elr: N/A").replace("Elr: \t", "Elr: N/A\t")) is None
