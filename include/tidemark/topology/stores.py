"""Stores as a topology declares them: `Materialized("pulse-counts", in_memory=True)`, as in Kafka Streams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from tidemark.errors import InvalidTopology
from tidemark.topology.draft import Draft, check_row_columns
from tidemark.topology.durations import Duration, duration_ms, format_ms
from tidemark.topology.plan import (
    Column,
    SessionWindow,
    SlidingWindow,
    StoreKind,
    StoreSpec,
    Window,
)
from tidemark.topology.schema import parse_schema
from tidemark.topology.sql.expressions import nearest

DEFAULT_RETENTION = "1d"
PROFILES = ("default", "aggressive_compaction")
ORDER_SUFFIX = "-order"
# Topic settings that would lose a store's contents, and the argument to use instead.
_DECIDED = {
    "cleanup.policy": "ttl= or windows to let keys expire",
    "retention.ms": "retention= of a windowed aggregation",
    "retention.bytes": "retention= of a windowed aggregation, or max_entries=",
    "message.timestamp.type": "timestamp= where the topic is read",
}
_IMPORT_PATH = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


@dataclass(frozen=True)
class Materialized:
    """Storage options of a store. If `name` is None, the store is numbered as in Kafka Streams.

    `in_memory`: the store is rebuilt from its changelog at every start. `logging=False`: there is no changelog, so the
    contents are lost with the store's folder. `ttl`: a key that was not written for that long (stream time) is deleted.
    `max_entries`: beyond this number of keys, the least recently used are deleted; a processor's read is a use. `profile`: a
    named set of topic settings, `default` or `aggressive_compaction`. `topic_config`: single topic settings that override the
    profile. `custom`: the import path `package.module:Class` of your own store. `private`: interactive queries never return
    its contents.
    """

    name: str | None = None
    in_memory: bool = False
    logging: bool = True
    ttl: Duration | None = None
    max_entries: int | None = None
    profile: str = "default"
    topic_config: Mapping[str, str] = field(default_factory=dict)
    custom: str | None = None
    private: bool = False


@dataclass(frozen=True)
class DeclaredStore:
    """A key-value store of rows for processors; see `store()`."""

    materialized: Materialized
    schema: str


def store(name: str, schema: str, **kept: object) -> DeclaredStore:
    """Declare a store for `process(stores=[...])`: rows with the columns of `schema`. `kept` is as in `Materialized`.

    Raises `InvalidTopology` for an argument that `Materialized` does not have.
    """
    known = [each.name for each in fields(Materialized) if each.name != "name"]
    for given in kept:
        if given not in known:
            raise InvalidTopology(f"store '{name}': no setting '{given}'{nearest(given, known)}")
    return DeclaredStore(Materialized(name, **kept), schema)  # type: ignore[arg-type]


def materialized(given: str | Materialized | None) -> Materialized:
    """Convert a bare name to a store with the default settings."""
    return given if isinstance(given, Materialized) else Materialized(given)


def import_path(text: str, where: str) -> str:
    """Check `package.module:name` and return it. Raises `InvalidTopology`."""
    if not isinstance(text, str) or not _IMPORT_PATH.match(text):
        raise InvalidTopology(f"{where}: {text!r} is not an import path; write 'package.module:name'")
    return text


def window_store(kept: Materialized, name: str, where: str, window: AnyWindow, retention: Duration | None) -> StoreSpec:
    """Return a window or session store. Segments are half the retention, at least a minute, as in Kafka Streams."""
    if kept.ttl is not None or kept.max_entries is not None:
        raise InvalidTopology(
            f"{where}: ttl and max_entries are for key-value stores; a window store has its retention"
        )
    retention_ms = _retention_ms(where, window, retention)
    kind = StoreKind.SESSION if isinstance(window, SessionWindow) else StoreKind.WINDOW
    return _spec(kept, name, where, kind, retention_ms, ())


def key_value_store(
    kept: Materialized,
    name: str,
    where: str,
    columns: Sequence[Column] = (),
    source_topic: str | None = None,
) -> StoreSpec:
    """Return a key-value store: of aggregates if `columns` is empty, else of rows."""
    check_row_columns(columns, where)
    return _spec(kept, name, where, StoreKind.KEY_VALUE, None, tuple(columns), source_topic)


def declared_store(draft: Draft, declared: DeclaredStore, where: str) -> StoreSpec:
    """Return a processor's own store. Raises `InvalidTopology`."""
    if not isinstance(declared, DeclaredStore):
        raise InvalidTopology(f"{where}: {declared!r} is not a store; write store('name', 'column TYPE, …')")
    name = draft.store_name(declared.materialized.name or "", where)
    columns = parse_schema(declared.schema, f"{where}: store '{name}'")
    check_row_columns(columns, f"{where}: store '{name}'", are_declared=True)
    return key_value_store(declared.materialized, name, where, columns)


def with_order(spec: StoreSpec, draft: Draft, where: str) -> tuple[StoreSpec, ...]:
    """Return the store and, if keys leave it by age or number, the store that keeps their order."""
    if not spec.has_order:
        return (spec,)
    order = StoreSpec(
        draft.store_name(spec.name + ORDER_SUFFIX, where),
        StoreKind.KEY_VALUE,
        None,
        None,
        in_memory=spec.in_memory,
        is_logged=spec.is_logged,
        profile=spec.profile,
        columns=(),
        private=spec.private,
    )
    return (spec, order)


AnyWindow = Window | SessionWindow | SlidingWindow


def window_span_ms(window: AnyWindow) -> int:
    """Return how long before stream time a window may begin and still change: size, gap or difference, plus grace."""
    if isinstance(window, Window):
        return window.size_ms + window.grace_ms
    if isinstance(window, SessionWindow):
        return window.gap_ms + window.grace_ms
    return 2 * window.difference_ms + window.grace_ms


def _spec(
    kept: Materialized,
    name: str,
    where: str,
    kind: StoreKind,
    retention_ms: int | None,
    columns: tuple[Column, ...],
    source_topic: str | None = None,
) -> StoreSpec:
    if kept.profile not in PROFILES:
        raise InvalidTopology(
            f"{where}: profile {kept.profile!r} of store '{name}' is unknown; use {' or '.join(PROFILES)}"
        )
    _check_topic_config(kept.topic_config, f"{where}: topic_config of store '{name}'")
    if not kept.logging and (kept.topic_config or kept.profile != "default"):
        raise InvalidTopology(f"{where}: store '{name}' has no changelog to configure; remove topic_config and profile")
    if kept.ttl is not None and kept.max_entries is not None:
        raise InvalidTopology(f"{where}: store '{name}' has both ttl and max_entries; choose one")
    if kept.max_entries is not None and (
        not isinstance(kept.max_entries, int) or isinstance(kept.max_entries, bool) or kept.max_entries < 1
    ):
        raise InvalidTopology(f"{where}: max_entries {kept.max_entries!r} of store '{name}'; use 1 or more")
    ttl_ms = None if kept.ttl is None else duration_ms(kept.ttl, f"{where}: ttl of store '{name}'")
    if ttl_ms == 0:
        raise InvalidTopology(f"{where}: ttl of store '{name}' is zero, so it would keep nothing; give it a length")
    if kept.custom is not None and kept.in_memory:
        raise InvalidTopology(f"{where}: store '{name}' is both custom and in_memory; choose one")
    return StoreSpec(
        name,
        kind,
        retention_ms,
        None if retention_ms is None else max(retention_ms // 2, 60_000),
        in_memory=kept.in_memory,
        is_logged=kept.logging,
        columns=columns,
        ttl_ms=ttl_ms,
        max_entries=kept.max_entries,
        profile=kept.profile,
        topic_config=tuple(sorted(kept.topic_config.items())),
        source_topic=source_topic,
        custom=None if kept.custom is None else import_path(kept.custom, f"{where}: custom store '{name}'"),
        private=kept.private,
    )


def _check_topic_config(config: Mapping[str, str], where: str) -> None:
    example = "write strings, e.g. {'segment.ms': '600000'}"
    if not isinstance(config, Mapping):
        raise InvalidTopology(f"{where}: {config!r} is not a dictionary; {example}")
    for key, value in config.items():
        if not isinstance(key, str) or not isinstance(value, str) or "." not in key:
            raise InvalidTopology(f"{where}: {key!r}: {value!r}; {example}")
        if key in _DECIDED:
            raise InvalidTopology(f"{where}: {key} is derived from the store; remove it, and use {_DECIDED[key]}")
        if key.endswith((".ms", ".bytes")) and not re.fullmatch(r"-?\d+", value):
            raise InvalidTopology(f"{where}: {key} is {value!r}, not a whole number; {example}")


def _retention_ms(where: str, window: AnyWindow, retention: Duration | None) -> int:
    kept_ms = duration_ms(DEFAULT_RETENTION if retention is None else retention, f"{where}: retention")
    least_ms = window_span_ms(window)
    if kept_ms <= least_ms:
        source = f"the default retention {DEFAULT_RETENTION}" if retention is None else f"retention {retention}"
        raise InvalidTopology(
            f"{where}: {source} is not more than window size + grace ({format_ms(least_ms)}), so open windows "
            f"would be dropped; set retention above {format_ms(least_ms)}"
        )
    return kept_ms
