"""Client configuration from settings, for librdkafka and for Spark's Kafka source. Holds secrets: never log it."""

from __future__ import annotations

from typing import Any

from tidemark.errors import InvalidSettings
from tidemark.settings import Settings

_SECRET = ("password", "jaas")


class ClientConfig(dict[str, Any]):
    """A client's configuration whose `repr` hides secrets; a copy made with `{**config}` does not."""

    def __repr__(self) -> str:
        return repr({k: "***" if any(word in k for word in _SECRET) else v for k, v in self.items()})

    __str__ = __repr__


def librdkafka_config(settings: Settings) -> ClientConfig:
    """What every confluent-kafka client of an application begins with. Raises `InvalidSettings` without a user."""
    _require_user(settings)
    config = ClientConfig()
    config |= {
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


def spark_kafka_options(settings: Settings) -> ClientConfig:
    """The same for Spark's source, as its `kafka.…` options."""
    _require_user(settings)
    options = ClientConfig()
    options |= {
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


def _require_user(settings: Settings) -> None:
    if settings.security_protocol.startswith("SASL") and not settings.sasl_username:
        raise InvalidSettings(
            f"setting sasl_username: security_protocol {settings.security_protocol} needs a user; "
            "set TIDEMARK_SASL_USERNAME and TIDEMARK_SASL_PASSWORD"
        )


def _jaas(settings: Settings) -> str:
    module = "plain.PlainLoginModule" if settings.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
    return (
        f"org.apache.kafka.common.security.{module} required "
        f"username={_quoted(settings.sasl_username)} password={_quoted(settings.sasl_password.get_secret_value())};"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
