"""What a watcher says about a running instance: every change of state at once, progress now and then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark_airflow.identity import RunView

# As they stand in a run file, with what a reader of the log wants to see.
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
    """`lines` for the log. `figures` are the same as values, where there is progress to tell."""

    lines: list[str] = field(default_factory=list)
    figures: Mapping[str, Any] | None = None


class Progress:
    """Turns successive run files into what is said. The time is passed in."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._state: str | None = None
        self._process: object = None
        self._said_at = 0.0

    def said(self, run: RunView | None, now: float) -> Said:
        """What to say of what is seen at `now` (epoch seconds)."""
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
        if now - self._said_at < self._every_s:
            return Said(lines)
        self._said_at = now
        figures = {name: run.values[name] for name in _SHOWN if run.values.get(name) is not None}
        if silent_s >= _QUIET_S:
            lines.append(f"no sign of life for {silent_s:.0f} s, although its process is there")
        elif figures:
            lines.append(f"{run.state} {' '.join(f'{name}={value}' for name, value in figures.items())}")
        return Said(lines, {"state": run.state, "seen_at": round(now), "silent_s": round(silent_s), **figures})
