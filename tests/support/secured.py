"""A real broker with authentication: TLS, client certificates, SCRAM, tokens of a test issuer, and ACLs.

Over its plaintext listener the tests themselves are its super user; what is tested takes the other two.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import re
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from tests.support.brokers import brief

from tidemark.devstack import ports
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka.acls import CLUSTER, Acl
from tidemark.processes import wait_until
from tidemark.settings import Settings

USER = "app"
PASSWORD = 'S3cret-of-"app"-\\ü'
AUDIENCE, ISSUER = "kafka", "https://issuer.test"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


class Authority:
    """A certificate authority, and the PEM files that it has signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = rsa.generate_private_key(65537, 2048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = (
            self._draft(self._name, self._key.public_key())
            .add_extension(basic, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def signed(self, name: str) -> Path:
        """A PEM file with a private key and its certificate."""
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            self._draft(subject, key.public_key()).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"{name}.pem"
        file.touch(mode=0o600)
        pem = serialization.Encoding.PEM
        file.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.public_bytes(pem)
        )
        return file

    def _draft(self, subject: x509.Name, key: rsa.RSAPublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + datetime.timedelta(days=1))
        )  # fmt: skip


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Gives signed tokens over HTTPS to the client that knows the secret; `asked` counts what it was asked."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        numbers = self._key.public_key().public_numbers()
        exponent, modulus = (_base64(n.to_bytes((n.bit_length() + 7) // 8, "big")) for n in (numbers.e, numbers.n))
        self.keys = folder / "jwks.json"
        key = {"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "e": exponent, "n": modulus}
        self.keys.write_text(json.dumps({"keys": [key]}))
        self.asked: list[int] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                code, body = issuer.answer(self.headers.get("Authorization", ""), form)
                issuer.asked.append(code)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.signed("issuer"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> Issuer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, login: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """The token of OAuth's client credentials grant, or why there is none."""
        said = base64.b64decode(login.removeprefix("Basic ")).decode().partition(":")[::2] if login else ("", "")
        if form.get("grant_type") != ["client_credentials"] or said != (USER, PASSWORD):
            return 401, b'{"error": "invalid_client"}'
        now = int(time.time())
        claims = {
            "sub": USER, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 3600, "scope": form.get("scope", [""])[0]
        }  # fmt: skip
        head = _base64(json.dumps({"alg": "RS256", "kid": "1", "typ": "JWT"}).encode())
        signed = f"{head}.{_base64(json.dumps(claims).encode())}"
        signature = _base64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))
        token = {"access_token": f"{signed}.{signature}", "token_type": "Bearer", "expires_in": 3600}
        return 200, json.dumps(token).encode()


@dataclass(frozen=True)
class Secured:
    """The running broker. `candidates` are the settings by which the user `app` may come in, by name."""

    broker: EmbeddedBroker
    admin: AdminClient
    issuer: Issuer
    authority: Authority
    candidates: dict[str, dict[str, object]] = field(default_factory=dict)

    def settings(self, candidate: str, **more: object) -> Settings:
        """Settings of the user `app`, or of what `more` makes of it."""
        return Settings.load(**{**self.candidates[candidate], **more})


@contextmanager
def secured(folder: Path, jars: list[Path]) -> Iterator[Secured]:
    """Start the broker and the issuer; both end with the block."""
    authority = Authority(folder / "tls")
    server = authority.signed("server")
    taken: set[int] = set()
    for _ in range(4):
        taken.add(ports.free_port(taken))
    plain, controller, mtls, sasl = sorted(taken)
    with Issuer(authority, folder) as issuer:
        overrides = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},"
            f"MTLS://127.0.0.1:{mtls},LOGIN://127.0.0.1:{sasl}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},MTLS://127.0.0.1:{mtls},LOGIN://127.0.0.1:{sasl}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,LOGIN:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file),
            "listener.name.mtls.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.login.scram-sha-512.sasl.jaas.config":
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
            "listener.name.login.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            "listener.name.login.oauthbearer.sasl.server.callback.handler.class":
                f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE, "sasl.oauthbearer.expected.issuer": ISSUER,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }  # fmt: skip
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.keys.as_uri()}"
        options = {"JDK_JAVA_OPTIONS": allowed}
        made = EmbeddedBroker(folder / "broker", jars, plain, overrides=overrides, environment=options)
        with brief(made) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            _add_user(admin)
            login = {
                "bootstrap_servers": f"127.0.0.1:{sasl}", "security_protocol": "SASL_SSL", "sasl_username": USER,
                "sasl_password": PASSWORD, "ssl_ca_location": str(authority.file),
            }  # fmt: skip
            certificate = {
                "bootstrap_servers": f"127.0.0.1:{mtls}", "security_protocol": "SSL",
                "ssl_ca_location": str(authority.file), "ssl_certificate_location": str(authority.signed(USER)),
            }  # fmt: skip
            yield Secured(broker, admin, issuer, authority, {
                "mtls": certificate,
                "scram": login,
                "oauth": login | {"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": issuer.url, "oauth_scope": "streams"},
            })  # fmt: skip


def _add_user(admin: AdminClient) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
    ).values():
        future.result(60)


_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    CLUSTER: ResourceType.BROKER,
}


def binding(acl: Acl) -> AclBinding:
    """The same for the admin client, and the user `app`."""
    operation = getattr(AclOperation, re.sub(r"(?<!^)([A-Z])", r"_\1", acl.operation).upper())
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(_KINDS[acl.resource], acl.name, literal, f"User:{USER}", "*", operation, allowed)


def allow(admin: AdminClient, acls: Iterable[Acl]) -> None:
    """Let the user `app` do that; blocks until the broker that is asked knows it, too."""
    wanted = [binding(acl) for acl in acls]
    for future in admin.create_acls(wanted).values():
        future.result(60)
    assert wait_until(lambda: set(wanted) <= known_acls(admin), 60)


def known_acls(admin: AdminClient) -> set[AclBinding]:
    """All that the broker goes by."""
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return set(admin.describe_acls(everything, request_timeout=60).result())
