"""The fields of a form that triggers a DAG, from its parameters and from the address."""

from __future__ import annotations

import pytest

from tidemark.overview.forms import DagForm, FieldKind, Parameter, fields_of

TOPOLOGY = Parameter(None, {"type": "string", "enum": ["clicks", "shopping"], "title": "Topology"}, "Its name.")
FORM = DagForm(
    "restore_oncall",
    "Restores",
    is_paused=False,
    parameters={
        "topology": TOPOLOGY,
        "topologies": Parameter([], {"type": "array", "items": {"type": "string", "enum": ["clicks", "shopping"]}}),
        "tasks": Parameter(["0_0", "0_1"], {"type": "array", "items": {"type": "string"}}),
        "dry_run": Parameter(True, {"type": "boolean"}),
        "reason": Parameter(None, {"type": "string", "minLength": 3, "maxLength": 500}),
        "time": Parameter("", {"type": "string"}),
        "keep": Parameter(None, {"type": ["null", "integer"], "minimum": 1}),
        "days": Parameter(1.5, {"type": "number"}),
    },
)


def of(**given: str | list[str]):
    values = {name: [value] if isinstance(value, str) else value for name, value in given.items()}
    return {field.name: field for field in fields_of(FORM, values)}


def test_should_show_each_parameter_in_its_order_with_its_default():
    found = of()
    assert list(found) == list(FORM.parameters)
    assert [field.kind for field in found.values()] == [
        FieldKind.CHOICE,
        FieldKind.CHOICES,
        FieldKind.LINES,
        FieldKind.SWITCH,
        FieldKind.TEXT,
        FieldKind.TEXT,
        FieldKind.NUMBER,
        FieldKind.NUMBER,
    ]
    shown = {name: field.values for name, field in found.items()}
    assert shown == {
        "topology": (),
        "topologies": (),
        "tasks": ("0_0", "0_1"),
        "dry_run": ("true",),
        "reason": (),
        "time": ("",),
        "keep": (),
        "days": ("1.5",),
    }
    assert (found["topology"].title, found["topology"].description) == ("Topology", "Its name.")
    assert found["reason"].title == "reason"


def test_should_fill_in_what_the_address_says():
    found = of(topology="clicks", topologies=["clicks", "shopping"], dry_run="false", keep="3", reason="")
    assert found["topology"].values == ("clicks",)
    assert found["topologies"].values == ("clicks", "shopping")
    assert found["dry_run"].values == ("false",)
    assert found["keep"].values == ("3",)
    assert of(keep="")["keep"].values == ()
    assert of(tasks=[])["tasks"].values == ()
    assert found["tasks"].values == ("0_0", "0_1")


def test_should_ask_for_what_the_dag_needs():
    needed = {name for name, field in of().items() if field.is_needed}
    assert needed == {"topology", "reason", "days"}
    assert {name for name, field in of().items() if field.is_nullable} == {"keep"}
    assert of()["reason"].limits == {"minlength": "3", "maxlength": "500"}
    assert of()["keep"].limits == {"min": "1", "step": "1"}
    assert of()["days"].limits == {"step": "any"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"unknown": "1"}, r"the DAG restore_oncall has no parameter unknown; it has topology, topologies"),
        ({"topology": "other"}, "other cannot be the value of the parameter topology: it takes clicks, shopping"),
        ({"topology": ["clicks", "shopping"]}, "clicks, shopping cannot be .* topology: it takes one value"),
        ({"topologies": ["clicks", "other"]}, "it takes clicks, shopping"),
        ({"dry_run": "maybe"}, "it takes true or false"),
        ({"keep": "many"}, "many cannot be the value of the parameter keep: it takes a whole number"),
        ({"keep": "1_000"}, "it takes a whole number"),
        ({"keep": "1.5"}, "it takes a whole number"),
        ({"days": "nan"}, "nan cannot be the value of the parameter days: it takes a number"),
        ({"days": ""}, "it takes a number"),
    ],
)
def test_should_refuse_an_address_that_the_dag_would_refuse(given, reason):
    with pytest.raises(ValueError, match=reason):
        of(**given)


def test_should_mark_what_the_address_changes():
    found = of(topology="clicks", tasks=["0_0", "0_1"], dry_run="false", keep="3", days="1.5")
    marked = {name: field.default for name, field in found.items() if field.default is not None}
    assert marked == {"dry_run": "true", "keep": "nothing"}


@pytest.mark.parametrize(
    ("default", "schema"),
    [
        ({}, {"type": "object"}),
        (None, {"type": ["null", "boolean"]}),
        ([1], {"type": "array", "items": {"type": "integer"}}),
        (None, {"type": ["null", "string"], "enum": ["a", None]}),
        (1, {"type": "integer", "enum": [1, 2]}),
    ],
)
def test_should_refuse_a_parameter_that_no_field_fits(default, schema):
    odd = DagForm("odd", "", is_paused=False, parameters={"all": Parameter(default, schema)})
    with pytest.raises(ValueError, match="this page has no field for the parameter all; trigger the DAG in Airflow"):
        fields_of(odd, {})
