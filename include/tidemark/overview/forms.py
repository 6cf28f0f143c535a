"""The form that triggers a DAG: a field for each of its parameters, with the values that the button brings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FieldKind(StrEnum):
    """The kind of input with which a value is entered. The page's script reads the value by it."""

    CHOICE = "choice"
    CHOICES = "choices"
    SWITCH = "switch"
    NUMBER = "number"
    LINES = "lines"
    TEXT = "text"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a DAG as Airflow keeps it: its default and its JSON schema."""

    default: Any
    schema: Mapping[str, Any]
    description: str = ""

    @property
    def types(self) -> frozenset[str]:
        """The JSON types of its values."""
        named = self.schema.get("type", "string")
        return frozenset([named] if isinstance(named, str) else named)

    @property
    def kind(self) -> FieldKind | None:
        """The kind of its field; None if the page has none for it."""
        types = self.types - {"null"}
        listed = self.schema.get("items", {}) if types == {"array"} else self.schema
        if not all(isinstance(choice, str) for choice in listed.get("enum", ())):
            return None
        if types == {"array"} and listed.get("type", "string") == "string":
            return FieldKind.CHOICES if "enum" in listed else FieldKind.LINES
        if self.types == {"boolean"}:
            return FieldKind.SWITCH
        if types and types <= {"integer", "number"}:
            return FieldKind.NUMBER
        if types == {"string"}:
            return FieldKind.CHOICE if "enum" in self.schema else FieldKind.TEXT
        return None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from."""
        listed = self.schema.get("items", {}) if self.kind is FieldKind.CHOICES else self.schema
        return tuple(listed.get("enum", ()))


@dataclass(frozen=True)
class DagForm:
    """A DAG that can be triggered. If `is_paused`, a run waits until it is unpaused."""

    dag_id: str
    description: str
    is_paused: bool
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class Field:
    """A field with its `values`: one at most, unless it is a list. `limits` are attributes of its HTML element.

    `default` is the DAG's own value where the address has given another one; None elsewhere.
    """

    name: str
    kind: FieldKind
    title: str
    description: str
    values: tuple[str, ...]
    choices: tuple[str, ...]
    is_needed: bool
    is_nullable: bool
    limits: Mapping[str, str]
    default: str | None


_WHOLE, _NUMBER = re.compile("-?[0-9]{1,18}"), re.compile("-?[0-9]{1,18}([.][0-9]{1,18})?")
_NAMES_STREAM = frozenset({"topology", "topologies"})
"""Every button gives these, and the page shows for which stream it is."""
_LIMITS = {"minimum": "min", "maximum": "max", "minLength": "minlength", "maxLength": "maxlength"}


def fields_of(form: DagForm, given: Mapping[str, Sequence[str]]) -> list[Field]:
    """Return the fields of a form, in the order of the DAG's parameters. Those that are `given` get these values.

    Raises `ValueError` for a parameter that the DAG does not have, one that no field fits, or a value that no field can hold.
    """
    if unknown := [name for name in given if name not in form.parameters]:
        raise ValueError(
            f"the DAG {form.dag_id} has no parameter {unknown[0]}; it has {', '.join(form.parameters) or 'none'}"
        )
    return [_field(name, one, given.get(name)) for name, one in form.parameters.items()]


def _field(name: str, parameter: Parameter, given: Sequence[str] | None) -> Field:
    kind = parameter.kind
    if kind is None:
        raise ValueError(f"this page has no field for the parameter {name}; trigger the DAG in Airflow")
    if given is not None:
        for reason in _refused(parameter, kind, given):
            raise ValueError(f"{', '.join(given)} cannot be the value of the parameter {name}: {reason}")
    is_nullable = "null" in parameter.types
    is_list = kind in (FieldKind.LINES, FieldKind.CHOICES)
    is_empty = parameter.schema.get("minLength", 0) == 0 and kind is FieldKind.TEXT and parameter.default is not None
    limits = {attribute: str(parameter.schema[key]) for key, attribute in _LIMITS.items() if key in parameter.schema}
    if kind is FieldKind.NUMBER:
        limits["step"] = "any" if "number" in parameter.types else "1"
    default = _shown(parameter.default)
    values = default if given is None else tuple(value for value in given if value or kind is FieldKind.TEXT)
    return Field(
        name,
        kind,
        str(parameter.schema.get("title") or name),
        parameter.description,
        values,
        parameter.choices,
        is_needed=not (is_nullable or is_list or is_empty or kind is FieldKind.SWITCH),
        is_nullable=is_nullable,
        limits=limits,
        default=None if values == default or name in _NAMES_STREAM else ", ".join(default) or "nothing",
    )


def _shown(default: Any) -> tuple[str, ...]:
    """Return a default as it is written in an address."""
    if default is None:
        return ()
    if isinstance(default, list | tuple):
        return tuple(map(str, default))
    return (str(default).lower() if isinstance(default, bool) else str(default),)


def _refused(parameter: Parameter, kind: FieldKind, given: Sequence[str]) -> Iterator[str]:
    """Yield why the field cannot hold these values."""
    if kind not in (FieldKind.LINES, FieldKind.CHOICES) and len(given) != 1:
        yield "it takes one value"
    entered = [value for value in given if value or "null" not in parameter.types]
    if parameter.choices and not set(entered) <= set(parameter.choices):
        yield f"it takes {', '.join(parameter.choices)}"
    if kind is FieldKind.SWITCH and not set(given) <= {"true", "false"}:
        yield "it takes true or false"
    if kind is FieldKind.NUMBER:
        written, what = (_NUMBER, "a number") if "number" in parameter.types else (_WHOLE, "a whole number")
        if not all(written.fullmatch(value) for value in entered):
            yield f"it takes {what}"
