"""Options of Kafka clients that only Tidemark may set, and the Java names of librdkafka's options."""

from __future__ import annotations

from collections.abc import Mapping


def _set_by(setting: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, f"set by the setting {setting}")


def _own(reason: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, f"set by Tidemark, {reason}")


_EXACTLY_ONCE = "because exactly-once depends on it"
_BATCHES = "because the size of batches and restores depends on it"

_IN_BOTH: Mapping[str, str] = {
    **_set_by("bootstrap_servers", "bootstrap.servers"),
    **_set_by("security_protocol", "security.protocol"),
    **_set_by("sasl_mechanism", "sasl.mechanism"),
    **_set_by("ssl_certificate_location", "ssl.key.password"),
    **_set_by("oauth_token_url", "sasl.oauthbearer.token.endpoint.url"),
    **_set_by("session_timeout_ms", "session.timeout.ms", "heartbeat.interval.ms"),
    **_set_by("transaction_timeout_ms", "transaction.timeout.ms"),
    **_set_by("broker_timeout_ms", "message.timeout.ms", "delivery.timeout.ms"),
    **_set_by("auto_offset_reset", "auto.offset.reset"),
    **_own(
        _EXACTLY_ONCE,
        "group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy",
        "max.poll.interval.ms", "enable.auto.commit", "auto.commit.interval.ms", "isolation.level", "transactional.id",
        "enable.idempotence", "acks", "partitioner", "retries", "max.in.flight.requests.per.connection",
        "allow.auto.create.topics",
    ),
    **_own(_BATCHES, "linger.ms", "batch.size", "compression.type"),
}  # fmt: skip

FIXED: Mapping[str, str] = {
    **_IN_BOTH,
    **_set_by("bootstrap_servers", "metadata.broker.list"),
    **_set_by("sasl_mechanism", "sasl.mechanisms", "sasl.oauthbearer.method"),
    **_set_by("sasl_username", "sasl.username", "sasl.oauthbearer.client.id"),
    **_set_by("sasl_password", "sasl.password", "sasl.oauthbearer.client.secret"),
    **_set_by("oauth_scope", "sasl.oauthbearer.scope"),
    **_set_by("ssl_ca_location", "ssl.ca.location", "https.ca.location"),
    **_set_by("ssl_certificate_location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"),
    **_own(
        _EXACTLY_ONCE,
        "auto.commit.enable", "enable.auto.offset.store", "enable.partition.eof", "request.required.acks",
        "message.send.max.retries", "max.in.flight", "delivery.report.only.error", "retry.backoff.ms",
        "retry.backoff.max.ms",
    ),
    **_own(
        _BATCHES,
        "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes", "queued.min.messages",
        "queued.max.messages.kbytes", "fetch.wait.max.ms", "fetch.queue.backoff.ms", "compression.codec",
        "message.max.bytes", "message.copy.max.bytes",
    ),
    **_own("because failed calls already report what its log lines repeat", "log_level"),
}  # fmt: skip
"""Options of librdkafka that `[kafka]` must not contain, each with the reason."""

FIXED_IN_JAVA: Mapping[str, str] = {
    **_IN_BOTH,
    **_set_by("sasl_username and sasl_password", "sasl.jaas.config"),
    **_set_by("sasl_mechanism", "sasl.login.callback.handler.class"),
    **_set_by("ssl_ca_location", "ssl.truststore.location", "ssl.truststore.type"),
    **_set_by("ssl_certificate_location", "ssl.keystore.location", "ssl.keystore.type"),
    **_own(_BATCHES, "max.poll.records", "max.partition.fetch.bytes", "fetch.max.wait.ms"),
    **_own(
        "because Spark's source sets it",
        "key.deserializer", "value.deserializer", "key.serializer", "value.serializer", "interceptor.classes",
    ),
}  # fmt: skip
"""Options of Java clients that `[kafka_java]` must not contain, each with the reason."""

_SAME_IN_JAVA = frozenset(
    {
        "client.id", "client.rack", "client.dns.lookup", "connections.max.idle.ms", "metadata.max.age.ms", "fetch.min.bytes",
        "fetch.max.bytes", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "socket.connection.setup.timeout.ms",
        "enable.metrics.push",
    }
)  # fmt: skip
_OTHER_IN_JAVA = {
    "socket.timeout.ms": "request.timeout.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}


def in_java(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of librdkafka's options that Java clients have too, by their Java names; leave out the others."""
    found = {name: value for name, value in options.items() if name in _SAME_IN_JAVA}
    for name, java_name in _OTHER_IN_JAVA.items():
        if name in options:
            # Java turns the verification of host names off with an empty value.
            found[java_name] = "" if options[name] == "none" else options[name]
    return found
