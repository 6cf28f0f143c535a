"""An approval is for one plan, by a user who may approve, and is used once; without a broker."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.support.changes import version, version_one
from tests.system.oncall.approving import answered

from tidemark.errors import StartRefused
from tidemark.operations.case.approval import AnswerState, PlanAnswer, PlanApproval, refusal, response_ms
from tidemark.operations.case.case import RESTORE, Case, CaseFolder
from tidemark.operations.case.plan_hash import plan_content, plan_hash
from tidemark.settings import Settings
from tidemark.supervision.hold import Hold, release_hold, take_hold

AT = "2026-11-21 03:00:00+00:00"
NOW = 1_700_000_000_000
SETTINGS = Settings.load()
NAMED = SETTINGS.model_copy(update={"oncall_approvers": ["7", "grace"]})
ANOTHER = SETTINGS.model_copy(update={"approval_by_another": True})
AT_MS = 1_795_230_000_000
CASE = Case("c1", "rescale", "counts", "app", {"tasks": 3}, False, "why", NOW, "run-1")
YES = PlanAnswer("c1", "aa", "Approve", "7", "Grace", AT, "ada")
TOPOLOGY = version_one("app").plan()


@pytest.mark.parametrize(
    ("answer", "settings", "summary"),
    [
        (None, SETTINGS, "no user has answered for the plan of case c1"),
        (replace(YES, case_id="c0"), SETTINGS, "was given for case c0"),
        (replace(YES, plan_hash="bb"), SETTINGS, "Grace approved plan bb at .*, but the plan of case c1 is aa now"),
        (replace(YES, chosen="Reject"), SETTINGS, "Grace answered Reject at 2026-11-21"),
        (replace(YES, chosen="Reject", user_id=None, user_name=None), SETTINGS, "no user answered .* in time"),
        (replace(YES, user_id=None, user_name=None), SETTINGS, "no user answered .* in time"),
        (replace(YES, user_id="8"), NAMED, r"user Grace \(id 8\) approved the plan but is not in .* oncall_approvers"),
        # A name is nobody's id.
        (replace(YES, user_id="8", user_name="grace"), NAMED, "is not in the setting oncall_approvers"),
        (replace(YES, asked_by="Grace"), ANOTHER, "Grace triggered this run and approved it"),
        (replace(YES, asked_by="7"), ANOTHER, "Grace triggered this run and approved it"),
        (replace(YES, asked_by=None), ANOTHER, "the user who triggered this run is not known"),
        (replace(YES, state=AnswerState.DONE, used_ms=NOW), SETTINGS, "was used at 2023-.*, and its work is done"),
        (
            replace(YES, state=AnswerState.CLOSED, used_ms=NOW),
            SETTINGS,
            "was used at 2023-.*, and its work is given up",
        ),
    ],
)
def test_should_refuse_every_other_answer(answer, settings, summary):
    found = refusal(answer, CASE, "aa", settings, AT_MS, is_held=False)
    assert found is not None
    with pytest.raises(StartRefused, match=summary):
        raise StartRefused(found)


@pytest.mark.parametrize(
    ("answer", "settings"),
    [
        (YES, SETTINGS),
        (YES, NAMED),
        (YES, ANOTHER),
        (replace(YES, asked_by="Grace"), SETTINGS),
        (replace(YES, state=AnswerState.USED, used_ms=NOW), NAMED),
    ],
)
def test_should_allow_the_approved_plan_and_the_continuation_of_its_case(answer, settings):
    assert refusal(answer, CASE, "aa", settings, AT_MS, is_held=False) is None


@pytest.mark.parametrize("kind", [RESTORE, "rescale"])
def test_should_refuse_an_answer_that_was_not_used_within_the_time_for_answers(kind):
    case = replace(CASE, kind=kind)
    ages = [response_ms(kind, SETTINGS) + late for late in (-1, 0, 1)]
    found = [refusal(YES, case, "aa", SETTINGS, AT_MS + age, is_held=False) for age in ages]
    assert found[:2] == [None, None]
    assert "Grace approved the plan at 2026-11-21" in found[2]
    assert "the answer was not used: trigger a new run" in found[2]
    # The instances are stopped for it, or the work has begun: the case continues.
    assert refusal(YES, case, "aa", SETTINGS, AT_MS + ages[2], is_held=True) is None
    used = replace(YES, state=AnswerState.USED, used_ms=AT_MS)
    assert refusal(used, case, "aa", SETTINGS, AT_MS + ages[2], is_held=False) is None


@pytest.fixture
def folder(tmp_path):
    made = CaseFolder.of(tmp_path, "app", "c1", lambda: NOW)
    made.open(CASE)
    planned(made)
    return made


@pytest.fixture
def approval(folder):
    return PlanApproval(folder, SETTINGS)


def planned(folder, tasks=3, topology=TOPOLOGY):
    content = plan_content(folder.case(), topology, None, {"tasks": tasks})
    folder.write("plan.json", {"summary": f"{tasks} tasks", "content": content})
    return content


def test_should_record_who_answered_what_to_which_plan_and_use_the_answer_once(folder, approval):
    assert approval.ask() == "3 tasks"
    approval.keep("Approve", {"id": "7", "name": "Grace"}, AT, "ada")
    content = folder.read("plan.json")["content"]
    expected = PlanAnswer("c1", plan_hash(content), "Approve", "7", "Grace", AT, "ada")
    assert approval.require() == expected
    assert not approval.is_used
    approval.use()
    assert approval.answer == replace(expected, state=AnswerState.USED, used_ms=NOW)
    # A try that was killed goes on.
    PlanApproval(replace(folder, clock=lambda: NOW + 5), SETTINGS).use()
    assert approval.answer.used_ms == NOW
    approval.finish()
    assert approval.is_done
    with pytest.raises(StartRefused, match=r"not approved, nothing was changed: .*its work is done: trigger a new run"):
        approval.use()


def test_should_refuse_a_task_that_was_marked_successful(folder, approval):
    for marked in (lambda: None, approval.ask):
        marked()
        for step in (approval.require, approval.use):
            with pytest.raises(StartRefused, match="marking the task as successful is not an answer"):
                step()
    assert not approval.is_used


def test_should_refuse_a_plan_that_was_made_again_or_edited_after_the_answer(folder, approval):
    answered(folder, SETTINGS)
    planned(folder)  # The same once more.
    approval.require()
    planned(folder, tasks=4)
    with pytest.raises(StartRefused, match=r"Grace approved plan .* but the plan of case c1 is .* now"):
        approval.use()
    body = json.loads((folder.folder / "plan.json").read_text())
    body["content"]["effects"]["tasks"] = 3
    folder.write("plan.json", body)
    approval.require()
    body["content"]["options"]["tasks"] = 9
    folder.write("plan.json", body)
    with pytest.raises(StartRefused, match="Grace approved plan"):
        approval.use()


def test_should_bind_the_answer_to_the_plan_that_was_shown_when_another_was_made_meanwhile(folder, approval):
    approval.ask()
    shown = plan_hash(folder.read("plan.json")["content"])
    planned(folder, tasks=4)
    assert approval.keep("Approve", {"id": "7", "name": "Grace"}, AT, "ada").plan_hash == shown
    with pytest.raises(StartRefused, match="Grace approved plan"):
        approval.require()
    # Airflow shows the text of the first question as long as the run lives.
    with pytest.raises(StartRefused, match="keeps showing that one: trigger a new run"):
        approval.ask()


def test_should_refuse_the_answer_of_another_case(folder, approval, tmp_path):
    other = CaseFolder.of(tmp_path, "app", "c2", lambda: NOW)
    other.open(replace(folder.case(), case_id="c2"))
    planned(other)
    answered(folder, SETTINGS)
    shutil.copy(folder.folder / "answer.json", other.folder)
    with pytest.raises(StartRefused, match="kept for case c2 was given for case c1"):
        PlanApproval(other, SETTINGS).use()


def test_should_forget_an_unused_answer_when_asked_again_but_not_ask_again_once_one_was_used(folder, approval):
    answered(folder, SETTINGS)
    assert approval.ask() == "3 tasks"
    assert approval.answer is None
    answered(folder, SETTINGS)
    approval.use()
    for end in (lambda: None, approval.finish, approval.close):
        end()
        assert approval.ask() is None
        with pytest.raises(StartRefused, match="was used already"):
            approval.keep("Approve", {"id": "7", "name": "Grace"}, AT, "ada")


def test_should_let_only_the_holder_of_the_application_use_an_answer_that_has_expired(folder, tmp_path):
    settings = SETTINGS.model_copy(update={"var_dir": tmp_path})
    answered(folder, settings)
    late = PlanApproval(replace(folder, clock=lambda: NOW + response_ms("rescale", settings) + 1), settings)
    for by in (None, "c2", "c1"):
        if by is not None:
            take_hold(tmp_path, "app", Hold(by, "why", NOW))
        if by != "c1":
            with pytest.raises(StartRefused, match="the answer was not used: trigger a new run"):
                late.use()
            release_hold(tmp_path, "app", "c2")
    late.use()
    release_hold(tmp_path, "app", "c1")
    late.require()


def test_should_give_up_a_case_only_when_its_answer_was_used(folder, approval):
    approval.close()
    answered(folder, SETTINGS)
    approval.close()
    approval.finish()
    approval.use()
    approval.close()
    assert approval.is_used
    with pytest.raises(StartRefused, match="its work is given up"):
        approval.use()


def test_should_name_the_differences_from_the_approved_plan(folder, approval):
    answered(folder, SETTINGS)
    approval.require_topology(version_one("app").plan())
    with pytest.raises(
        StartRefused, match=r'topology\.version is "2" now and was "1".*\. Trigger a new run, which plans again'
    ):
        approval.require_topology(version("app", "2", "n", n="count(*)").plan())
    approval.require_content(folder.read("plan.json")["content"])
    with pytest.raises(StartRefused, match=r"plan\.effects\.tasks is 4 now and was 3"):
        approval.require_content(plan_content(folder.case(), TOPOLOGY, None, {"tasks": 4}))


def test_should_mark_an_answer_used_once_when_many_try_at_the_same_time(folder):
    answered(folder, SETTINGS)
    written = []

    class Recording(CaseFolder):
        def write(self, name, body):
            written.append(name)
            super().write(name, body)

    tries = [PlanApproval(Recording(folder.folder, folder.clock), SETTINGS) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one.use(), tries))
    assert written == ["answer.json"]
