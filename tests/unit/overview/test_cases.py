"""Cases as the page shows them: what waits for an answer, and what has a report."""

from __future__ import annotations

import json

import pytest
from tests.unit.operations.case.test_oncall_cases import CASE, noted

from tidemark.operations.case.case import CaseFolder
from tidemark.operations.case.response_time import CHANGE_RESPONSE_MS
from tidemark.overview.cases import read_cases, report_page
from tidemark.settings import Settings

ID = "20231114T221000000000Z"


@pytest.fixture
def settings(tmp_path):
    return Settings.load(var_dir=tmp_path, oncall_approvers=["ann"], oncall_response_timeout_ms=60_000)


@pytest.fixture
def folder(settings):
    return CaseFolder.of(settings.var_dir, "app", ID, lambda: 0)


def asked(folder, **given):
    folder.folder.mkdir(parents=True)
    folder.write("case.json", CASE.__dict__ | {"case_id": ID} | given)
    folder.write("asked.json", {"plan_hash": "h"})
    return int((folder.folder / "asked.json").stat().st_mtime * 1000)


@pytest.mark.parametrize(("kind", "limit_ms"), [("restore_oncall", 60_000), ("rescale", CHANGE_RESPONSE_MS)])
def test_a_plan_should_wait_until_its_time_is_over(settings, folder, kind, limit_ms):
    at_ms = asked(folder, kind=kind)
    waits = [read_cases(settings, "app", at_ms + limit_ms + late)[0].answer_until_ms for late in (-1, 0, 1)]
    assert waits == [at_ms + limit_ms, None, None]


@pytest.mark.parametrize("name", ["answer.json", "report.json"])
def test_a_plan_that_was_answered_or_is_over_should_not_wait(settings, folder, name):
    at_ms = asked(folder)
    folder.write(name, {"user_id": "7", "user_name": "Bo", "outcome": "restored", "is_as_wanted": True})
    (found,) = read_cases(settings, "app", at_ms)
    assert not found.waits_for_answer
    assert (found.answered_by, found.outcome) == (("Bo", None) if name == "answer.json" else (None, "restored"))


def test_a_running_case_should_name_its_step_and_its_approvers(settings, folder):
    asked(folder)
    noted(folder, "preflight done", "plan begun")
    (found,) = read_cases(settings, "app", 0)
    assert (found.step, found.approvers, len(found.notes)) == ("plan", ("ann",), 2)


def test_a_case_that_cannot_be_read_should_be_left_out(settings, folder):
    asked(folder)
    (folder.folder / "case.json").write_text(json.dumps({"kind": "x"}))
    assert read_cases(settings, "app", 0) == []


@pytest.mark.parametrize("case_id", ["../../secret", "..", "20231114T221000000000Z/../x"])
def test_only_the_report_of_a_case_should_be_found(settings, folder, case_id):
    asked(folder)
    (settings.var_dir / "oncall" / "app" / "report.html").write_text("no")
    (folder.folder / "report.html").write_text("yes")
    assert report_page(settings, "app", case_id) is None
    found = report_page(settings, "app", ID)
    assert found is not None
    assert found.read_text() == "yes"
