"""The record of one restore or change: what was asked, what was planned, and a time line that every step writes to.

`<var_dir>/oncall/<application_id>/<case id>/` contains `case.json`, `plan.json`, `events.jsonl`, and in the end
`report.json` and `report.html`. Of a step that was killed, the time line has the beginning. If a step fails because of certain
records or keys, `<step>-records.txt` has them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tidemark.atomic_file import replace_file
from tidemark.errors import StartRefused, TidemarkError
from tidemark.operations.workspace import new_id
from tidemark.supervision.hold import acting_for, case_path

RESTORE = "restore_oncall"
"""The kind of a case that restores; cases of all other kinds are changes."""
BEGUN, DONE, FAILED, SAID, KEPT_FORWARD = "begun", "done", "failed", "said", "kept forward"


@dataclass(frozen=True)
class Case:
    """The request of a case. `kind` and `run_id` are the ids of the DAG and of its run that does it.

    `asked` are the parameters that only this kind has.
    """

    case_id: str
    kind: str
    topology: str
    application_id: str
    asked: Mapping[str, Any]
    dry_run: bool
    reason: str
    asked_ms: int
    run_id: str


@dataclass(frozen=True)
class Note:
    """One line of the time line. `what` is `begun`, `done` or `failed` for a step, or `said` for a message in between.

    `kept forward` means that what was done before is in place and stays, although this step failed.
    """

    time_ms: int
    step: str
    what: str
    message: str
    figures: Mapping[str, Any]


def case_id_of(run_after: datetime) -> str:
    """Return the case id of a run with this logical time. It is the same for each of its tasks and tries; ids sort by time."""
    return new_id(run_after)


@dataclass(frozen=True)
class CaseFolder:
    """The folder of one case. `clock` returns epoch milliseconds."""

    folder: Path
    clock: Callable[[], int]

    @classmethod
    def of(cls, var_dir: Path, application_id: str, case_id: str, clock: Callable[[], int]) -> CaseFolder:
        """Refer to the folder of a case, which need not exist."""
        return cls(case_path(var_dir, application_id, case_id), clock)

    def open(self, case: Case) -> None:
        """Write down what was asked, once. Raises `StartRefused` if the folder has the case of another run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.require_same_run(case)
        if not self.holds("case.json"):
            replace_file(self.folder / "case.json", json.dumps(asdict(case), indent=1), synced=True)

    def require_same_run(self, case: Case) -> None:
        """Raise `StartRefused` if the case that was opened here belongs to another run than `case`."""
        if not self.holds("case.json"):
            return
        opened = self.case()
        if (opened.kind, opened.run_id) != (case.kind, case.run_id):
            raise StartRefused(
                f"the run {opened.run_id} of {opened.kind} has the same run_after and so the same case {case.case_id}: the run "
                f"{case.run_id} of {case.kind} does nothing; trigger it again with another run_after, or without one"
            )

    def case(self) -> Case:
        """Return what was asked. Raises `StartRefused` if the case was not opened."""
        return Case(**self.read("case.json"))

    def write(self, name: str, body: Mapping[str, Any]) -> None:
        """Write a file to the case's folder."""
        replace_file(self.folder / name, json.dumps(body, indent=1), synced=True)

    def holds(self, name: str) -> bool:
        """Whether `write` has written that file."""
        return (self.folder / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        """Return what `write` wrote. Raises `StartRefused` if it is missing."""
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_text())
        except FileNotFoundError as error:
            raise StartRefused(f"{self.folder / name} is missing: the step that writes it has not run") from error
        return found

    def note(self, step: str, what: str, message: str = "", **figures: Any) -> None:
        """Add a line to the time line. It begins a new line even if a kill or a full disk has cut the previous one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps(asdict(Note(self.clock(), step, what, message, figures))) + "\n"
        with (self.folder / "events.jsonl").open("a+b") as events:
            is_cut = False
            if events.seek(0, os.SEEK_END):
                events.seek(-1, os.SEEK_END)
                is_cut = events.read(1) != b"\n"
            events.write(("\n" + line if is_cut else line).encode())

    def notes(self) -> list[Note]:
        """Return the time line so far. A line that was cut counts as not written."""
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found: list[Note] = []
        for line in lines:
            with suppress(json.JSONDecodeError):
                found.append(Note(**json.loads(line)))
        return found

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Write the beginning and end of a step to the time line. Yields the function that adds a line in between.

        The step acts under the case's hold, if there is one. The records of an error are written to a file of the case, which
        only its owner can read; the message of the error then names the file.
        """
        self.note(name, BEGUN)
        try:
            with acting_for(self.folder.name):
                yield lambda line: self.note(name, SAID, line)
        except Exception as error:
            if isinstance(error, TidemarkError) and error.records:
                self._keep_records(name, error)
            self.note(name, FAILED, " ".join(str(error).split()) or type(error).__name__)
            raise
        self.note(name, DONE)

    def _keep_records(self, step: str, error: TidemarkError) -> None:
        path = self.folder / f"{step}-records.txt"
        # On a full disk the message stays as it is.
        with suppress(OSError):
            replace_file(path, f"{error.records}\n", synced=False, private=True)
            error.extend(f"the records or keys that it is about are in {path}")

    def has(self, step: str, what: str) -> bool:
        """Whether a step has reached that point."""
        return any(note.step == step and note.what == what for note in self.notes())
