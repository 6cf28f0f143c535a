"""The effects of broker failures: which data is lost and which writes are refused if one broker or all brokers fail.

Pure functions of a sample of the cluster, the topology and the running instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.checks.replicas import ClusterDurability
from tidemark.names import TopicPartition, first_named
from tidemark.topology.plan import Acks
from tidemark.verdict import Finding, Verdict, worst


@dataclass(frozen=True)
class Loss:
    """The failure of one broker: the partitions that only its disk holds, and those that would then refuse writes."""

    broker: int
    gone: tuple[TopicPartition, ...]
    refused: tuple[TopicPartition, ...]


def losses(found: ClusterDurability) -> Iterator[Loss]:
    """Yield one loss per broker that answers."""
    for broker in sorted(found.brokers):
        gone, refused = [], []
        for topic in found.topics:
            least = topic.min_in_sync if found.acks_of(topic) is Acks.ALL else 1
            for partition in topic.partitions:
                left = partition.in_sync - {broker}
                if broker in partition.in_sync and not left:
                    gone.append(partition.partition)
                elif broker in partition.in_sync and len(left) < least:
                    refused.append(partition.partition)
        yield Loss(broker, tuple(gone), tuple(refused))


def of_one_broker(found: ClusterDurability) -> Finding:
    """The verdict for the failure of one broker: the one with the most partitions lost or refusing writes."""
    costliest = max(losses(found), key=lambda loss: (len(loss.gone), len(loss.refused)), default=Loss(-1, (), ()))
    unwaited = _unwaited(found)
    thin = [topic.topic for topic in found.topics if found.is_acknowledged_by_one(topic)]
    evidence = {
        "broker": costliest.broker,
        "gone_with_its_disk": [str(place) for place in costliest.gone],
        "writes_refused": [str(place) for place in costliest.refused],
        "acks": found.weakest_acks.value,
        "acknowledged_too_early": unwaited,
        "acknowledged_by_one": thin,
    }
    said = [_gone(costliest, found)] if costliest.gone else []
    if unwaited:
        message = (
            f"{_lost_unwaited(found, unwaited, 'are')}; records that state depends on wait for all replicas in sync"
        )
        said.append((Verdict.WARNING, message))
    if thin:
        message = (
            f"min.insync.replicas=1 of {first_named(thin)}: if the other replicas are behind, records that only the leader "
            "has acknowledged are lost with its disk; if it comes back empty, the other replicas follow it"
        )
        said.append((Verdict.WARNING, message))
    if costliest.refused:
        nothing = "" if said else "nothing is lost; "
        message = (
            f"{nothing}without broker {costliest.broker}, {len(costliest.refused)} partitions refuse writes meanwhile"
        )
        said.append((Verdict.WARNING, message))
    return _joined(
        "one broker down", said or [(Verdict.OK, "nothing is lost, and the application continues")], evidence
    )


def _gone(loss: Loss, found: ClusterDurability) -> tuple[Verdict, str]:
    truths = {topic.topic for topic in found.topics if topic.role.is_truth}
    has_state = any(place.topic in truths for place in loss.gone)
    return (
        Verdict.FAILED if has_state and not found.is_single else Verdict.WARNING,
        f"broker {loss.broker} alone holds {len(loss.gone)} partitions: while it is away, they cannot be used; if its disk "
        f"is lost, they are lost{', and the state with them' if has_state else ''}",
    )


def of_all_brokers(found: ClusterDurability) -> Finding:
    """Return the verdict for the failure of all brokers.

    Kafka acknowledges records from memory; the operating system decides when they are on disk.
    """
    unwaited = _unwaited(found)
    unclean = [topic.topic for topic in found.topics if topic.unclean_election and topic.replication > 1]
    evidence = {
        "flush_messages": found.flush_messages,
        "acks": found.weakest_acks.value,
        "acknowledged_too_early": unwaited,
        "unclean_election": unclean,
    }
    said = []
    if unclean:
        message = (
            f"unclean.leader.election.enable=true of {first_named(unclean)}: the replica that is back first becomes leader, "
            "and records that it lacks are lost"
        )
        said.append((Verdict.FAILED, message))
    if unwaited:
        message = (
            f"if they are stopped in order, nothing is lost; if killed, {_lost_unwaited(found, unwaited, 'may be')}"
        )
        said.append((Verdict.WARNING, message))
    power = _power_cut(
        found,
        "" if said else f"if they are stopped {'in order' if found.is_single else 'or killed'}, nothing is lost; ",
    )
    return _joined("all brokers down", [*said, power], evidence)


def _power_cut(found: ClusterDurability, else_nothing: str) -> tuple[Verdict, str]:
    if found.flush_messages == 1:
        message = "every record is on disk before it is acknowledged (log.flush.interval.messages=1)"
        return Verdict.OK, f"nothing is lost: {message}" if else_nothing else message
    lost = "records acknowledged in the last seconds may be lost"
    if found.is_single:
        return (
            Verdict.WARNING,
            f"{else_nothing}if the machine loses power, {lost}: log.flush.interval.messages is not 1, and no other "
            "broker has them",
        )
    return (
        Verdict.OK,
        f"{else_nothing}if all machines lose power at the same moment, {lost}: use separate power supplies, or set "
        "log.flush.interval.messages=1",
    )


def _unwaited(found: ClusterDurability) -> list[str]:
    """Return the outputs that count as written before every replica in sync has them.

    A topic with a single replica is left out, as it is lost with that anyway, unless its producer waits for no leader.
    """
    unwaited = [topic for topic in found.topics if found.acks_of(topic) is not Acks.ALL]
    return [topic.topic for topic in unwaited if topic.replication > 1 or found.acks_of(topic) is Acks.NONE]


def _lost_unwaited(found: ClusterDurability, topics: Sequence[str], verb: str) -> str:
    if found.weakest_acks is Acks.NONE:
        return f"acks=0: outputs to {first_named(topics)} {verb} lost if they were in flight, or if only the leader has them"
    return f"acks=1: outputs to {first_named(topics)} {verb} lost if only the leader has them, though it has acknowledged them"


def _joined(subject: str, said: Sequence[tuple[Verdict, str]], evidence: Mapping[str, object]) -> Finding:
    """Join several sentences to one finding, whose verdict is the worst of them."""
    findings = [Finding(subject, verdict, message, evidence) for verdict, message in said]
    return replace(findings[0], verdict=worst(findings), message="; ".join(finding.message for finding in findings))
