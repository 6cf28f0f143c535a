"""The report of a case: one JSON object, and the same as a page to read or send on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from tidemark.html_page import render_page
from tidemark.operations.case.approval import PlanAnswer
from tidemark.operations.case.case import BEGUN, DONE, FAILED, RESTORE, Case, CaseFolder, Note
from tidemark.operations.case.plan import format_request
from tidemark.operations.times import format_time
from tidemark.verdict import Verdict


class CaseOutcome(StrEnum):
    """The result of a case."""

    DRY_RUN = "dry run, nothing was changed"
    REFUSED = "refused before anything was changed"
    REJECTED = "rejected, nothing was changed"
    TIMED_OUT = "nobody answered in time, which means no: nothing was changed"
    RESTORED = "restored"
    RESTORED_UNPROVEN = "restored, but the changelogs do not show that the new state is right"
    KEPT_FORWARD = "restored, verified and kept, but the instances do not run: a person is needed now"
    KEPT_FORWARD_UNPROVEN = (
        "restored and kept, but the changelogs do not show that the new state is right, and the instances do not run: a person "
        "is needed now"
    )
    NOT_DRAINED = "restored, but what waited is not committed yet"
    NOT_DRAINED_UNPROVEN = (
        "restored, but the changelogs do not show that the new state is right, and what waited is not committed yet"
    )
    CHANGED = "changed"
    CHANGED_NOT_DRAINED = "changed, but what waited is not committed yet"
    CHANGED_NOT_RUNNING = "changed, but the instances do not run: a person is needed now"
    NOT_CHANGED = "failed: read the message, and the DAG's runbook before it is run again"
    ROLLED_BACK = "failed and rolled back"
    NOT_RUNNING = "failed and rolled back, but the instances do not run: a person is needed now"
    NOT_ROLLED_BACK = "failed, and the roll-back failed too: a person is needed now"

    @property
    def is_as_wanted(self) -> bool:
        """Whether the case ended as its users chose."""
        return self in (
            CaseOutcome.DRY_RUN,
            CaseOutcome.REJECTED,
            CaseOutcome.TIMED_OUT,
            CaseOutcome.RESTORED,
            CaseOutcome.CHANGED,
        )


def outcome_of(case: Case, notes: Sequence[Note], answer: PlanAnswer | None) -> CaseOutcome:
    """Return the outcome from the time line and the kept answer; `answer` is None if none was asked for or given yet."""
    steps = {(note.step, note.what) for note in notes}
    changing = "restore" if case.kind == RESTORE else "change"
    if (changing, BEGUN) not in steps:
        if answer is not None and not answer.is_yes:
            return CaseOutcome.TIMED_OUT if answer.user_id is None else CaseOutcome.REJECTED
        return CaseOutcome.DRY_RUN if case.dry_run and ("plan", DONE) in steps else CaseOutcome.REFUSED
    # The results of an earlier try no longer count.
    last = max(at for at, note in enumerate(notes) if (note.step, note.what) == (changing, BEGUN))
    steps = {(note.step, note.what) for note in notes[last:]}
    if case.kind != RESTORE:
        return _change_outcome(steps)
    if ("roll_back", BEGUN) in steps:
        if ("roll_back", DONE) not in steps:
            return CaseOutcome.NOT_ROLLED_BACK
        return CaseOutcome.NOT_RUNNING if ("release", FAILED) in steps else CaseOutcome.ROLLED_BACK
    is_proven = _evidence(notes[last:]) is Verdict.OK
    if ("drain", DONE) in steps:
        return CaseOutcome.RESTORED if is_proven else CaseOutcome.RESTORED_UNPROVEN
    if ("relaunch", DONE) in steps:
        return CaseOutcome.NOT_DRAINED if is_proven else CaseOutcome.NOT_DRAINED_UNPROVEN
    if ("swap", DONE) not in steps:
        return CaseOutcome.NOT_CHANGED
    return CaseOutcome.KEPT_FORWARD if is_proven else CaseOutcome.KEPT_FORWARD_UNPROVEN


def _evidence(notes: Sequence[Note]) -> Verdict:
    """Return the verdict that the step `verify` noted.

    A rewind notes none, and counts as proven. Its stores are compared while they are built, and a difference refuses it, but
    one whose changelog holds too little to compare is only named in the time line.
    """
    found = [note.figures["evidence"] for note in notes if note.step == "verify" and "evidence" in note.figures]
    return Verdict(found[-1]) if found else Verdict.OK


def _change_outcome(steps: set[tuple[str, str]]) -> CaseOutcome:
    if ("change", DONE) not in steps:
        return CaseOutcome.NOT_CHANGED
    if ("relaunch", DONE) not in steps:
        return CaseOutcome.CHANGED_NOT_RUNNING
    return CaseOutcome.CHANGED if ("drain", DONE) in steps else CaseOutcome.CHANGED_NOT_DRAINED


def make_report(folder: CaseFolder, answer: PlanAnswer | None) -> dict[str, Any]:
    """Write `report.json` and `report.html`. Returns the content of the former."""
    case, notes = folder.case(), folder.notes()
    outcome = outcome_of(case, notes, answer)
    figures: dict[str, Any] = {}
    for note in notes:
        figures |= note.figures
    report = {
        "case": asdict(case),
        "outcome": str(outcome),
        "is_as_wanted": outcome.is_as_wanted,
        "failures": [f"{note.step}: {note.message}" for note in notes if note.what == FAILED],
        "asked_by": _first(notes, "preflight", "asked_by"),
        "answered_by": None if answer is None or answer.user_id is None else answer.who,
        "answered_at": None if answer is None else answer.answered_at,
        "answered_plan": None if answer is None else answer.plan_hash,
        **_times(notes),
        **figures,
        "plan": _plan(folder),
        "time_line": [asdict(note) for note in notes],
    }
    folder.write("report.json", report)
    (folder.folder / "report.html").write_text(render(report), encoding="utf-8")
    return report


def _first(notes: Sequence[Note], step: str, figure: str) -> Any:
    return next((note.figures[figure] for note in notes if note.step == step and figure in note.figures), None)


def _times(notes: Sequence[Note]) -> dict[str, float | None]:
    """Return the seconds from the beginning of the fence until instances ran again, and until the lag was committed (RTO)."""
    begun = next((n.time_ms for n in notes if (n.step, n.what) == ("fence", BEGUN)), None)

    def until(step: str) -> float | None:
        ends = [n.time_ms for n in notes if (n.step, n.what) == (step, DONE)]
        return None if begun is None or not ends else (ends[-1] - begun) / 1000

    return {"standstill_s": until("relaunch"), "rto_s": until("drain")}


def _plan(folder: CaseFolder) -> Mapping[str, Any] | None:
    """Return the plan without the content of its hash, which is in `plan.json`."""
    if not folder.holds("plan.json"):
        return None
    return {name: value for name, value in folder.read("plan.json").items() if name != "content"}


def render(report: Mapping[str, Any]) -> str:
    """Return the page as HTML. It loads nothing from elsewhere."""
    case = Case(**report["case"])
    what = "restore" if case.kind == RESTORE else case.kind.replace("_", " ")
    title = f"{what.capitalize()} of {case.application_id}"
    figures = [
        ("application", case.application_id),
        ("reason", case.reason),
        *format_request(case),
        ("asked", f"{format_time(case.asked_ms)} by {report['asked_by'] or 'unknown'}"),
        ("answered by", report["answered_by"] or "nobody"),
        ("RTO, seconds", _format(report["rto_s"])),
        ("standstill, seconds", _format(report["standstill_s"])),
    ]
    if case.kind == RESTORE:
        figures += [
            ("RPO, source offsets", _format(report.get("rpo_offsets"))),
            ("RPO, seconds", _format(report.get("rpo_s"))),
            ("evidence", str(report.get("evidence") or "—")),
            ("keys compared", _format(report.get("keys"))),
            ("keys left out", _format(report.get("left_out"))),
            ("keys that differ", _format(report.get("differing"))),
        ]
    return render_page(
        "operations/case/report.html", title=title, case=case, report=report, figures=figures, time=format_time
    )


def _format(figure: Any) -> str:
    return "—" if figure is None else f"{figure:,}"
