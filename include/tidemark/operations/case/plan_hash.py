"""The hash of a plan: SHA-256 of canonical JSON of what the plan does and of what it was made for.

The content of a plan is what an approval is bound to: topology, options, target and effects. It leaves out what varies
while the application runs, such as the lag or an estimate. See invariant: approval of one plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tidemark.operations.case.case import Case
from tidemark.topology.plan import TopologyPlan

SHORT = 12
"""The number of digits of a hash that texts show."""

_MOST_DIFFERENCES = 5
_SHOWN = 80
_LABELS = ("name", "node", "partition", "task", "store", "topic")


def plan_content(case: Case, topology: TopologyPlan, state: object, effects: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an approval of a plan is bound to, as JSON values.

    `state` is the state in Kafka that the plan is based on, besides the topology; `effects` is what the plan does.
    """
    content = {
        "kind": case.kind,
        "application_id": case.application_id,
        "options": case.asked,
        "topology": topology,
        "state": state,
        "effects": effects,
    }
    found: dict[str, Any] = canonical(content)
    return found


def canonical(value: object) -> Any:
    """Return the value as JSON types; equal values give equal results. Raises `TypeError` for a value without such a form."""
    if isinstance(value, Enum):
        return canonical(value.value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        # The type is included, because two nodes of a topology may have equal fields and do different things.
        return {"is": type(value).__name__} | {f.name: canonical(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, Set):
        return sorted((canonical(each) for each in value), key=json.dumps)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [canonical(each) for each in value]
    raise TypeError(f"a plan holds a {type(value).__name__}, which has no canonical JSON")


def plan_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of a plan's content, in hexadecimal digits."""
    text = json.dumps(canonical(content), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(approved: object, now: object) -> list[str]:
    """Return the differences between two contents, one line each: at most five, then the number of the others."""
    found = list(_differing("", canonical(approved), canonical(now)))
    more = len(found) - _MOST_DIFFERENCES
    return found[:_MOST_DIFFERENCES] + ([f"{more} more differences"] if more > 0 else [])


def _differing(path: str, approved: Any, now: Any) -> Iterator[str]:
    if isinstance(approved, list) and isinstance(now, list):
        approved, now = _by_label(approved, now)
    if not (isinstance(approved, dict) and isinstance(now, dict)):
        if approved != now:
            yield f"{path or 'the plan'} is {_shown(now)} now and was {_shown(approved)} when the plan was made"
        return

    def simple_first(key: str) -> tuple[bool, str]:
        return isinstance(approved.get(key, now.get(key)), dict | list), key

    for key in sorted({*approved, *now}, key=simple_first):
        name = f"{path}.{key}" if path else key
        if key not in now:
            yield f"{name} is missing now and was {_shown(approved[key])} when the plan was made"
        elif key not in approved:
            yield f"{name} is new: {_shown(now[key])}"
        else:
            yield from _differing(name, approved[key], now[key])


def _by_label(approved: list[Any], now: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both lists as mappings by the names of their items, or by position if names are missing or not distinct."""
    labels = [[_label(each) for each in items] for items in (approved, now)]
    if any(None in found or len(set(found)) < len(found) for found in labels):
        labels = [[str(place) for place in range(len(items))] for items in (approved, now)]
    return dict(zip(labels[0], approved, strict=True)), dict(zip(labels[1], now, strict=True))  # type: ignore[arg-type]


def _label(item: object) -> str | None:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return None
    named = [str(item[label]) for label in _LABELS if item.get(label)]
    return "/".join(named) or None


def _shown(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
