"""Checks whether a restore could run at all: all instances here, no other work, free disk space. They change nothing."""

from __future__ import annotations

from tidemark.errors import PreflightFailed
from tidemark.kafka.group import members
from tidemark.names import group_instance_id
from tidemark.operations.case.case import Case
from tidemark.operations.clients import Clients
from tidemark.operations.unfinished_work import unfinished_work
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.supervision.hold import read_hold, stale_because
from tidemark.supervision.live_instances import live_instances

_LOOK_S = 1.0


def instances_here(settings: Settings, application_id: str) -> list[int]:
    """Return the numbers of the instances that run on this machine."""
    return [live.instance for live in live_instances(settings.var_dir, application_id)]


def require_all_here(clients: Clients, application_id: str) -> None:
    """Check that no instance runs elsewhere. Raises `PreflightFailed`, which names it. Blocks.

    A stopped instance stays a member of the group until its session ends, so a member that is not here is waited for
    that long.
    """
    session_s = clients.settings.session_timeout_ms / 1000
    if not wait_until(lambda: not _elsewhere(clients, application_id), session_s + _LOOK_S, every_s=_LOOK_S):
        raise PreflightFailed(
            f"{', '.join(_elsewhere(clients, application_id))} is in the group of {application_id} but does not run on this "
            "machine: stop it there"
        )


def require_nothing_else(clients: Clients, application_id: str, case: Case) -> None:
    """Check that there is no other unfinished restore or rewind, and no hold of another case or command.

    Raises `PreflightFailed`.
    """
    settings, app = clients.settings, application_id
    if (left := unfinished_work(clients, app, case.topology, but=case.case_id)) is not None:
        raise PreflightFailed(left)
    hold = read_hold(settings.var_dir, app)
    is_another = hold is not None and hold.by != case.case_id
    if hold is not None and is_another and stale_because(settings.var_dir, app, hold) is None:
        raise PreflightFailed(f"{app} is held by {hold.by} ({hold.reason}): wait until that has ended")


def _elsewhere(clients: Clients, application_id: str) -> list[str]:
    running = instances_here(clients.settings, application_id)
    here = tuple(f"{group_instance_id(application_id, number)} at " for number in running)
    found = members(clients.settings, clients.admin, application_id)
    return [member for member in found if not member.startswith(here)]
