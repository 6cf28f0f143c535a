"""The operator's declarations about an upgrade, parsed: `--rename`, `--drop` and `--add`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import StartRefused
from tidemark.registry.description import Description


@dataclass(frozen=True)
class Declared:
    """The declarations. `renames` maps old store names to new ones; `drops` are old stores whose contents are discarded.

    Fields are (store, field): of the old version in `dropped_fields`, of the new version in `added_fields`, whose value
    is what existing keys get (None: null).
    """

    renames: Mapping[str, str]
    drops: Collection[str]
    dropped_fields: Collection[tuple[str, str]]
    added_fields: Mapping[tuple[str, str], Any]


NOTHING = Declared({}, (), (), {})


def parse_declared(
    old: Description, new: Description, renames: Sequence[str], drops: Sequence[str], adds: Sequence[str]
) -> Declared:
    """Parse `OLD=NEW`, `STORE` or `STORE.FIELD`, and `STORE.FIELD` or `STORE.FIELD=JSON`.

    Raises `StartRefused` for a store or field that does not exist, because a typing error must not count as a
    declaration.
    """
    renamed: dict[str, str] = {}
    for text in renames:
        before, _, after = text.partition("=")
        _require(before, old, f"--rename {text}")
        _require(after, new, f"--rename {text}")
        if before in renamed or after in renamed.values():
            raise StartRefused(f"--rename {text}: a store can be renamed only once, and two stores cannot become one")
        if after in old.stores and after != before:
            raise StartRefused(f"--rename {text}: version {old.version} has a store '{after}' of its own")
        renamed[before] = after
    dropped: list[str] = []
    dropped_fields: list[tuple[str, str]] = []
    for text in drops:
        if text in old.stores:
            dropped.append(text)
            continue
        dropped_fields.append(_field(text, old, f"--drop {text}"))
    added: dict[tuple[str, str], Any] = {}
    for text in adds:
        name, given, value = text.partition("=")
        try:
            added[_field(name, new, f"--add {text}")] = json.loads(value) if given else None
        except ValueError as error:
            raise StartRefused(
                f"--add {text}: {value} is not JSON: write a number, a text in quotes, or null"
            ) from error
    both = [store for store in dropped if store in renamed]
    if both:
        raise StartRefused(f"store '{both[0]}' is dropped and renamed: choose one")
    return Declared(renamed, tuple(dropped), tuple(dropped_fields), added)


def _require(store: str, description: Description, where: str) -> None:
    if store not in description.stores:
        known = ", ".join(description.stores) or "none"
        raise StartRefused(f"{where}: version {description.version} has no store '{store}' (it has {known})")


def _field(text: str, description: Description, where: str) -> tuple[str, str]:
    store, _, field = text.rpartition(".")
    if not store:
        _require(text, description, where)
    _require(store, description, where)
    if field not in description.stores[store].fields:
        known = ", ".join(description.stores[store].fields) or "none"
        raise StartRefused(
            f"{where}: store '{store}' of version {description.version} has no field '{field}' (it has {known})"
        )
    return store, field
