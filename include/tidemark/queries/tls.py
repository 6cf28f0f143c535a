"""TLS of queries: the certificate of a process that answers, and the authorities that those who ask trust."""

from __future__ import annotations

import ssl
import stat
from functools import cache
from pathlib import Path

import httpx

from tidemark.errors import InvalidSettings
from tidemark.settings import Settings


def uses_tls(settings: Settings) -> bool:
    """Return whether queries are answered over TLS."""
    return bool(settings.query_tls_certificate)


def key_file(settings: Settings) -> Path:
    """Return the file that holds the private key of a process that answers."""
    return Path(settings.query_tls_key or settings.query_tls_certificate)


def require_usable(settings: Settings) -> None:
    """Raise `InvalidSettings` unless a process can answer with its certificate and its key, if they are set."""
    if not uses_tls(settings):
        if settings.query_tls_key:
            raise InvalidSettings("setting query_tls_key: set query_tls_certificate, too, or neither of them")
        return
    certificate, key = Path(settings.query_tls_certificate), key_file(settings)
    try:
        if key.stat().st_mode & stat.S_IRWXO:
            raise InvalidSettings(
                f"setting query_tls_key: everybody can read the private key in {key}: chmod 600 {key}"
            )
        # An encrypted key would make the process ask for a password on its terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except OSError as error:
        raise InvalidSettings(
            f"setting query_tls_certificate: {certificate} and {key} cannot be used ({error.strerror or error}): both are PEM "
            "files, the key is not encrypted and belongs to the certificate"
        ) from error


def trusted(settings: Settings) -> ssl.SSLContext:
    """Return what a client verifies servers with: `query_tls_ca`, else the usual authorities. Raises `InvalidSettings`."""
    if not settings.query_tls_ca:
        return _usual_authorities()
    try:
        return ssl.create_default_context(cafile=settings.query_tls_ca)
    except OSError as error:
        raise InvalidSettings(
            f"setting query_tls_ca: {settings.query_tls_ca} cannot be used ({error.strerror or error}): it is a PEM file with "
            "the certificates of authorities"
        ) from error


@cache
def _usual_authorities() -> ssl.SSLContext:
    # Each client of httpx would read them again, which takes 20 ms of processor time.
    return httpx.create_ssl_context(trust_env=False)
