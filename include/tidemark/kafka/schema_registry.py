"""The schema registry, through Confluent's client: schemas by the ids that records name, and the schemas of sinks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tidemark.errors import InvalidSettings, OutcomeUnknown, PreflightFailed
from tidemark.settings import Settings
from tidemark.topology.avro_schema import MALFORMED, AvroSchema, inlined, named_types

_REFUSED = (409, 422)
"""The statuses for what is incompatible, and what is invalid."""
_UNKNOWN = (40401, 40402, 40403)
"""The registry's codes for a subject, a version and a schema that do not exist. For an unknown path, the code is 404."""
_MAX_ID = 2**31 - 1
_UNAUTHORISED, _FORBIDDEN = 401, 403
"""Statuses, of which the second is also the beginning of the registry's codes for what this user may not do, such as 40301."""
_NO_ANSWER = (ValueError, TypeError, LookupError, AttributeError)
"""The errors of the client for a response that is not from a registry, such as the page of a proxy."""
_T = TypeVar("_T")
_TRIES = 5


class _Forbidden(PreflightFailed):
    """This user is not allowed what was asked.

    `is_verdict` says whether the registry has judged what was asked for. Without a code of its own for it, the answer can be
    about all requests, and come from the registry or from a proxy.
    """

    def __init__(self, message: str, *, is_verdict: bool) -> None:
        super().__init__(message)
        self.is_verdict = is_verdict


class SchemaRegistry:
    """Asks one registry. Its methods block, and try again for some seconds if it does not answer."""

    def __init__(self, settings: Settings) -> None:
        """Raises `InvalidSettings` without the address of a registry, or for one that is none. Asks nothing yet."""
        self._url = settings.schema_registry_url
        self._has_read = False
        if not self._url:
            raise InvalidSettings(
                "schema_registry_url is not set, and the topology reads or writes Avro: set TIDEMARK_SCHEMA_REGISTRY_URL to "
                "the address of the schema registry"
            )
        options: dict[str, Any] = {
            "url": self._url,
            "timeout": settings.broker_timeout_ms / 1000,
            "max.retries": _TRIES - 1,
        }
        if settings.schema_registry_user:
            password = settings.schema_registry_password.get_secret_value()
            options["basic.auth.user.info"] = f"{settings.schema_registry_user}:{password}"
        if settings.schema_registry_ca_location:
            options["ssl.ca.location"] = settings.schema_registry_ca_location
        try:
            for address in self._url.split(","):
                # The client finds a wrong port only when it asks.
                _ = urlsplit(address).port
            self._client = SchemaRegistryClient(options)
        except (ValueError, OSError) as error:
            raise InvalidSettings(f"the settings schema_registry_… cannot be used: {error}") from error

    def avro(self, schema_id: int) -> AvroSchema:
        """Return the Avro schema with an id, with the types that it takes from other schemas.

        Raises `ValueError`, with the reason, if there is none or it is no Avro schema; `OutcomeUnknown` if the registry does
        not answer; and `PreflightFailed` if it does not let this user in. Once this user has read a schema, one that the
        registry says he may not read counts as none, and any other refusal as no answer.
        """
        what = f"schema {schema_id}"
        if schema_id > _MAX_ID:
            raise ValueError(f"{what} cannot exist, because ids end at {_MAX_ID}")
        try:
            schema = self._found(what, lambda: _whole(self._client.get_schema(schema_id)))
            self._has_read = True
            if (schema.schema_type or "AVRO") != "AVRO":
                raise ValueError(f"{what} is {schema.schema_type}, not AVRO")
            own = _parsed(schema)
            return inlined(own, self._of_references(schema) | named_types(own))
        except MALFORMED as error:
            raise ValueError(f"{what} is no schema of Avro ({type(error).__name__}: {error})") from error
        except _Forbidden as error:
            if not self._has_read:
                raise
            if error.is_verdict:
                # Who may read some schemas is known to the registry: a record names one that is not for this user.
                raise ValueError(str(error)) from error
            raise OutcomeUnknown(f"{error}; nothing of the batch was committed") from error

    def register(self, subject: str, schema: AvroSchema) -> int:
        """Return the id of a subject's schema, which the registry adds to the subject if it does not have it.

        Raises `PreflightFailed` if the registry refuses it, and `OutcomeUnknown` if the registry does not answer.
        """
        try:
            return self._asked(lambda: int(self._client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))))
        except SchemaRegistryError as error:
            raise PreflightFailed(
                f"schema registry {self._url}: subject {subject} refuses the schema of the sink's columns "
                f"({error.error_message}): change the columns, the subject's compatibility, or the topic"
            ) from error

    def _of_references(self, schema: Schema) -> dict[str, AvroSchema]:
        """Return the types that the references of a schema define, by full name."""
        found: dict[str, AvroSchema] = {}
        for reference in schema.references or ():
            subject, version = str(reference.subject), int(reference.version or 0)
            known = self._found(f"{subject} version {version}", partial(self._version, subject, version))
            found |= self._of_references(known) | named_types(_parsed(known))
        return found

    def _version(self, subject: str, version: int) -> Schema:
        return _whole(self._client.get_version(subject, version, deleted=True).schema)

    def _found(self, what: str, ask: Callable[[], _T]) -> _T:
        """Return the answer. Raises `ValueError` if the registry has nothing of the kind."""
        try:
            return self._asked(ask)
        except SchemaRegistryError as error:
            raise ValueError(f"the registry gives no {what} ({error.error_message})") from error

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Return the answer. Raises `SchemaRegistryError` only if the registry knows the answer, which is no."""
        try:
            return ask()
        except SchemaRegistryError as error:
            if _is_answer(error):
                raise
            if error.http_status_code == _UNAUTHORISED:
                raise PreflightFailed(self._denial(error)) from error
            if error.http_status_code == _FORBIDDEN:
                is_verdict = _has_code(error) and error.error_code // 100 == _FORBIDDEN
                raise _Forbidden(self._denial(error), is_verdict=is_verdict) from error
            raise self._away(error) from error
        except (httpx2.TransportError, OSError, *_NO_ANSWER) as error:
            raise self._away(error) from error

    def _denial(self, error: SchemaRegistryError) -> str:
        return (
            f"schema registry {self._url} does not allow this to this user ({error.http_status_code}, "
            f"{error.error_message}): set TIDEMARK_SCHEMA_REGISTRY_USER and TIDEMARK_SCHEMA_REGISTRY_PASSWORD, or give "
            "the user the right to read schemas, and to write those of the topology's sinks"
        )

    def _away(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"schema registry {self._url} does not answer ({type(error).__name__}: {error}): start it, or correct "
            "TIDEMARK_SCHEMA_REGISTRY_URL; nothing of the batch was committed"
        )


def _is_answer(error: SchemaRegistryError) -> bool:
    """Return whether the registry knows what it was asked for, and its answer is no.

    A proxy in front of it answers with the same statuses, but without a code of the registry.
    """
    return error.error_code in _UNKNOWN or (error.http_status_code in _REFUSED and _has_code(error))


def _has_code(error: SchemaRegistryError) -> bool:
    return isinstance(error.error_code, int) and error.error_code > 0


def _whole(schema: Schema) -> Schema:
    """Return a schema that has a text. Raises `ValueError` for an answer without one."""
    if not schema.schema_str:
        raise ValueError("the answer has no schema")
    return schema


def _parsed(schema: Schema) -> AvroSchema:
    """Return the schema as objects. The name of a type may be written without quotes."""
    try:
        return json.loads(str(schema.schema_str))
    except json.JSONDecodeError:
        return schema.schema_str
