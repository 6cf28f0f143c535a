"""Targets, time lines, outcomes and reports of restores: without a broker."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.unit.operations.rewind.test_point_in_time import a_record

from tidemark.errors import StartRefused, TaskLocked
from tidemark.names import TopicPartition
from tidemark.operations.case import case as case_module
from tidemark.operations.case.approval import PlanAnswer
from tidemark.operations.case.case import RESTORE, Case, CaseFolder, case_id_of
from tidemark.operations.case.report import CaseOutcome, make_report, outcome_of
from tidemark.operations.case.target import Latest, Offsets, PointInTime, moment_of_offsets, parse_target
from tidemark.supervision.hold import Hold, hold_path, read_hold, release_hold, take_hold

NOW = 1_700_000_000_000
SOURCE = TopicPartition("in", 2)
ASKED = {"source": "fastest", "target": "latest"}
CASE = Case("c1", RESTORE, "counts", "app", ASKED, False, "the disk <died>", NOW, "run-1")
CHANGE = replace(CASE, kind="rescale", asked={"tasks": 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", Latest()),
        (" latest ", Latest()),
        ("-10m", PointInTime(NOW - 600_000)),
        ("2023-11-14T22:00:00Z", PointInTime(1_699_999_200_000)),
        ("in[2]=5", Offsets({SOURCE: 5})),
        ("in[2]=5, a.b-c[0] = 17", Offsets({SOURCE: 5, TopicPartition("a.b-c", 0): 17})),
    ],
)
def test_should_read_every_kind_of_target(text, expected):
    assert parse_target(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("yesterday", "or write latest, or offsets as"),
        ("in[2]=x", "'in[2]=x' is not a source offset"),
        ("in=5", "'in=5' is not a source offset"),
        ("2033-11-14T22:00:00Z", "is in the future"),
    ],
)
def test_should_explain_the_format_of_a_target(text, summary):
    with pytest.raises(ValueError, match=summary.replace("[", r"\[").replace("]", r"\]")):
        parse_target(text, NOW)


def batch(number, offset):
    """Committed `number` seconds after NOW, at a next offset."""
    return a_record(number, NOW + 1000 * number, sources={"in": {2: (0, offset)}})


HISTORY = [batch(1, 10), batch(2, 20), batch(3, 30)]


@pytest.mark.parametrize(
    ("offset", "last_ms"), [(10, NOW + 1999), (19, NOW + 1999), (20, NOW + 2999), (29, NOW + 2999)]
)
def test_should_find_the_last_commit_not_beyond_an_offset(offset, last_ms):
    assert moment_of_offsets(HISTORY, {SOURCE: offset}) == last_ms


def test_should_take_the_earliest_time_of_several_partitions_and_respect_a_rewind():
    other = replace(batch(2, 99), task=replace(batch(2, 99).task, partition=3), sources={"in": {3: (0, 99)}})
    earlier = replace(other, batch=1, commit_time_ms=NOW + 500, sources={"in": {3: (0, 40)}})
    both = {SOURCE: 29, TopicPartition("in", 3): 50}
    assert moment_of_offsets([*HISTORY, earlier, other], both) == NOW + 1999
    # Batch 4 went back to 10: only what was beyond after it counts.
    assert moment_of_offsets([*HISTORY, batch(4, 10), batch(5, 30)], {SOURCE: 20}) == NOW + 4999


@pytest.mark.parametrize(
    ("wanted", "summary"),
    [
        ({SOURCE: 9}, "no remaining commit record has"),
        ({SOURCE: 30}, "nothing to go back from"),
        ({TopicPartition("other", 0): 3}, "no task has committed offsets of other"),
    ],
)
def test_should_refuse_offsets_that_no_commit_matches(wanted, summary):
    with pytest.raises(StartRefused, match=summary):
        moment_of_offsets(HISTORY, wanted)


def test_should_name_a_case_after_its_run_in_any_time_zone_and_sort_by_time():
    when = datetime(2026, 11, 21, 3, 0, 0, 250_000, tzinfo=UTC)
    assert case_id_of(when) == "20261121T030000250000Z"
    assert case_id_of(when.astimezone(timezone(timedelta(hours=5)))) == case_id_of(when)
    assert case_id_of(when) < case_id_of(when + timedelta(microseconds=1))


@pytest.fixture
def folder(tmp_path):
    made = CaseFolder.of(tmp_path, "app", "c1", lambda: NOW)
    made.open(CASE)
    return made


def test_should_keep_the_first_request_and_a_timeline_that_includes_killed_steps(folder):
    folder.open(replace(CASE, reason="another"))
    assert folder.case() == CASE
    folder.note("fence", "begun")  # and killed
    with folder.step("fence") as report:
        report("stopping")
    with pytest.raises(StartRefused), folder.step("restore"):
        raise StartRefused("no  source\nat all")
    with (folder.folder / "events.jsonl").open("a") as events:
        events.write('{"time_ms": 1, "st')
    assert [(n.step, n.what, n.message) for n in folder.notes()] == [
        ("fence", "begun", ""), ("fence", "begun", ""), ("fence", "said", "stopping"), ("fence", "done", ""),
        ("restore", "begun", ""), ("restore", "failed", "no source at all"),
    ]  # fmt: skip
    with pytest.raises(StartRefused, match="has not run"):
        folder.read("plan.json")


@pytest.mark.parametrize("other", [replace(CASE, run_id="run-2"), replace(CASE, kind="rescale")], ids=["run", "dag"])
def test_should_refuse_the_case_of_another_run_with_the_same_time(folder, other):
    with pytest.raises(
        StartRefused, match=f"the run run-1 of {RESTORE} .* the run {other.run_id} of {other.kind} does"
    ):
        folder.open(other)
    assert folder.case() == CASE


def test_should_skip_a_truncated_line_and_continue_after_it(folder):
    folder.note("fence", "begun")
    path = folder.folder / "events.jsonl"
    before = path.read_bytes()
    folder.note("swap", "done", "", bytes={"0_0": 1}, place={})
    whole = path.read_bytes()
    for length in range(len(before), len(whole) - 1):
        path.write_bytes(whole[:length])
        assert [(n.step, n.what) for n in folder.notes()] == [("fence", "begun")], whole[:length]
        folder.note("swap", "begun")
        assert [(n.step, n.what) for n in folder.notes()] == [("fence", "begun"), ("swap", "begun")], whole[:length]
    # All of it but the end of the line.
    path.write_bytes(whole[:-1])
    folder.note("swap", "begun")
    assert [(n.step, n.what) for n in folder.notes()] == [("fence", "begun"), ("swap", "done"), ("swap", "begun")]


def noted(folder, *lines):
    for line in lines:
        folder.note(*line.split())
    return folder.notes()


APPROVED = PlanAnswer("c1", "aa", "Approve", "7", "ada", "then", "grace")
REJECTED = replace(APPROVED, chosen="Reject")
HELD = ("preflight done", "plan done", "fence begun", "fence done")
FENCED = (*HELD, "restore begun")
ROLLED_BACK = (*FENCED, "relaunch failed", "roll_back begun", "roll_back done")
CHANGING = (*HELD, "change begun")


@pytest.mark.parametrize(
    ("case", "lines", "approval", "outcome"),
    [
        (replace(CASE, dry_run=True), ("preflight done", "plan done"), None, CaseOutcome.DRY_RUN),
        (replace(CASE, dry_run=True), ("preflight done", "plan failed"), None, CaseOutcome.REFUSED),
        (CASE, ("preflight failed",), None, CaseOutcome.REFUSED),
        (CASE, ("plan done",), REJECTED, CaseOutcome.REJECTED),
        (CASE, ("plan done",), replace(REJECTED, user_id=None, user_name=None), CaseOutcome.TIMED_OUT),
        (CASE, (*FENCED, "relaunch done", "drain done"), APPROVED, CaseOutcome.RESTORED),
        (CASE, (*FENCED, "restore failed", "restore done", "drain done"), APPROVED, CaseOutcome.RESTORED),
        (CASE, (*FENCED, "relaunch done", "drain failed"), APPROVED, CaseOutcome.NOT_DRAINED),
        (CASE, (*FENCED, "swap done", "relaunch failed"), APPROVED, CaseOutcome.KEPT_FORWARD),
        (CASE, (*FENCED, "swap done", "relaunch failed", "relaunch done"), APPROVED, CaseOutcome.NOT_DRAINED),
        (CASE, (*FENCED, "restore done", "verify failed"), APPROVED, CaseOutcome.NOT_CHANGED),
        (CASE, (*FENCED, "restore failed", "roll_back done", "roll_back begun"), APPROVED, CaseOutcome.ROLLED_BACK),
        (CASE, (*FENCED, "restore failed", "roll_back begun"), APPROVED, CaseOutcome.NOT_ROLLED_BACK),
        (CASE, ("plan done", "fence begun", "fence failed"), APPROVED, CaseOutcome.REFUSED),
        (CASE, (*HELD, "release said"), APPROVED, CaseOutcome.REFUSED),
        (CASE, (*ROLLED_BACK, "release failed"), APPROVED, CaseOutcome.NOT_RUNNING),
        (CASE, (*ROLLED_BACK, "release said", "restore begun", "drain done"), APPROVED, CaseOutcome.RESTORED),
        (CASE, (*ROLLED_BACK, "restore begun", "roll_back begun"), APPROVED, CaseOutcome.NOT_ROLLED_BACK),
        (replace(CHANGE, dry_run=True), ("preflight done", "plan done"), None, CaseOutcome.DRY_RUN),
        (CHANGE, ("preflight done", "plan done"), REJECTED, CaseOutcome.REJECTED),
        (CHANGE, (*HELD, "release said"), APPROVED, CaseOutcome.REFUSED),
        (CHANGE, (*CHANGING, "change failed"), APPROVED, CaseOutcome.NOT_CHANGED),
        (CHANGE, (*CHANGING, "change done", "relaunch failed"), APPROVED, CaseOutcome.CHANGED_NOT_RUNNING),
        (
            CHANGE,
            (*CHANGING, "change done", "relaunch done", "drain failed"),
            APPROVED,
            CaseOutcome.CHANGED_NOT_DRAINED,
        ),
        (CHANGE, (*CHANGING, "change done", "relaunch done", "drain done"), APPROVED, CaseOutcome.CHANGED),
        (CHANGE, (*CHANGING, "change done", "change begun", "change failed"), APPROVED, CaseOutcome.NOT_CHANGED),
    ],
)
def test_should_say_how_a_case_ended(folder, case, lines, approval, outcome):
    assert outcome_of(case, noted(folder, *lines), approval) is outcome


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        (["ok"], CaseOutcome.RESTORED),
        (["not enough evidence"], CaseOutcome.RESTORED_UNPROVEN),
        (["not enough evidence", "ok"], CaseOutcome.RESTORED),
        (["ok", "not enough evidence"], CaseOutcome.RESTORED_UNPROVEN),
    ],
)
def test_should_not_end_as_wanted_when_the_evidence_was_not_enough(folder, evidence, outcome):
    noted(folder, *FENCED)
    for verdict in evidence:
        folder.note("verify", "figures", evidence=verdict)
    noted(folder, "swap done", "relaunch done", "drain done")
    found = make_report(folder, APPROVED)
    assert (found["outcome"], found["is_as_wanted"]) == (str(outcome), outcome is CaseOutcome.RESTORED)


@pytest.mark.parametrize(
    ("lines", "proven", "unproven"),
    [
        (("swap done", "relaunch failed"), CaseOutcome.KEPT_FORWARD, CaseOutcome.KEPT_FORWARD_UNPROVEN),
        (("swap done", "relaunch done", "drain failed"), CaseOutcome.NOT_DRAINED, CaseOutcome.NOT_DRAINED_UNPROVEN),
    ],
)
def test_should_say_that_a_restore_was_not_proven_also_when_a_later_step_failed(folder, lines, proven, unproven):
    for verdict, outcome in (("ok", proven), ("not enough evidence", unproven)):
        noted(folder, *FENCED)
        folder.note("verify", "figures", evidence=verdict)
        assert outcome_of(CASE, noted(folder, *lines), APPROVED) is outcome
    assert "verified" not in unproven
    assert not unproven.is_as_wanted


def test_should_report_times_and_approver_and_escape_markup_in_the_reason(folder):
    times = iter(range(NOW, NOW + 100_000, 1500))
    summary = replace(folder, clock=lambda: next(times))
    summary.note("preflight", "figures", asked_by="grace")
    noted(summary, "fence begun", "restore begun", "relaunch done", "drain done")
    summary.note("verify", "figures", rpo_offsets=0, rpo_s=0.0, keys=12)
    found = make_report(summary, APPROVED)
    assert (found["outcome"], found["is_as_wanted"]) == ("restored", True)
    assert (found["asked_by"], found["answered_by"]) == ("grace", "ada")
    assert (found["standstill_s"], found["rto_s"], found["rpo_offsets"], found["keys"]) == (3.0, 4.5, 0, 12)
    assert json.loads((folder.folder / "report.json").read_text()) == found
    page = (folder.folder / "report.html").read_text()
    assert "the disk &lt;died&gt;" in page
    assert "<died>" not in page
    assert "ada" in page
    assert "http" not in page
    assert (found["answered_at"], found["answered_plan"]) == ("then", "aa")


def test_should_report_a_change_with_its_request(tmp_path):
    folder = CaseFolder.of(tmp_path, "app", "c2", lambda: NOW)
    folder.open(replace(CHANGE, asked={"rename": ["n=total", "m=all"], "drop": [], "to": "<latest>"}))
    noted(folder, *CHANGING, "change done", "relaunch done", "drain done")
    assert make_report(folder, APPROVED)["outcome"] == "changed"
    page = (folder.folder / "report.html").read_text()
    assert "<h1>Rescale of app</h1>" in page
    assert "<td>rename</td><td>n=total, m=all</td>" in page
    assert "&lt;latest&gt;" in page
    assert "drop" not in page
    assert "RPO" not in page


def test_should_let_one_holder_hold_and_remember_the_instances_that_ran(tmp_path):
    first = take_hold(tmp_path, "app", Hold("c1", "why", 5, (0, 1)))
    assert take_hold(tmp_path, "app", Hold("c1", "again", 9, (2,))) == replace(first, instances=(0, 1, 2))
    with pytest.raises(TaskLocked, match=r"held by c1 \(why\)"):
        take_hold(tmp_path, "app", Hold("c2", "other", 9))
    assert not release_hold(tmp_path, "app", "c2")
    assert read_hold(tmp_path, "app") is not None
    assert release_hold(tmp_path, "app", "c1")
    assert read_hold(tmp_path, "app") is None
    assert not release_hold(tmp_path, "app", "c1")


def test_should_treat_an_unreadable_hold_as_a_hold(tmp_path):
    path = hold_path(tmp_path, "app")
    path.parent.mkdir()
    path.write_text("{half")
    assert read_hold(tmp_path, "app").by == "unknown"
    with pytest.raises(TaskLocked, match=r"remove .*app\.hold\.json"):
        take_hold(tmp_path, "app", Hold("c1", "why", 5))


@pytest.mark.parametrize("has_room", [True, False])
def test_should_keep_the_records_of_a_failed_step_in_a_private_file_that_the_message_names(
    tmp_path, monkeypatch, has_room
):
    folder = CaseFolder(tmp_path / "c1", lambda: NOW)
    folder.open(CHANGE)
    if not has_room:
        monkeypatch.setattr(case_module, "replace_file", full_disk)
    with pytest.raises(StartRefused) as raised, folder.step("change"):
        raise StartRefused("store 0_1/totals differs in 1 keys", records="616e6e61: changelog 31, store 32")
    path = folder.folder / "change-records.txt"
    named = f"; the records or keys that it is about are in {path}" if has_room else ""
    message = f"store 0_1/totals differs in 1 keys{named}"
    assert str(raised.value) == folder.notes()[-1].message == message
    assert path.exists() is has_room
    if has_room:
        assert path.read_text() == "616e6e61: changelog 31, store 32\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert "616e6e61" not in json.dumps(make_report(folder, None))


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")
