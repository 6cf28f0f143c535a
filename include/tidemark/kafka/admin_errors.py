"""Turns a failed request of an admin client into an error: refused for good, or worth another try."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import OutcomeUnknown, PreflightFailed

_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_REFUSED = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNSUPPORTED_VERSION,
}
"""The next request would get the same answer."""


def failed_request(what: str, error: KafkaException, right: str) -> PreflightFailed | OutcomeUnknown:
    """Return the error to raise for a failed request. `what` says what failed, `right` which right the user needs.

    The right is named only if the broker has answered that it is missing. If no broker has answered in time, or the leader is
    not known, the next try may succeed: `OutcomeUnknown`.
    """
    reason: KafkaError = error.args[0]
    if reason.code() in _DENIED:
        return PreflightFailed(f"{what}: {reason.str()}; {right}")
    if reason.code() in _REFUSED:
        return PreflightFailed(f"{what}: {reason.str()}")
    return OutcomeUnknown(f"{what}: {reason.str()}; try again, or look at the brokers' logs")
