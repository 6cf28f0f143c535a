"""Who asks, and what they may read: tokens with scopes, and a limit on the rate of requests.

A token's scopes are `read` (all stores that are not private), `read:<store>`, and `metrics`, which reads no store. Tokens
come from `query_tokens` in the environment, else from `<var_dir>/query-tokens/<app>.json`, which only its owner can read, and
which the first process of an application on a machine creates. Tokens are kept and compared as SHA-256 digests, and never
logged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.errors import InvalidSettings
from tidemark.queries.errors import CallerUnknown, ScopeMissing, TooManyRequests
from tidemark.settings import Settings

READ, METRICS = "read", "metrics"
_TOKEN_BYTES = 32
_EXAMPLE = '{"my-application": {"a long random text": ["read", "read:my-store"]}}'


def token_file(var_dir: Path, application_id: str) -> Path:
    """Return the path of the tokens that processes of an application on this machine accept."""
    return var_dir / "query-tokens" / f"{application_id}.json"


@dataclass(frozen=True)
class Caller:
    """Somebody with a token: its digest, and the scopes that it has."""

    digest: bytes = field(repr=False)
    scopes: frozenset[str]

    def require_metrics(self) -> None:
        """Raise `ScopeMissing` unless this caller may read metrics."""
        if METRICS not in self.scopes:
            raise ScopeMissing(
                f"the token does not allow metrics to be read; its scopes are {self._named_scopes}",
                "ask with a token that has the scope metrics",
            )

    @property
    def _named_scopes(self) -> str:
        return ", ".join(sorted(self.scopes)) or "none"

    def may_read(self, store: str) -> bool:
        """Return whether this caller may read the store."""
        return bool(self.scopes & {READ, f"{READ}:{store}"})

    def require(self, store: str) -> None:
        """Raise `ScopeMissing` unless this caller may read the store."""
        if not self.may_read(store):
            raise ScopeMissing(
                f"the token does not allow store {store} to be read; its scopes are {self._named_scopes}",
                f"ask with a token that has the scope read or read:{store}",
            )

    def require_all(self) -> None:
        """Raise `ScopeMissing` unless this caller may read all stores, and so whatever concerns the application."""
        if READ not in self.scopes:
            raise ScopeMissing(
                "the token allows only some stores to be read, and this concerns the whole application",
                f"ask with a token that has the scope {READ}",
            )


class Tokens:
    """The callers that one application knows."""

    def __init__(self, application_id: str, scopes: Mapping[str, object]) -> None:
        """`scopes` is a list of scopes by token. Raises `InvalidSettings`, which names no token."""
        self._application_id = application_id
        self._callers = [Caller(_digest(token), _scopes(given)) for token, given in scopes.items()]

    @classmethod
    def load(cls, settings: Settings, application_id: str) -> Tokens:
        """Read the tokens from the environment, else from the file, which is created if it is missing.

        Raises `InvalidSettings`, also for a file that others than its owner can read.
        """
        given = settings.query_tokens.get_secret_value()
        if given:
            found = _parsed(given, "TIDEMARK_QUERY_TOKENS")
            return cls(application_id, _of_application(found.get(application_id, {})))
        return cls(application_id, read_token_file(token_file(settings.var_dir, application_id), creates=True))

    def caller(self, token: str | None) -> Caller:
        """Return who asks. Takes the same time for every wrong token. Raises `CallerUnknown`."""
        digest = _digest(token or "")
        # Every known token is compared, so that the time does not depend on which one fits.
        known = [caller for caller in self._callers if hmac.compare_digest(caller.digest, digest)]
        if token and known:
            return known[0]
        what = "is not one of the tokens" if token else "is missing: queries need a token"
        raise CallerUnknown(
            f"the bearer token {what} of {self._application_id}",
            "send the header Authorization: Bearer TOKEN; tokens are in TIDEMARK_QUERY_TOKENS, else in "
            f"query-tokens/{self._application_id}.json of var_dir on the machine of the process",
        )


def read_token_file(path: Path, *, creates: bool = False) -> Mapping[str, object]:
    """Read a token file, which maps tokens to lists of scopes. With `creates`, a missing one is made with one token.

    Raises `InvalidSettings`.
    """
    if creates and not path.exists():
        _create(path)
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidSettings(f"{path} holds tokens and can be read by others than its owner: chmod 600 {path}")
        return _of_application(_parsed(path.read_text(), str(path)))
    except OSError as error:
        raise InvalidSettings(
            f"the tokens in {path} cannot be read: {error.strerror}; correct its permissions"
        ) from error


def _create(path: Path) -> None:
    """Create the file in one step, so that of two processes that start together one wins and both read the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps({secrets.token_urlsafe(_TOKEN_BYTES): [READ, METRICS]}) + "\n")
    try:
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()


def _parsed(text: str, where: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # The text itself is secret.
        raise InvalidSettings(f"the tokens in {where} are not a JSON object; write for example {_EXAMPLE}")
    return found


def _of_application(found: object) -> Mapping[str, object]:
    if not isinstance(found, dict) or not all(found):
        raise InvalidSettings(
            f"the tokens of an application map each token to its scopes; write for example {_EXAMPLE}"
        )
    return found


def _scopes(given: object) -> frozenset[str]:
    if not isinstance(given, list) or not all(s in (READ, METRICS) or str(s).startswith(f"{READ}:") for s in given):
        raise InvalidSettings(
            "a query token has scopes other than read, read:<store> and metrics; write a list of those"
        )
    return frozenset(map(str, given))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class RateLimit:
    """Allows each caller a number of requests per second, and as many at once. 0: no limit. Safe to use from threads."""

    def __init__(self, per_second: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._left: dict[bytes, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def require(self, caller: Caller) -> None:
        """Count a request. Raises `TooManyRequests`."""
        if self._per_second == 0:
            return
        now = self._monotonic()
        with self._lock:
            left, since = self._left.get(caller.digest, (float(self._per_second), now))
            left = min(float(self._per_second), left + (now - since) * self._per_second)
            allowed = left >= 1
            self._left[caller.digest] = (left - 1 if allowed else left, now)
        if not allowed:
            raise TooManyRequests(
                f"more than {self._per_second} requests per second with this token",
                "ask less often, ask for many keys at once with /keys, or raise TIDEMARK_QUERY_REQUESTS_PER_SECOND",
            )
