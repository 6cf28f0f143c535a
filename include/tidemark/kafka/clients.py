"""The options of every Kafka client, built in one place: librdkafka, Spark's source, Kafka's Java tools. Never log them."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.errors import InvalidSettings
from tidemark.kafka.client_options import FIXED, FIXED_IN_JAVA, in_java
from tidemark.settings import Settings
from tidemark.settings_names import is_secret_name

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_KEY_MARK = "-----BEGIN PRIVATE KEY-----"


class ClientConfig(dict[str, Any]):
    """A client configuration whose `repr` hides secrets; the `repr` of a copy made with `{**config}` does not."""

    def __repr__(self) -> str:
        return repr({name: "***" if is_secret_name(name) else value for name, value in self.items()})

    __str__ = __repr__


def librdkafka_config(settings: Settings) -> ClientConfig:
    """Return the options that every confluent-kafka client of an application starts from. Raises `InvalidSettings`."""
    _check(settings)
    config = ClientConfig()
    config |= {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        # Calls that fail report lost connections; librdkafka's own log lines would repeat them without end.
        "log_level": 1,
        # As in Kafka's Java clients. librdkafka would try a broker that was away only every ten seconds, and requests to a
        # coordinator wait for that.
        "reconnect.backoff.max.ms": 1000,
    }
    if settings.uses_sasl:
        config |= {"sasl.mechanism": settings.sasl_mechanism} | _librdkafka_login(settings)
    if settings.uses_tls and settings.ssl_ca_location:
        config["ssl.ca.location"] = settings.ssl_ca_location
    if settings.uses_tls and settings.ssl_certificate_location:
        # librdkafka reads the certificates and the key from the same file.
        config |= {f"ssl.{part}.location": settings.ssl_certificate_location for part in ("certificate", "key")}
    config |= settings.kafka
    return config


def java_properties(settings: Settings) -> ClientConfig:
    """Return the same options for a Java client, such as Kafka's tools and Spark's source. Raises `InvalidSettings`."""
    _check(settings)
    config = ClientConfig()
    config |= {"bootstrap.servers": settings.bootstrap_servers, "security.protocol": settings.security_protocol}
    if settings.uses_sasl:
        config |= {"sasl.mechanism": settings.sasl_mechanism, "sasl.jaas.config": _jaas(settings)}
        if settings.sasl_mechanism == "OAUTHBEARER":
            config |= {
                "sasl.oauthbearer.token.endpoint.url": settings.oauth_token_url,
                "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            }
    if settings.uses_tls and settings.ssl_ca_location:
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings.ssl_ca_location}
    if settings.uses_tls and settings.ssl_certificate_location:
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": settings.ssl_certificate_location}
    config |= in_java(settings.kafka)
    config |= settings.kafka_java
    return config


def java_system_properties(settings: Settings) -> dict[str, str]:
    """Return the system properties of a Java client's JVM: it requests tokens only from addresses that are listed there."""
    if settings.uses_sasl and settings.sasl_mechanism == "OAUTHBEARER":
        return {"org.apache.kafka.sasl.oauthbearer.allowed.urls": settings.oauth_token_url}
    return {}


def _librdkafka_login(settings: Settings) -> dict[str, str]:
    user, password = settings.sasl_username, settings.sasl_password.get_secret_value()
    if settings.sasl_mechanism != "OAUTHBEARER":
        return {"sasl.username": user, "sasl.password": password}
    login = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": user,
        "sasl.oauthbearer.client.secret": password,
        "sasl.oauthbearer.token.endpoint.url": settings.oauth_token_url,
    }
    if settings.oauth_scope:
        login["sasl.oauthbearer.scope"] = settings.oauth_scope
    if _token_endpoint_ca(settings):
        login["https.ca.location"] = settings.ssl_ca_location
    return login


def _jaas(settings: Settings) -> str:
    user, password = settings.sasl_username, settings.sasl_password.get_secret_value()
    if settings.sasl_mechanism == "OAUTHBEARER":
        said = {"clientId": user, "clientSecret": password}
        said |= {"scope": settings.oauth_scope} if settings.oauth_scope else {}
        if _token_endpoint_ca(settings):
            said |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings.ssl_ca_location}
    else:
        said = {"username": user, "password": password}
    options = " ".join(f"{name}={_quoted(value)}" for name, value in said.items())
    return f"{_LOGIN_MODULES[settings.sasl_mechanism]} required {options};"


def _token_endpoint_ca(settings: Settings) -> bool:
    return bool(settings.ssl_ca_location) and settings.oauth_token_url.startswith("https://")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _check(settings: Settings) -> None:
    """Raise `InvalidSettings` for settings with which no client could connect, and for options that Tidemark sets itself."""
    protocol, mechanism = settings.security_protocol, settings.sasl_mechanism
    if settings.uses_sasl and not settings.sasl_username:
        raise InvalidSettings(
            f"setting sasl_username: security_protocol {protocol} needs a user; "
            "set TIDEMARK_SASL_USERNAME and TIDEMARK_SASL_PASSWORD"
        )
    if settings.uses_sasl and mechanism == "OAUTHBEARER" and not settings.oauth_token_url:
        raise InvalidSettings(
            "setting oauth_token_url: sasl_mechanism OAUTHBEARER needs the address of the token endpoint; "
            "set TIDEMARK_OAUTH_TOKEN_URL"
        )
    if settings.uses_tls and settings.ssl_certificate_location:
        _check_certificate(Path(settings.ssl_certificate_location))
    _refuse_fixed("kafka", settings.kafka, FIXED)
    _refuse_fixed("kafka_java", settings.kafka_java, FIXED_IN_JAVA)
    if settings.kafka:
        _check_known(tuple(sorted(settings.kafka.items())))


def _refuse_fixed(table: str, options: Mapping[str, str], fixed: Mapping[str, str]) -> None:
    for name in options:
        if name in fixed:
            raise InvalidSettings(f"setting {table}: option {name} is {fixed[name]}; remove it from `{table}`")


@cache
def _check_known(options: tuple[tuple[str, str], ...]) -> None:
    """Let librdkafka check the names and ranges of its options."""
    try:
        AdminClient({"log_level": 0, **dict(options)})
    except KafkaException as error:
        reason = error.args[0].str().removeprefix("Failed to create admin client: ")
        raise InvalidSettings(
            f"setting kafka: librdkafka refuses an option: {reason}; correct it, or put an option of Java clients in "
            "`kafka_java`"
        ) from None


def _check_certificate(file: Path) -> None:
    remedy = "put the private key (PKCS #8) and then the certificate chain in one PEM file that only its owner can read"
    try:
        text, mode = file.read_text(encoding="ascii", errors="replace"), file.stat().st_mode
    except OSError as error:
        raise InvalidSettings(
            f"setting ssl_certificate_location: cannot read {file} ({error.strerror}); {remedy}"
        ) from None
    if mode & stat.S_IRWXO:
        raise InvalidSettings(
            f"setting ssl_certificate_location: every user can read the private key in {file}; run `chmod 600 {file}`"
        )
    if _KEY_MARK not in text:
        raise InvalidSettings(
            f"setting ssl_certificate_location: no unencrypted PKCS #8 private key in {file}; Java reads no other format; "
            f"convert it with `openssl pkcs8 -topk8 -nocrypt`, and {remedy}"
        )
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise InvalidSettings(f"setting ssl_certificate_location: no certificate in {file}; {remedy}")
