"""The reports about a running instance: every change of state at once, and progress at intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.supervision.run_file import RunView

# The fields of a run file that a reader of the log wants to see.
_SHOWN = (
    "batch",
    "records_per_second",
    "last_commit_ms",
    "last_commit_seconds",
    "partitions",
    "generation",
    "restoring",
)
# An instance rewrites its run file every second, between batches.
_QUIET_S = 60.0


@dataclass(frozen=True)
class Said:
    """A report: `lines` for the log, and `figures` with the same as values. `figures` is None if no progress is due."""

    lines: list[str] = field(default_factory=list)
    figures: Mapping[str, Any] | None = None


class Progress:
    """Turns successive run files into reports, with progress every `every_s` seconds. The time is passed in."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._state: str | None = None
        self._process: object = None
        self._said_at = 0.0

    def said(self, run: RunView | None, now: float) -> Said:
        """Return the report on the run file that was read at `now` (epoch seconds)."""
        if run is None:
            return Said()
        lines = []
        silent_s = now - run.written_at
        if run.process != self._process:
            self._process, self._state = run.process, None
        if run.state != self._state:
            lines.append(f"state {self._state or '-'} -> {run.state} (pid {run.process.pid})")
            self._state = run.state
            self._said_at = now - self._every_s
        # A clock that was set back would otherwise silence the reports until it has caught up.
        if 0 <= now - self._said_at < self._every_s:
            return Said(lines)
        self._said_at = now
        figures = {name: run.values[name] for name in _SHOWN if run.values.get(name) is not None}
        if silent_s >= _QUIET_S:
            lines.append(f"its process runs, but has not written its run file for {silent_s:.0f} s")
        elif figures:
            lines.append(f"{run.state} {' '.join(f'{name}={value}' for name, value in figures.items())}")
        return Said(lines, {"state": run.state, "seen_at": round(now), "silent_s": round(silent_s), **figures})
