"""Computes what an application loses, or cannot do, when brokers fail: a verdict per topic, and one per kind of failure.

A pure function of what the cluster reports. If a cluster has never had more than one broker, that is taken as intended:
a fault that follows only from it is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.checks.broker_loss import of_all_brokers, of_one_broker
from tidemark.checks.replicas import ClusterDurability, Replicas, TopicDurability, TopicRole
from tidemark.kafka.topics import replication_for, tolerated_failures
from tidemark.names import first_named
from tidemark.registry.topic_identities import CHANGELOG_REMEDY
from tidemark.topology.plan import Acks
from tidemark.verdict import Finding, Verdict


def durability_findings(found: ClusterDurability) -> list[Finding]:
    """Return findings on topics, their identities, the transaction log's settings, the producers, and broker failures."""
    return [
        *(_of_topic(topic, found) for topic in found.topics),
        _of_identities(found),
        _of_transaction_log(found),
        _of_producers(found),
        of_one_broker(found),
        of_all_brokers(found),
    ]


def _of_topic(topic: TopicDurability, found: ClusterDurability) -> Finding:
    verdict, message = _topic_fault(topic, found) or (
        Verdict.OK,
        f"{topic.replication} replicas, {topic.min_in_sync} must be in sync, all are",
    )
    evidence = {
        "role": str(topic.role),
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "min_in_sync": topic.min_in_sync,
        "acks": found.acks_of(topic).value,
        "tolerated_broker_failures": tolerated_failures(topic.replication, topic.min_in_sync),
        "asked_to_survive": found.tolerated_broker_failures,
        "unclean_election": topic.unclean_election,
        "deleted_above_bytes": topic.deleted_above_bytes,
        "offline": [_number(p) for p in topic.partitions if p.leader is None],
        "under_min_in_sync": [_number(p) for p in topic.partitions if len(p.in_sync) < topic.min_in_sync],
        "under_replicated": [_number(p) for p in topic.partitions if len(p.in_sync) < len(p.replicas)],
        "eligible_leaders": {
            str(_number(p)): sorted(p.eligible) for p in topic.partitions if p.eligible is not None and p.eligible
        },
    }
    return Finding(topic.topic, verdict, message, evidence)


def _topic_fault(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    rules: Sequence[Callable[[TopicDurability, ClusterDurability], tuple[Verdict, str] | None]] = (
        _lost, _offline, _truncated, _not_writable, _unclean, _deleted_by_size, _less_than_asked, _one_copy, _lagging_replicas,
        _thin_acknowledgement,
    )  # fmt: skip
    return next((fault for fault in (rule(topic, found) for rule in rules) if fault is not None), None)


def _lost(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    lost = next((each for each in found.lost if each.topic == topic.topic), None)
    return None if lost is None else (Verdict.FAILED, f"{lost.reason}; {lost.remedy}")


def _truncated(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if not topic.truncated:
        return None
    return (
        Verdict.FAILED,
        f"partitions {_listed(topic.truncated)} have lost their beginning, though the topic is only compacted: keys that were "
        f"not written since are only in local stores, standbys and savepoints; {CHANGELOG_REMEDY}",
    )


def _of_identities(found: ClusterDurability) -> Finding:
    """Compare the topics' ids with those of the last commit. Includes deleted topics, which have no finding of their own."""
    evidence = {
        "compared": found.known_topics,
        "differing": {each.topic: {"known": each.known_id, "found": each.found_id} for each in found.lost},
    }
    if found.lost:
        verdict, message = (
            Verdict.FAILED,
            "; ".join(each.reason for each in found.lost)
            + "; "
            + "; ".join(dict.fromkeys(each.remedy for each in found.lost)),
        )
    elif not found.known_topics:
        verdict, message = (
            Verdict.NOT_ENOUGH_EVIDENCE,
            "no commit has recorded the ids of the topics yet: wait until an instance has committed",
        )
    else:
        verdict, message = Verdict.OK, f"{found.known_topics} topics have the ids that the last commit knew"
    return Finding("topic identities", verdict, message, evidence)


def _offline(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    offline = [p for p in topic.partitions if p.leader is None]
    if not offline:
        return None
    needed = sorted({broker for p in offline for broker in (p.eligible or p.in_sync or p.replicas)} - found.brokers)
    unknown = "" if all(p.eligible is not None for p in offline) else "; the eligible leaders are not known"
    return (
        Verdict.FAILED,
        f"partitions {_format(offline)} have no leader, nothing is read or written: start broker {_listed(needed)}, which "
        f"{'have' if len(needed) > 1 else 'has'} all that was acknowledged{unknown}; any other leader would lose records",
    )


def _not_writable(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if found.acks_of(topic) is not Acks.ALL:
        return None  # A leader accepts records that do not wait for other replicas, however few those are.
    if topic.replication < topic.min_in_sync:
        return (
            Verdict.FAILED,
            f"{topic.replication} replicas and min.insync.replicas={topic.min_in_sync}: nothing can be written; add "
            "replicas with `tidemark kafka reassign-partitions`",
        )
    short = [p for p in topic.partitions if len(p.in_sync) < topic.min_in_sync]
    if not short:
        return None
    away = sorted(frozenset().union(*(p.replicas - p.in_sync for p in short)))
    return (
        Verdict.FAILED,
        f"partitions {_format(short)} have fewer than min.insync.replicas={topic.min_in_sync} in sync: writes are refused; "
        f"start broker {_listed(away)}, or see in its log why it does not follow",
    )


def _unclean(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if not topic.unclean_election or topic.replication < 2:
        return None
    return (
        Verdict.FAILED,
        "unclean.leader.election.enable=true: a replica that lacks acknowledged records may become leader; they are then lost "
        "and offsets "
        f"go back; `tidemark kafka configs --alter --entity-type topics --entity-name {topic.topic} --add-config "
        "unclean.leader.election.enable=false`",
    )


def _deleted_by_size(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if topic.deleted_above_bytes is None:
        return None
    return (
        Verdict.FAILED,
        f"retention.bytes={topic.deleted_above_bytes}: the broker deletes the oldest records of a partition that is larger, "
        f"acknowledged or not; `tidemark kafka configs --alter --entity-type topics --entity-name {topic.topic} --add-config "
        "retention.bytes=-1`",
    )


def _less_than_asked(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    stands = tolerated_failures(topic.replication, topic.min_in_sync)
    if stands >= found.tolerated_broker_failures:
        return None
    replicas, in_sync = replication_for(found.tolerated_broker_failures)
    return (
        Verdict.FAILED,
        f"{topic.replication} replicas and min.insync.replicas={topic.min_in_sync} survive the loss of {stands} brokers, the "
        f"topology asks for {found.tolerated_broker_failures}: that takes {replicas} replicas (`tidemark kafka "
        f"reassign-partitions`) and min.insync.replicas={in_sync}",
    )


def _one_copy(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if topic.replication > 1:
        return None
    if found.is_single:
        return Verdict.WARNING, "one replica, on the only broker there is: it is lost with that broker's disk"
    return (
        Verdict.FAILED if topic.role.is_truth else Verdict.WARNING,
        "one replica, though there are more brokers: it is lost with one disk; add replicas with `tidemark kafka "
        "reassign-partitions`, and set TIDEMARK_REPLICATION_FACTOR for new topics",
    )


def _lagging_replicas(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    behind = [p for p in topic.partitions if len(p.in_sync) < len(p.replicas)]
    if not behind:
        return None
    away = sorted(frozenset().union(*(p.replicas - p.in_sync for p in behind)))
    in_sync = min(len(p.in_sync) for p in behind)
    # Without acks=all a leader accepts records until it is gone itself.
    spare = in_sync - (topic.min_in_sync if found.acks_of(topic) is Acks.ALL else 1)
    rest = f"{spare} more may fail" if spare > 0 else "if one more fails, writes are refused"
    return (
        Verdict.WARNING,
        f"partitions {_format(behind)} are under-replicated, {rest}: start broker {_listed(away)}, or see in its log why it "
        "does not follow",
    )


def _thin_acknowledgement(topic: TopicDurability, found: ClusterDurability) -> tuple[Verdict, str] | None:
    if found.acks_of(topic) is not Acks.ALL:
        return None  # The setting matters only to records that wait for all; "one broker down" reports the losses.
    set_it = (
        f"`tidemark kafka configs --alter --entity-type topics --entity-name {topic.topic} --add-config "
        f"min.insync.replicas={max(1, topic.replication - 1)}`"
    )
    if topic.min_in_sync == 1 and topic.replication > 2:
        return (
            Verdict.WARNING,
            f"min.insync.replicas=1: while the other replicas are behind, records are acknowledged that one disk has; {set_it}",
        )
    if topic.min_in_sync == topic.replication:
        return (
            Verdict.WARNING,
            f"all of its {topic.replication} replicas must be in sync: if one broker is away, writes are refused; {set_it}",
        )
    return None


def _of_transaction_log(found: ClusterDurability) -> Finding:
    replication, in_sync = found.transaction_replication, found.transaction_min_in_sync
    evidence = {"replication": replication, "min_in_sync": in_sync, "brokers": len(found.known_brokers)}
    summary = f"transaction.state.log.replication.factor={replication}, min.isr={in_sync}"
    if replication < in_sync:
        verdict, message = Verdict.FAILED, f"{summary}: no transaction can begin; raise the factor on the brokers"
    elif tolerated_failures(replication, in_sync) < found.tolerated_broker_failures:
        verdict, message = (
            Verdict.FAILED,
            f"{summary}: the topology asks to survive the loss of {found.tolerated_broker_failures} brokers; that takes "
            f"{' and '.join(map(str, replication_for(found.tolerated_broker_failures)))}",
        )
    elif found.is_single:
        verdict, message = Verdict.WARNING, f"{summary}, on the only broker there is"
    elif replication < min(3, len(found.known_brokers)):
        verdict, message = (
            Verdict.FAILED,
            f"{summary}: the outcomes of transactions are lost with {'a' if replication == 1 else 'two'} disk"
            f"{'' if replication == 1 else 's'}; set 3 and 2 on the brokers before `__transaction_state` is created, or later "
            "use `tidemark kafka reassign-partitions`",
        )
    elif in_sync < 2:
        verdict, message = (
            Verdict.WARNING,
            f"{summary}: an outcome is acknowledged that only one disk has; set min.isr=2",
        )
    else:
        verdict, message = Verdict.OK, summary
    return Finding("transaction.state.log", verdict, message, evidence)


def _of_producers(found: ClusterDurability) -> Finding:
    """Compare `acks` of the topology with `acks` of the running instances and with `min.insync.replicas` of the topics."""
    stated = found.stated_acks
    said = {instance: acks for instance, acks in sorted(found.acks.items()) if acks is not None}
    weaker = [instance for instance, acks in said.items() if acks.is_weaker_than(stated)]
    stronger = [instance for instance, acks in said.items() if stated.is_weaker_than(acks)]
    silent = [instance for instance in sorted(found.acks) if instance not in said]
    thin = [
        t.topic
        for t in found.topics
        if t.role in (TopicRole.SINK, TopicRole.INTERNAL) and found.is_acknowledged_by_one(t)
    ]
    evidence = {
        "stated": stated.value,
        "acks": {str(instance): acks and acks.value for instance, acks in sorted(found.acks.items())},
        "acknowledged_by_one": thin,
    }
    other = "stop them, and start them from this version of the topology"
    if weaker:
        verdict, message = (
            Verdict.FAILED,
            f"the topology states acks={stated.value}, and instances {_listed(weaker)} do not wait for that: outputs may be "
            f"lost with one broker; {other}",
        )
    elif not found.acks or silent:
        who = "no instance runs on this machine" if not found.acks else f"instances {_listed(silent)} do not report it"
        verdict, message = (
            Verdict.NOT_ENOUGH_EVIDENCE,
            f"{who}, so acks of its producer is not known; the topology states acks={stated.value}; check while one runs",
        )
    elif stronger:
        verdict, message = (
            Verdict.WARNING,
            f"the topology states acks={stated.value}, and instances {_listed(stronger)} wait for more; {other}",
        )
    elif thin:
        verdict, message = (
            Verdict.WARNING,
            f"acks={stated.value} in {len(said)} running instances, as the topology states, but min.insync.replicas=1 of "
            f"{first_named(thin)} lets a leader alone acknowledge; set it to 2, with three replicas",
        )
    else:
        verdict, message = Verdict.OK, f"acks={stated.value} in {len(said)} running instances, as the topology states"
    return Finding("producers", verdict, message, evidence)


def _number(partition: Replicas) -> int:
    return partition.partition.partition


def _format(partitions: Sequence[Replicas]) -> str:
    return _listed([_number(partition) for partition in partitions])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
