"""Work on an application's state that was left half done, and the commands that complete it."""

from __future__ import annotations

from tidemark.operations.clients import Clients
from tidemark.operations.rewind.rewind import unfinished_rewind
from tidemark.operations.workspace import unfinished_restore


def unfinished_work(clients: Clients, application_id: str, topology: str, but: str | None = None) -> str | None:
    """Return which restore or rewind of an application is unfinished and the commands that end it; None if there is none.

    The one with the id `but` is left out. Blocks, and asks Kafka only if a rewind has left a folder. Raises `OutcomeUnknown`.
    """
    if (restore := unfinished_restore(clients.settings.state_dir, application_id, topology, but)) is not None:
        return restore
    rewind = unfinished_rewind(clients, application_id)
    if rewind is None or rewind == but:
        return None
    return (
        f"rewind {rewind} of {application_id} is committed but not finished: stop the application and finish it with `tidemark "
        f"rewind run {topology} --to -1m`, which puts its state in place whatever time it is given"
    )
