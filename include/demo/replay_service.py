"""The continuous replay as a service of the stack: recorded in `stack.json`, stopped by `tidemark down`."""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil

from tidemark import processes
from tidemark.devstack import airflow_parts, record
from tidemark.devstack.record import Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings, project_root

NAME = "replay"


def ensure_replay(settings: Settings, arguments: list[str]) -> bool:
    """Start `tidemark replay` with these arguments unless one runs against this broker; return whether it was started.

    Raises `PreflightFailed` if no stack is recorded.
    """
    with record.locked(settings.var_dir):
        known = record.load(settings.var_dir)
        if known is None:
            raise PreflightFailed("no stack is recorded: run `tidemark up`")
        if _is_usable(known, settings):
            return False
        earlier = known.services.get(NAME)
        if earlier:
            processes.stop(earlier.identity)
        log = settings.var_dir / "logs" / f"{NAME}.log"
        command = [sys.executable, "-m", "tidemark.cli.main", NAME, *arguments]
        identity = processes.start(
            command, log, airflow_parts.base_environment(settings, known.stack_id), project_root()
        )
        known.services[NAME] = Service(identity.pid, identity.start_time, 0, str(log))
        record.save(known, settings.var_dir)
        return True


def _is_usable(known: StackRecord, settings: Settings) -> bool:
    service = known.services.get(NAME)
    process = service.identity.process() if service else None
    if process is None:
        return False
    with suppress(psutil.Error):
        # If the broker was started again on another port, the replay has no broker to write to.
        return process.environ().get("TIDEMARK_BOOTSTRAP_SERVERS") == settings.bootstrap_servers
    return False
