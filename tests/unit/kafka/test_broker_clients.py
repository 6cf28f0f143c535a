"""Client configuration says what the settings say, and keeps secrets out of what is printed."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tidemark.errors import InvalidSettings
from tidemark.kafka.client_options import FIXED, FIXED_IN_JAVA
from tidemark.kafka.clients import java_properties, java_system_properties, librdkafka_config
from tidemark.kafka.properties import as_properties
from tidemark.settings import Settings

SASL: dict[str, Any] = {
    "bootstrap_servers": "kafka-1:9093,kafka-2:9093",
    "security_protocol": "SASL_SSL",
    "sasl_username": 'an "app" \\ user',
    "sasl_password": 'pass"word\\1',
    "ssl_ca_location": "/etc/ca.pem",
}


def test_should_send_no_credentials_with_plaintext() -> None:
    settings = Settings.load(bootstrap_servers="kafka:9092", sasl_username="u", ssl_ca_location="/etc/ca.pem")
    assert librdkafka_config(settings) == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "PLAINTEXT",
        "log_level": 1,
        "reconnect.backoff.max.ms": 1000,
    }
    assert java_properties(settings) == {"bootstrap.servers": "kafka:9092", "security.protocol": "PLAINTEXT"}


def test_should_configure_sasl_over_ssl_for_librdkafka() -> None:
    config = librdkafka_config(Settings.load(**SASL))
    assert config == {
        "bootstrap.servers": "kafka-1:9093,kafka-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": SASL["sasl_username"],
        "sasl.password": SASL["sasl_password"],
        "ssl.ca.location": "/etc/ca.pem",
        "log_level": 1,
        "reconnect.backoff.max.ms": 1000,
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-256", "scram.ScramLoginModule")],
)
def test_should_configure_sasl_over_ssl_for_java_with_quotes_escaped(mechanism: str, module: str) -> None:
    options = java_properties(Settings.load(**SASL, sasl_mechanism=mechanism))
    assert options["sasl.mechanism"] == mechanism
    assert options["sasl.jaas.config"] == (
        f"org.apache.kafka.common.security.{module} required "
        'username="an \\"app\\" \\\\ user" password="pass\\"word\\\\1";'
    )
    assert options["ssl.truststore.type"] == "PEM"
    assert options["ssl.truststore.location"] == "/etc/ca.pem"


def test_should_configure_sasl_without_ssl_without_certificates() -> None:
    settings = Settings.load(**(SASL | {"security_protocol": "SASL_PLAINTEXT"}))
    assert "ssl.ca.location" not in librdkafka_config(settings)
    assert not [key for key in java_properties(settings) if "ssl.truststore" in key]


@pytest.mark.parametrize("make", [librdkafka_config, java_properties])
def test_should_hide_a_secret_when_settings_are_printed_or_logged(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.load(**SASL)
    config = make(settings)
    logging.getLogger("any").warning("config %s %r", config, settings)
    shown = f"{config} {config!r} {config!s} {settings!r} {settings} {caplog.text}"
    assert "word" not in shown.replace("password", "")
    assert "***" in repr(config)


@pytest.mark.parametrize("make", [librdkafka_config, java_properties])
def test_should_refuse_sasl_without_a_user(make: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"sasl_username.*TIDEMARK_SASL_USERNAME"):
        make(Settings.load(security_protocol="SASL_SSL"))


OAUTH: dict[str, Any] = SASL | {
    "sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "https://issuer/token", "oauth_scope": "streams",
}  # fmt: skip


def test_should_fetch_a_token_with_librdkafkas_own_method() -> None:
    config = librdkafka_config(Settings.load(**OAUTH))
    assert {name: value for name, value in config.items() if "oauth" in name or name.startswith("https")} == {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": OAUTH["sasl_username"],
        "sasl.oauthbearer.client.secret": OAUTH["sasl_password"],
        "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
        "sasl.oauthbearer.scope": "streams",
        "https.ca.location": "/etc/ca.pem",
    }
    assert "sasl.username" not in config


def test_should_fetch_a_token_with_javas_login_module() -> None:
    settings = Settings.load(**OAUTH)
    config = java_properties(settings)
    assert config["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="an \\"app\\" \\\\ user" clientSecret="pass\\"word\\\\1" scope="streams" '
        'ssl.truststore.type="PEM" ssl.truststore.location="/etc/ca.pem";'
    )
    assert config["sasl.oauthbearer.token.endpoint.url"] == "https://issuer/token"
    assert java_system_properties(settings) == {
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": "https://issuer/token"
    }
    assert java_system_properties(Settings.load(**SASL)) == {}


def test_should_refuse_a_token_without_an_endpoint() -> None:
    with pytest.raises(InvalidSettings, match="TIDEMARK_OAUTH_TOKEN_URL"):
        librdkafka_config(Settings.load(**OAUTH | {"oauth_token_url": ""}))


KEY, CERTIFICATE = "-----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (f"{KEY}\n{CERTIFICATE}", 0o604, "every user can read.*chmod 600"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{CERTIFICATE}", 0o600, "openssl pkcs8 -topk8 -nocrypt"),
        (f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{CERTIFICATE}", 0o600, "unencrypted.*openssl pkcs8"),
        (KEY, 0o600, "no certificate in"),
        (None, 0o600, "cannot read"),
    ],
)
def test_should_refuse_a_client_certificate_that_cannot_be_used(
    text: str | None, mode: int, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "client.pem"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(InvalidSettings, match=f"ssl_certificate_location: .*{reason}"):
        java_properties(Settings.load(security_protocol="SSL", ssl_certificate_location=str(file)))


def test_should_configure_a_client_certificate_for_every_client(tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    file.touch(mode=0o600)
    file.write_text(f"{KEY}\n{CERTIFICATE}")
    settings = Settings.load(security_protocol="SSL", ssl_certificate_location=str(file))
    assert librdkafka_config(settings)["ssl.certificate.location"] == str(file)
    assert librdkafka_config(settings)["ssl.key.location"] == str(file)
    assert java_properties(settings)["ssl.keystore.location"] == str(file)
    assert java_properties(settings)["ssl.keystore.type"] == "PEM"


def test_should_pass_extra_options_to_every_client_that_knows_them() -> None:
    settings = Settings.load(
        kafka={"client": {"rack": "a", "id": "ward-7"}, "socket.timeout.ms": 5000, "socket.keepalive.enable": True,
               "ssl.endpoint.identification.algorithm": "none"},
        kafka_java={"receive.buffer.bytes": "70000"},
    )  # fmt: skip
    passed = {
        "client.rack": "a", "client.id": "ward-7", "socket.timeout.ms": "5000", "socket.keepalive.enable": "true",
        "ssl.endpoint.identification.algorithm": "none",
    }  # fmt: skip
    assert passed.items() <= librdkafka_config(settings).items()
    java = {
        "bootstrap.servers": "127.0.0.1:9092", "security.protocol": "PLAINTEXT", "client.rack": "a", "client.id": "ward-7",
        "request.timeout.ms": "5000", "ssl.endpoint.identification.algorithm": "", "receive.buffer.bytes": "70000",
    }  # fmt: skip
    assert java_properties(settings) == java


def test_should_reconnect_as_soon_as_javas_clients_do_unless_told_otherwise() -> None:
    option = "reconnect.backoff.max.ms"
    assert librdkafka_config(Settings.load(kafka={option: 5000}))[option] == "5000"


@pytest.mark.parametrize(
    ("table", "option", "reason"),
    [
        ("kafka", "transactional.id", "set by Tidemark, because exactly-once depends on it"),
        ("kafka", "sasl.password", "set by the setting sasl_password"),
        ("kafka", "bootstrap.servers", "set by the setting bootstrap_servers"),
        ("kafka_java", "isolation.level", "set by Tidemark, because exactly-once depends on it"),
        ("kafka_java", "sasl.jaas.config", "set by the setting sasl_username and sasl_password"),
    ],
)
@pytest.mark.parametrize("make", [librdkafka_config, java_properties])
def test_should_refuse_an_option_that_another_setting_controls(make: Any, table: str, option: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=f"setting {table}: option {option} is {reason}; remove it"):
        make(Settings.load(**{table: {option: "x"}}))


@pytest.mark.parametrize(
    ("options", "reason"), [({"client.raq": "a"}, 'No such configuration property: "client.raq"'),
                            ({"socket.timeout.ms": "soon"}, "socket.timeout.ms")],
)  # fmt: skip
def test_should_report_an_option_that_librdkafka_refuses_as_an_error_of_the_setting(options: Any, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=f"setting kafka: librdkafka refuses an option: .*{reason}"):
        java_properties(Settings.load(kafka=options))


def _options_beside_a_client() -> set[str]:
    """The literal names in every dictionary of the code that begins with a client's configuration."""
    found: set[str] = set()
    root = Path(__file__).parents[3]
    for path in (p for folder in ("include", "spark_jobs", "plugins") for p in (root / folder).rglob("*.py")):
        text = path.read_text()
        if "client" not in text and "librdkafka_config" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Dict) and None in node.keys:
                names = {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
                copied = [ast.unparse(v) for k, v in zip(node.keys, node.values, strict=True) if k is None]
                if any("client" in each or "librdkafka_config" in each for each in copied):
                    found |= {name for name in names if "." in name or name == "acks"}
    return found


def test_should_refuse_every_option_that_the_code_sets_itself() -> None:
    names = _options_beside_a_client()
    assert {"enable.idempotence", "isolation.level", "fetch.wait.max.ms"} <= names
    assert names - set(FIXED) == set()
    assert {"isolation.level", "max.poll.records", "max.partition.fetch.bytes", "group.id"} <= set(FIXED_IN_JAVA)


def test_should_hide_a_secret_among_extra_options() -> None:
    config = librdkafka_config(Settings.load(kafka={"ssl.keystore.password": "hidden-one"}))
    assert "hidden-one" not in repr(config)


def test_should_write_a_properties_file_that_java_reads_correctly() -> None:
    text = as_properties({"a": 'ü"\\ \n\U0001f510', "b": " padded", "!c: =#": "=:"})
    assert text == 'a=\\u00fc"\\\\ \\u000a\\ud83d\\udd10\nb=\\ padded\n\\!c\\:\\ \\=\\#==:\n'


def test_should_be_accepted_by_a_client() -> None:
    AdminClient(librdkafka_config(Settings.load(bootstrap_servers="127.0.0.1:1")))
