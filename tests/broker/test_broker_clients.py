"""Client configuration says what the settings say, and keeps secrets out of what is printed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tidemark.broker.clients import librdkafka_config, spark_kafka_options
from tidemark.errors import InvalidSettings
from tidemark.settings import Settings

SASL: dict[str, Any] = {
    "bootstrap_servers": "kafka-1:9093,kafka-2:9093",
    "security_protocol": "SASL_SSL",
    "sasl_username": 'an "app" \\ user',
    "sasl_password": 'pass"word\\1',
    "ssl_ca_location": "/etc/ca.pem",
}


def test_plaintext_should_carry_no_credentials() -> None:
    settings = Settings.load(bootstrap_servers="kafka:9092", sasl_username="u", ssl_ca_location="/etc/ca.pem")
    assert librdkafka_config(settings) == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "PLAINTEXT",
        "log_level": 1,
    }
    assert spark_kafka_options(settings) == {
        "kafka.bootstrap.servers": "kafka:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_sasl_over_ssl_should_be_spelled_for_librdkafka() -> None:
    config = librdkafka_config(Settings.load(**SASL))
    assert config == {
        "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": SASL["sasl_username"],
        "sasl.password": SASL["sasl_password"],
        "ssl.ca.location": "/etc/ca.pem",
        "log_level": 1,
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")],
)
def test_sasl_over_ssl_should_be_spelled_for_java_with_quotes_escaped(mechanism: str, module: str) -> None:
    options = spark_kafka_options(Settings.load(**SASL, sasl_mechanism=mechanism))
    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.sasl.jaas.config"] == (
        f"org.apache.kafka.common.security.{module} required "
        'username="an \\"app\\" \\\\ user" password="pass\\"word\\\\1";'
    )
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert options["kafka.ssl.truststore.location"] == "/etc/ca.pem"


def test_sasl_without_ssl_should_name_no_certificates() -> None:
    settings = Settings.load(**(SASL | {"security_protocol": "SASL_PLAINTEXT"}))
    assert "ssl.ca.location" not in librdkafka_config(settings)
    assert not [key for key in spark_kafka_options(settings) if "ssl.truststore" in key]


@pytest.mark.parametrize("make", [librdkafka_config, spark_kafka_options])
def test_a_secret_should_not_show_when_printed_or_logged(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.load(**SASL)
    config = make(settings)
    logging.getLogger("any").warning("config %s %r", config, settings)
    shown = f"{config} {config!r} {config!s} {settings!r} {settings} {caplog.text}"
    assert "word" not in shown.replace("password", "")
    assert "***" in repr(config)


@pytest.mark.parametrize("make", [librdkafka_config, spark_kafka_options])
def test_sasl_without_a_user_should_be_refused(make: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"sasl_username.*TIDEMARK_SASL_USERNAME"):
        make(Settings.load(security_protocol="SASL_SSL"))


def test_a_client_should_accept_the_configuration() -> None:
    AdminClient(librdkafka_config(Settings.load(bootstrap_servers="127.0.0.1:1")))
