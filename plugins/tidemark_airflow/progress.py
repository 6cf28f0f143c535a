"""What a watcher says about a running instance: every change of state at once, progress now and then."""

from __future__ import annotations

from tidemark_airflow.identity import RunView

# As they stand in a run file, with what a reader of the log wants to see.
_SHOWN = ("batch", "records_per_second", "last_commit_ms", "last_commit_seconds", "partitions", "restoring")
# An instance rewrites its run file every second, between batches.
_QUIET_S = 60.0


class ProgressLog:
    """Turns successive run files into log lines. The time is passed in."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._state: str | None = None
        self._process: object = None
        self._said_at = 0.0

    def lines(self, run: RunView | None, now: float) -> list[str]:
        """The lines to log for what is seen at `now` (epoch seconds)."""
        if run is None:
            return []
        said = []
        silent_s = now - run.written_at
        if run.process != self._process:
            self._process, self._state = run.process, None
        if run.state != self._state:
            said.append(f"state {self._state or '-'} -> {run.state} (pid {run.process.pid})")
            self._state = run.state
            self._said_at = now - self._every_s
        if now - self._said_at < self._every_s:
            return said
        self._said_at = now
        if silent_s >= _QUIET_S:
            said.append(f"no sign of life for {silent_s:.0f} s, although its process is there")
        else:
            shown = " ".join(f"{name}={run.values[name]}" for name in _SHOWN if run.values.get(name) is not None)
            if shown:
                said.append(f"{run.state} {shown}")
        return said
