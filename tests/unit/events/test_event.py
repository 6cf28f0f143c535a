"""An event's JSON form, and that the page of events lists every kind with its fields."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.events import progress, state_event

from tidemark.checks.liveness import ended, judged
from tidemark.errors import ExitCode, InstanceFenced
from tidemark.events.event import (
    BODY_FIELDS,
    Event,
    EventKind,
    Rebalance,
    Waiting,
    failure_body,
    rebalance_body,
    restore_body,
    state_body,
    waiting_body,
)
from tidemark.names import TopicPartition
from tidemark.supervision.standstill_file import Standstill
from tidemark.supervision.state import InstanceState

PAGE = Path(__file__).parents[3] / "docs" / "events.md"
A, B = TopicPartition("in", 0), TopicPartition("in", 1)
BODIES = {
    EventKind.STATE: state_body(InstanceState.RUNNING, InstanceState.REBALANCING),
    EventKind.FAILURE: failure_body(InstanceFenced("transactional.id app-0\n was taken over")),
    EventKind.REBALANCE: rebalance_body(Rebalance((A, B), (B,), (), 7)),
    EventKind.RESTORE_START: restore_body(progress()),
    EventKind.RESTORE_BATCH: restore_body(progress(60, 2.0, 40)),
    EventKind.RESTORE_END: restore_body(progress(110, 4.0, 80)),
    EventKind.RESTORE_SUSPENDED: restore_body(progress(60, 2.0, 40)),
    EventKind.WAITING: waiting_body(Waiting("no broker leads out[0]")),
    EventKind.WAITING_END: waiting_body(Waiting("no broker leads out[0]", 12.3456)),
    EventKind.STANDSTILL: dict(judged("app-0", Standstill(1000, "it is RESTORING"), 302_000, 300).evidence),
    EventKind.STANDSTILL_END: dict(ended("app-0", Standstill(1000, "it is RESTORING"), 402_000, 300).evidence),
}
WHATS = {
    EventKind.STATE: "REBALANCING → RUNNING",
    EventKind.FAILURE: "InstanceFenced: transactional.id app-0 was taken over",
    EventKind.REBALANCE: "holds 2 in generation 7; gained in[1]",
    EventKind.RESTORE_START: "n from app-n-changelog[3]: offsets 10 to 110",
    EventKind.RESTORE_BATCH: "n from app-n-changelog[3]: at offset 60 of 110, 40 records in 2.0 s, 20/s",
    EventKind.RESTORE_END: "n from app-n-changelog[3]: at offset 110 of 110, 80 records in 4.0 s, 20/s",
    EventKind.RESTORE_SUSPENDED: "n from app-n-changelog[3]: at offset 60 of 110, 40 records in 2.0 s, 20/s",
    EventKind.WAITING: "waits: no broker leads out[0]",
    EventKind.WAITING_END: "waited for 12 s: no broker leads out[0]",
    EventKind.STANDSTILL: "no progress for 301 s: it is RESTORING",
    EventKind.STANDSTILL_END: "progress again after 401 s",
}


@pytest.mark.parametrize("kind", EventKind)
def test_should_survive_a_round_trip_through_one_line_of_json(kind):
    event = Event(kind, "app", "2", 3, 1_700_000_000_000, BODIES[kind])
    text = event.to_json()
    assert "\n" not in text
    assert list(json.loads(text)) == ["kind", "application_id", "topology_version", "instance", "time_ms", "body"]
    assert Event.from_json(text) == Event.from_json(text.encode()) == event


@pytest.mark.parametrize("kind", EventKind)
def test_should_have_the_fields_of_its_kind_and_a_short_text(kind):
    assert tuple(BODIES[kind]) == BODY_FIELDS[kind]
    assert Event(kind, "app", "2", 3, 0, BODIES[kind]).what == WHATS[kind]


def test_should_carry_the_exit_code_of_a_failure_and_no_foreign_message():
    assert BODIES[EventKind.FAILURE]["exit_code"] == ExitCode.FENCED
    assert failure_body(ValueError("password=hunter2")) == {
        "error": "ValueError",
        "message": "see the instance's log",
        "exit_code": ExitCode.FAILED,
    }


def test_should_name_no_previous_state_when_an_instance_is_created():
    assert state_event("CREATED").what == "CREATED"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "state"}', '{"kind": "other"}', '{"kind": "state", "x": 1}']
)
def test_should_refuse_anything_that_is_not_an_event(text):
    with pytest.raises(ValueError):
        Event.from_json(text)


def test_should_list_every_kind_with_its_fields_on_the_page():
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| .*\|$", PAGE.read_text().split("## Fields")[0], re.MULTILINE)
    summary = {kind: tuple(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    assert summary == {str(kind): fields for kind, fields in BODY_FIELDS.items()}


def test_should_explain_every_field_on_the_page():
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", PAGE.read_text().split("## Fields")[1], re.MULTILINE)
    names = [name for fields in BODY_FIELDS.values() for name in fields]
    assert rows == list(dict.fromkeys(names))
