"""The form that triggers a DAG: a field for each of its parameters, with the values that the button brings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FieldKind(StrEnum):
    """What a person enters a value with, and how the page's script reads it."""

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
        if types == {"array"}:
            return FieldKind.CHOICES if "enum" in self.schema.get("items", {}) else FieldKind.LINES
        if types == {"boolean"}:
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
        return tuple(map(str, listed.get("enum", ())))


@dataclass(frozen=True)
class DagForm:
    """A DAG that can be triggered. If `is_paused`, a run waits until it is unpaused."""

    dag_id: str
    description: str
    is_paused: bool
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True)
class Field:
    """A field with its `values`: one at most, unless it is a list. `limits` are attributes of its HTML element."""

    name: str
    kind: FieldKind
    title: str
    description: str
    values: tuple[str, ...]
    choices: tuple[str, ...]
    is_needed: bool
    is_nullable: bool
    limits: Mapping[str, str]


_LIMITS = {"minimum": "min", "maximum": "max", "minLength": "minlength", "maxLength": "maxlength"}


def fields_of(form: DagForm, given: Mapping[str, Sequence[str]]) -> list[Field]:
    """Return the fields of a form, in the order of the DAG's parameters. Those that are `given` get these values.

    Raises `ValueError` for a value that the DAG would refuse, a parameter that it does not have, or one that no field fits.
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
        for reason in _refused(kind, parameter.choices, given):
            raise ValueError(f"{', '.join(given)} cannot be the value of the parameter {name}: {reason}")
    is_nullable = "null" in parameter.types
    is_list = kind in (FieldKind.LINES, FieldKind.CHOICES)
    is_empty = parameter.schema.get("minLength", 0) == 0 and kind is FieldKind.TEXT and parameter.default is not None
    limits = {attribute: str(parameter.schema[key]) for key, attribute in _LIMITS.items() if key in parameter.schema}
    if kind is FieldKind.NUMBER:
        limits["step"] = "any" if "number" in parameter.types else "1"
    return Field(
        name,
        kind,
        str(parameter.schema.get("title") or name),
        parameter.description,
        tuple(given) if given is not None else _shown(parameter.default),
        parameter.choices,
        is_needed=not (is_nullable or is_list or is_empty or kind is FieldKind.SWITCH),
        is_nullable=is_nullable,
        limits=limits,
    )


def _shown(default: Any) -> tuple[str, ...]:
    """Return a default as it is written in an address."""
    if default is None:
        return ()
    if isinstance(default, list | tuple):
        return tuple(map(str, default))
    return (str(default).lower() if isinstance(default, bool) else str(default),)


def _refused(kind: FieldKind, choices: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield why a DAG would refuse these values."""
    if kind not in (FieldKind.LINES, FieldKind.CHOICES) and len(given) != 1:
        yield "it takes one value"
    if choices and not set(given) <= set(choices):
        yield f"it takes {', '.join(choices)}"
    if kind is FieldKind.SWITCH and not set(given) <= {"true", "false"}:
        yield "it takes true or false"
    if kind is FieldKind.NUMBER and not all(_is_number(value) for value in given):
        yield "it takes a number"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
