"""Client configuration from settings, for librdkafka and for Spark's Kafka source. Holds secrets: never log it."""

from __future__ import annotations

from typing import Any

from tidemark.settings import Settings


def librdkafka_config(settings: Settings) -> dict[str, Any]:
    """What every confluent-kafka client of an application begins with."""
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        # Connection attempts are told by the calls that fail; librdkafka's own lines would repeat them without end.
        "log_level": 1,
    }
    if settings.security_protocol.startswith("SASL"):
        config["sasl.mechanism"] = settings.sasl_mechanism
        config["sasl.username"] = settings.sasl_username
        config["sasl.password"] = settings.sasl_password.get_secret_value()
    if settings.security_protocol.endswith("SSL") and settings.ssl_ca_location:
        config["ssl.ca.location"] = settings.ssl_ca_location
    return config


def spark_kafka_options(settings: Settings) -> dict[str, str]:
    """The same for Spark's source, as its `kafka.…` options."""
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.security.protocol": settings.security_protocol,
    }
    if settings.security_protocol.startswith("SASL"):
        options["kafka.sasl.mechanism"] = settings.sasl_mechanism
        options["kafka.sasl.jaas.config"] = _jaas(settings)
    if settings.security_protocol.endswith("SSL") and settings.ssl_ca_location:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = settings.ssl_ca_location
    return options


def _jaas(settings: Settings) -> str:
    module = "plain.PlainLoginModule" if settings.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
    return (
        f"org.apache.kafka.common.security.{module} required "
        f"username={_quoted(settings.sasl_username)} password={_quoted(settings.sasl_password.get_secret_value())};"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
