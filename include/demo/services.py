"""The demo's services beside the stack: heartbeats and other events. `tidemark down` stops them, as `stack.json` names them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tidemark import processes
from tidemark.devstack import airflow_parts, record
from tidemark.devstack.record import Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings, project_root

REPLAY, ACTIVITY = "replay", "activity"


def ensure_replay(settings: Settings, arguments: Sequence[str]) -> bool:
    """Start `tidemark replay` with these arguments unless one runs against this broker; return whether it was started.

    Raises `PreflightFailed` if no stack is recorded.
    """
    return _ensure(settings, REPLAY, ["tidemark.cli.main", "replay", *arguments])


def ensure_activity(settings: Settings, patients: int) -> bool:
    """Start what the demo does besides heartbeats, as `ensure_replay` starts these."""
    return _ensure(settings, ACTIVITY, ["demo.activity_service", str(patients)])


def _ensure(settings: Settings, name: str, module: Sequence[str]) -> bool:
    with record.locked(settings.var_dir):
        known = record.load(settings.var_dir)
        if known is None:
            raise PreflightFailed("no stack is recorded: run `tidemark up`")
        if _is_usable(known, name, settings):
            return False
        earlier = known.services.get(name)
        if earlier:
            processes.stop(earlier.identity)
        log = settings.var_dir / "logs" / f"{name}.log"
        command = [sys.executable, "-m", *module]
        identity = processes.start(
            command, log, airflow_parts.base_environment(settings, known.stack_id), project_root()
        )
        known.services[name] = Service(identity.pid, identity.started_after_boot_s, identity.boot_id, 0, str(log))
        record.save(known, settings.var_dir)
        return True


def _is_usable(known: StackRecord, name: str, settings: Settings) -> bool:
    service = known.services.get(name)
    process = service.identity.process() if service else None
    if process is None:
        return False
    with suppress(psutil.Error):
        # If the broker was started again on another port, the service has no broker to write to.
        return process.environ().get("TIDEMARK_BOOTSTRAP_SERVERS") == settings.bootstrap_servers
    return False
