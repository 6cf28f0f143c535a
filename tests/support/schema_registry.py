"""A schema registry in this process: the part of Confluent's REST API that Tidemark asks, and records of Avro for it.

`tests/integration/kafka/test_schema_registry.py` holds it to what a real registry answers.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro

_MAX_ID = 2**31 - 1
_NO_PATH = 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class FakeRegistry:
    """Keeps schemas by id and by subject; `others` have ids of their own.

    `refused` are the subjects that accept no further schema, `authorization` is the header that it wants, and with `fails` it
    answers nothing. `proxied` is the status and the text with which something in front of it answers; `denied` are such answers
    for some paths. `asked` are the requests so far.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.others: dict[int, dict[str, Any]] = {}
        self.refused: set[str] = set()
        self.authorization: str | None = None
        self.fails = False
        self.proxied: tuple[int, str] | None = None
        self.denied: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []

    def add(
        self, subject: str, schema: Any, references: list[Mapping[str, Any]] | None = None, kind: str = "AVRO"
    ) -> int:
        """Return the id of a subject's schema."""
        number = self._number(schema, references, kind)
        if number is None:
            self.schemas.append(_kept(schema, references, kind))
            number = len(self.schemas)
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def _number(self, schema: Any, references: Any, kind: str) -> int | None:
        kept = _kept(schema, references, kind)
        return self.schemas.index(kept) + 1 if kept in self.schemas else None

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """Return the status and the answer to a request."""
        if self.fails:
            return 503, {"error_code": 50301, "message": "away"}
        if (found := re.fullmatch(r"/schemas/ids/(\d+)", path)) and method == "GET":
            number = int(found[1])
            if number > _MAX_ID:
                # What is no number of Java is no path of the registry.
                return _NO_PATH
            if number in self.others:
                return 200, self.others[number]
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self.schemas[number - 1]
        if (found := re.fullmatch(r"/subjects/([^/]+)/versions", path)) and method == "POST":
            given = json.loads(body)
            kind = given.get("schemaType", "AVRO")
            number = self._number(given["schema"], given.get("references"), kind)
            if found[1] in self.refused and (number is None or number not in self.subjects.get(found[1], [])):
                return 409, {
                    "error_code": 409,
                    "message": "Schema being registered is incompatible with an earlier one",
                }
            return 200, {"id": self.add(found[1], given["schema"], given.get("references"), kind)}
        if (found := re.fullmatch(r"/config/([^/]+)", path)) and method == "PUT":
            # Compatibility is not computed: a subject for which it is asked accepts no other schema.
            self.refused.add(found[1])
            return 200, json.loads(body)
        if (found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path)) and method == "GET":
            numbers = self.subjects.get(found[1], [])
            if not 0 < int(found[2]) <= len(numbers):
                return 404, {"error_code": 40402, "message": "Version not found."}
            number = numbers[int(found[2]) - 1]
            return 200, {"subject": found[1], "version": int(found[2]), "id": number, **self.schemas[number - 1]}
        return _NO_PATH


def _kept(schema: Any, references: Any, kind: str) -> dict[str, Any]:
    kept = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
    return kept | ({"references": references} if references else {}) | ({} if kind == "AVRO" else {"schemaType": kind})


@contextmanager
def serving(registry: FakeRegistry) -> Iterator[str]:
    """Serve a registry on a free port of this machine, and give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            registry.asked.append(f"{method} {path}")
            if registry.authorization is not None and self.headers.get("Authorization") != registry.authorization:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, answer = registry.answer(method, path, body)
            text = json.dumps(answer).encode()
            if (given := registry.denied.get(path, registry.proxied)) is not None:
                status, text = given[0], given[1].encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def avro_value(schema_id: int, schema: Any, record: object, named: Mapping[str, Any] | None = None) -> bytes:
    """Return a record as Confluent's serializer writes it."""
    out = io.BytesIO()
    out.write(b"\x00" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema)), dict(named or {})), record)
    return out.getvalue()


def read_avro(value: bytes, schema: Any) -> tuple[int, Any]:
    """Return the id of a value's schema, and its record."""
    assert value[:1] == b"\x00"
    parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
    return int.from_bytes(value[1:5], "big"), fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)
