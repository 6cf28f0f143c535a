"""Records generated from a source's schema, the same for the same seed, to measure a topology with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

from tidemark.topology.plan import Source, TopologyPlan
from tidemark.topology.sql.expressions import bare_column

KEYS = 1000
STEP_MS = 10
_CAST = re.compile(r"^\s*CAST\((.+) AS STRING\)\s*$", re.IGNORECASE | re.DOTALL)
_INTEGRAL = frozenset(["TINYINT", "SMALLINT", "INT", "BIGINT"])
_FIXED = {"BINARY": "QQ==", "DATE": "2024-01-01"}

Record = tuple[bytes, bytes]
"""Key and value."""


def made_sources(plan: TopologyPlan) -> dict[str, Source]:
    """Return the sources that records are generated for, by topic: all except those that the application writes itself."""
    written = {topic for s in plan.subtopologies for topic in s.sink_topics}
    return {source.topic: source for s in plan.subtopologies for source in s.sources if source.topic not in written}


def made_records(source: Source, records: int, seed: int, end_ms: int) -> Iterator[Record]:
    """Yield `records` records, 10 ms of event time apart, the last of them at `end_ms`.

    A column takes one of 1000 values; texts are the same in all columns and sources, so that joins find partners. The key
    is that of the source's key if that is a column, else the first column.
    """
    random = Random(f"{seed} {source.topic}")
    keyed_by = _key_column(source)
    for i in range(records):
        at_ms = end_ms - (records - 1 - i) * STEP_MS
        row = {c.name: _value(c.name, c.type, random.randrange(KEYS), at_ms, source) for c in source.schema}
        yield _text(row, keyed_by).encode(), json.dumps(row).encode()


def _key_column(source: Source) -> str:
    cast = _CAST.match(source.key)
    column = bare_column(cast[1] if cast else source.key, source.schema)
    return column.name if column else source.schema[0].name


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    return value if isinstance(value, str) else json.dumps(value)


def _value(name: str, kind: str, chosen: int, at_ms: int, source: Source) -> Any:
    is_time = re.search(rf"\b{re.escape(name)}\b", source.timestamp, re.IGNORECASE) is not None
    base = re.split(r"[(<]", kind)[0]
    if base in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + (
            "Z" if base == "TIMESTAMP" else ""
        )
    if is_time and base in ("BIGINT", "DOUBLE", "STRING"):
        return str(at_ms) if base == "STRING" else at_ms
    if base in _INTEGRAL:
        return chosen % 100 if base == "TINYINT" else chosen
    if base in ("FLOAT", "DOUBLE"):
        return chosen / 4
    if base == "DECIMAL":
        return chosen % 10
    if base == "BOOLEAN":
        return chosen % 2 == 0
    if base in ("ARRAY", "MAP", "STRUCT"):
        return [] if base == "ARRAY" else {}
    return _FIXED.get(base, f"v{chosen}")
