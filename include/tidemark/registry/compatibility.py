"""Decision what happens to each store when the topology changes: a pure function of two descriptions and the declarations.

`tests/unit/registry/test_compatibility.py` goes through the cases of the table in `docs/upgrade.md`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidemark.errors import TaskCorrupted
from tidemark.registry.declarations import Declared
from tidemark.registry.description import Description, StoreState
from tidemark.registry.store_roles import ORDER
from tidemark.stores.layout import ValueLayout, slots_of
from tidemark.tasks.rows import decode_rows
from tidemark.topology.durations import format_ms
from tidemark.topology.plan import Column, Fold, Number

_NESTED_FIELD = re.compile(r"[^<>,:]+(?=:)")
"""The names of fields in a type such as `STRUCT<firstName: STRING>`."""


class StoreChangeKind(StrEnum):
    """The kind of change of a store."""

    KEPT = "kept"
    COPIED = "copied"
    READ_AGAIN = "read again"
    NEW = "new"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True)
class StoreChange:
    """The change of one store. `was` is its old name, empty for a new store; `store` its new name, empty if it is removed.

    KEPT: nothing is written. READ_AGAIN: nothing is written, and the next start reads the store from its source topic.
    COPIED: every key is written in the new form to a changelog of its own; old values get `added_fields` and lose
    `dropped_fields`. DROPPED with a new name: the store begins again, empty. `why` says what is done or what is wrong, `remedy`
    what to do about the latter.
    """

    was: str
    store: str
    change_kind: StoreChangeKind
    why: str
    remedy: str = ""
    added_fields: Mapping[str, Any] = field(default_factory=dict)
    dropped_fields: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for messages."""
        return (
            f"{self.was} → {self.store}"
            if self.was and self.store and self.was != self.store
            else self.store or self.was
        )


def obstacles(old: Description, new: Description) -> list[str]:
    """Return what prevents the upgrade as a whole, each with its remedy."""
    found: list[str] = []
    if old.version == new.version:
        found.append(
            f"both are version {new.version}, so their commits could not be distinguished; give the topology another version"
        )
    if old.routing and len(new.subtopologies) != len(old.subtopologies):
        found.append(
            "the application was rescaled, so the number of its sub-topologies cannot change: write the new part as a topology "
            "of its own"
        )
    if old.routing and (tables := [name for name, store in new.stores.items() if store.spec.source_topic is not None]):
        found.append(
            f"the application was rescaled, so its sources are routed and cannot be the changelogs of {', '.join(tables)}: "
            "leave optimised=True out"
        )
    for number, before in enumerate(old.subtopologies):
        after = new.subtopologies[number] if number < len(new.subtopologies) else None
        if after is None or set(after.sources) != set(before.sources) or after.sources[0] != before.sources[0]:
            reads = "does not exist" if after is None else f"reads {', '.join(after.sources)}"
            found.append(
                f"sub-topology {number} read {', '.join(before.sources)}, now it {reads}: its offsets cannot be carried "
                "over; keep its topics in the same order and add new ones after them; or give "
                "the topology another application id"
            )
    return found


def new_columns(old: Description, new: Description, topic: str) -> list[str]:
    """Return the columns that the new version reads from one of the application's own topics, and that its records may lack.

    None of a user's topic whose columns are not in the old description, because it is not known what they were.
    """
    if topic in old.user_topics and topic not in old.columns:
        return []
    known = old.columns.get(topic, {})
    return [name for name, kind in new.columns.get(topic, {}).items() if known.get(name) not in _recorded_as(kind)]


def _recorded_as(kind: str) -> tuple[str, str]:
    """Return what a description has for a type: also the names of nested fields in lower case.

    So they were recorded for a column of a SELECT, while the records have always had the names as they are written.
    """
    return kind, _NESTED_FIELD.sub(lambda field: field[0].lower(), kind)


def unwritten_columns(old: Description, new: Description) -> dict[str, list[str]]:
    """Return, by topic, the columns that the new version reads from topics that the old one writes without them.

    Only topics whose columns the old description has: those of the first versions of Tidemark are not known.
    """
    found = {topic: new_columns(old, new, topic) for topic in old.own_topics if topic in old.columns}
    return {topic: columns for topic, columns in found.items() if columns}


def carry(old: Description, new: Description, declared: Declared) -> tuple[StoreChange, ...]:
    """Return what happens to every store: first the new ones in their order, then the removed ones. Reads nothing."""
    renames = dict(_with_orders(old, new, declared.renames))
    drops = {*declared.drops, *filter(None, (_order_of(old, name) for name in declared.drops))}
    of_new = {
        renames.get(name, name): store for name, store in old.stores.items() if renames.get(name, name) in new.stores
    }
    changes = [_one(old, new, of_new, state, drops, declared) for state in new.stores.values()]
    gone = [store for name, store in old.stores.items() if renames.get(name, name) not in new.stores]
    return (*changes, *(_gone(store, drops, renames, new) for store in gone))


def _with_orders(old: Description, new: Description, renames: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the renames, and with each renamed store the one that keeps its order."""
    for before, after in renames.items():
        yield before, after
        old_order, new_order = _order_of(old, before), _order_of(new, after)
        if old_order is not None and new_order is not None:
            yield old_order, new_order


def _order_of(description: Description, store: str) -> str | None:
    """Return the store that keeps the order of `store`; None if it has none. A user's own store may have the same name."""
    order = description.stores.get(f"{store}-{ORDER}")
    return order.name if order is not None and order.role == ORDER else None


def _gone(store: StoreState, drops: set[str], renames: Mapping[str, str], new: Description) -> StoreChange:
    name = store.name
    ordered = name.removesuffix(f"-{ORDER}")
    if store.role == ORDER and renames.get(ordered, ordered) in new.stores:
        return StoreChange(name, "", StoreChangeKind.DROPPED, "its store no longer keeps an order")
    if name in drops:
        return StoreChange(name, "", StoreChangeKind.DROPPED, "declared: the new version does not keep it")
    return StoreChange(
        name, "", StoreChangeKind.REFUSED, "the new version has no such store",
        f"keep it, or declare what happens to it: --rename {name}=NEW, or --drop {name}",
    )  # fmt: skip


def _one(
    old: Description,
    new: Description,
    of_new: Mapping[str, StoreState],
    after: StoreState,
    drops: set[str],
    declared: Declared,
) -> StoreChange:
    """Return what happens to the new store `after`. `of_new` holds the old stores, by their new names."""
    name = after.name
    before = of_new.get(name)
    if before is None:
        return _new(of_new.get(after.name.removesuffix(f"-{ORDER}")), after, drops)
    if before.name in drops:
        if after.spec.source_topic is not None:
            return StoreChange(before.name, name, StoreChangeKind.READ_AGAIN, "declared: from its topic")
        return StoreChange(before.name, name, StoreChangeKind.DROPPED, "declared: it begins again, empty")
    for difference in _differences(old, new, before, after):
        return _refused(before, after, difference, f"keep that, or {_giving_up(before, after)}")
    if after.spec.source_topic is not None:
        return _of_topic(before, after)
    return _carried(before, after, declared)


def _new(kept: StoreState | None, after: StoreState, drops: set[str]) -> StoreChange:
    """Return what happens to a store without an old one. If it keeps the order of another, `kept` is the old form of that."""
    if after.role == ORDER and kept is not None and kept.name not in drops:
        remedy = f"discard its contents: --drop {kept.name}"
        if kept.name != after.name.removesuffix(f"-{ORDER}"):
            remedy = f"{remedy} in place of its --rename"
        return StoreChange(
            "", after.name, StoreChangeKind.REFUSED,
            f"the keys that {kept.name} holds have no age, so they would never expire",
            f"leave ttl and max_entries out, or {remedy}",
        )  # fmt: skip
    what = "begins empty: it will hold what is processed from now on"
    if after.spec.source_topic is not None:
        what = "begins empty: it is read from its topic"
    return StoreChange("", after.name, StoreChangeKind.NEW, what)


def _differences(old: Description, new: Description, before: StoreState, after: StoreState) -> Iterator[str]:
    """Yield what gives old contents another meaning, the most important difference first."""
    if new.subtopology_of(after.name) != old.subtopology_of(before.name):
        yield (
            f"it moves from sub-topology {old.subtopology_of(before.name)} to {new.subtopology_of(after.name)}, whose "
            "tasks may own other keys"
        )
    if before.role != after.role or bool(before.aggregates) != bool(after.aggregates):
        yield f"it was the store of: {before.role}; now it is the store of: {after.role}"
    if old.keys_of(before.name) != new.keys_of(after.name):
        yield f"its keys were {before.key}, now they are {after.key}"
    if before.window != after.window or before.spec.kind != after.spec.kind:
        yield f"it held {before.window or 'no windows'}, now it holds {after.window or 'no windows'}"
    if before.spec.source_topic != after.spec.source_topic:
        yield (
            f"it was restored from {before.spec.source_topic or 'a changelog of its own'}, now from "
            f"{after.spec.source_topic or 'a changelog of its own'}"
        )
    if before.spec.is_logged != after.spec.is_logged:
        yield "it was not logged" if after.spec.is_logged else "it would no longer be logged"
    if (before.spec.ttl_ms is None) != (
        after.spec.ttl_ms is None
    ) and before.spec.max_entries != after.spec.max_entries:
        yield "its keys were removed by age or by number, and now by the other"


def _giving_up(before: StoreState, after: StoreState) -> str:
    what = "discard its contents" if after.spec.source_topic is None else "let it be read again from its topic"
    return f"{what}: --drop {before.name}"


def _of_topic(before: StoreState, after: StoreState) -> StoreChange:
    """Return what happens to a table whose source topic is its changelog, which cannot be rewritten."""
    if changed := [n for n in before.fields | after.fields if before.fields.get(n) != after.fields.get(n)]:
        return _refused(
            before, after, f"its source topic is its changelog, which cannot be rewritten for another {', '.join(changed)}",
            f"keep it as it was, or {_giving_up(before, after)}",
        )  # fmt: skip
    notes = _notes(before, after)
    change_kind = StoreChangeKind.READ_AGAIN if notes else StoreChangeKind.KEPT
    return StoreChange(before.name, after.name, change_kind, "; ".join(notes) or "unchanged")


def _notes(before: StoreState, after: StoreState) -> list[str]:
    """Return how a store's name and the order of its fields change."""
    notes = [f"renamed from {before.name}"] if before.name != after.name else []
    if list(before.fields) != list(after.fields) and before.fields == after.fields:
        notes.append("its fields are in another order")
    return notes


def _carried(before: StoreState, after: StoreState, declared: Declared) -> StoreChange:
    added, dropped, problem = _fields(before, after, declared)
    if problem is not None:
        return _refused(before, after, *problem)
    notes = _notes(before, after)
    notes += [f"{name} is {_shown(value)} for existing keys" for name, value in added.items()]
    notes += [f"{name} is discarded" for name in dropped]
    notes += _retention(before, after)
    if not notes:
        return StoreChange(before.name, after.name, StoreChangeKind.KEPT, "unchanged")
    if not after.spec.is_logged:
        return _refused(
            before, after, f"it is not logged, so it cannot be rewritten ({'; '.join(notes)})",
            f"keep it as it was, or {_giving_up(before, after)}",
        )  # fmt: skip
    return StoreChange(before.name, after.name, StoreChangeKind.COPIED, "; ".join(notes), "", added, tuple(dropped))


def _fields(
    before: StoreState, after: StoreState, declared: Declared
) -> tuple[dict[str, Any], list[str], tuple[str, str] | None]:
    """Return the fields that are added and those that are removed; or what is wrong with them, and the remedy."""
    give_up = f"--drop {before.name} discards its contents"
    added: dict[str, Any] = {}
    for name, what in after.fields.items():
        if name not in before.fields:
            place = (after.name, name)
            if place not in declared.added_fields:
                remedy = f"declare it: --add {after.name}.{name}, or --add {after.name}.{name}=VALUE; {give_up}"
                return {}, [], (f"its existing keys have no value for the new field {name}", remedy)
            value = declared.added_fields[place]
            if wrong := _wrong_value(after, name, value):
                return {}, [], (f"{_shown(value)} cannot be put into {name}: {wrong}", f"--add {after.name}.{name}")
            added[name] = value
        elif before.fields[name] != what or _kept_bytes(before, name) != _kept_bytes(after, name):
            remedy = f"keep it, and give the new field another name; {give_up}"
            return {}, [], (f"its field {name} was {before.fields[name]}, now it is {what}", remedy)
    gone = [name for name in before.fields if name not in after.fields]
    for name in gone:
        if (before.name, name) not in declared.dropped_fields:
            remedy = f"keep it, or discard it: --drop {before.name}.{name}; {give_up}"
            return {}, [], (f"its field {name} is missing", remedy)
    return added, gone, None


def _kept_bytes(state: StoreState, name: str) -> Sequence[str]:
    return [slot.signature for slot in slots_of([a for a in state.aggregates if a.name == name])]


def _wrong_value(after: StoreState, name: str, value: Any) -> str | None:
    """Return why existing keys cannot have that value; None if they can."""
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "it is not a finite number"
    aggregate = next((a for a in after.aggregates if a.name == name), None)
    if aggregate is None:
        return _wrong_in_column(next(column for column in after.spec.columns if column.name == name), value)
    layout = ValueLayout(slots_of([aggregate]))
    if aggregate.fold is Fold.MEAN or layout.variable_fields:
        return f"{aggregate.fold.value} can only begin at null"
    kind = "BIGINT" if aggregate.number is Number.LONG else "DOUBLE"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (aggregate.number is Number.LONG and not isinstance(value, int)):
        return f"it is no {kind}"
    try:
        layout.empty(1)["f0"] = value
    except OverflowError:
        return f"it is out of the range of a {kind}"
    return None


def _wrong_in_column(column: Column, value: Any) -> str | None:
    """Return why a stored row that has the value in the column could not be read; None if it can."""
    try:
        decode_rows([json.dumps({column.name: value}, ensure_ascii=False).encode()], [column])
    except (TaskCorrupted, UnicodeEncodeError):
        return f"it is no {column.type}"
    return None


def _retention(before: StoreState, after: StoreState) -> list[str]:
    was, now = before.spec.retention_ms, after.spec.retention_ms
    if was == now and before.spec.segment_ms == after.spec.segment_ms:
        return []
    summary = f"retention from {format_ms(was or 0)} to {format_ms(now or 0)}"
    if (now or 0) < (was or 0):
        return [f"{summary}: older entries are removed"]
    return [f"{summary}: entries that were removed do not come back"]


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def _refused(before: StoreState, after: StoreState, why: str, remedy: str) -> StoreChange:
    return StoreChange(before.name, after.name, StoreChangeKind.REFUSED, why, remedy)
