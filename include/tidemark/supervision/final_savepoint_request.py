"""Requests for the last savepoint of a stop.

The process that stops an instance asks for it, and the instance takes it after its last batch. The request is
`<var_dir>/instances/<app>-<instance>.leaving.json`, written before the signal. Instances that are stopped together get
one id, so that their parts form one savepoint; the instance that finishes last marks it as complete. A stop without a
request (a hold, `tidemark down`, a kill) takes no savepoint, and neither does an instance that ends with an error.
"""

from __future__ import annotations

import re
from pathlib import Path

from tidemark.folder_lock import locked_file
from tidemark.supervision.live_instances import Request, read_request, write_request
from tidemark.supervision.savepoint_ids import begun_ms, new_savepoint_id

_TOGETHER_MS = 30_000
"""Stops that are asked for within this time belong together, because the tasks of a run are stopped one by one."""


def leaving_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Return the path of the request to one instance."""
    return var_dir / "instances" / f"{application_id}-{instance}.leaving.json"


def ask_for_last(var_dir: Path, application_id: str, instance: int, location: str, now_ms: int) -> Request:
    """Write the request; the signal follows. Does not access `location`. Raises `OSError`."""
    path = leaving_path(var_dir, application_id, instance)
    # Each instance is stopped by its own watcher, all at the same time.
    with locked_file(path.with_name(f"{application_id}.leaving.lock")):
        others = [read_request(other) for other in _siblings(path, application_id)]
        together = [o.savepoint_id for o in others if o is not None and o.location == location and _is_now(o, now_ms)]
        asked = Request(max(together, default=new_savepoint_id(now_ms)), location)
        write_request(path, asked)
        return asked


def _siblings(path: Path, application_id: str) -> list[Path]:
    """Return the requests to other instances of this application.

    Applications whose ids begin with this application's id are not matched.
    """
    named = re.compile(rf"{re.escape(application_id)}-\d+\.leaving\.json")
    return [other for other in path.parent.iterdir() if named.fullmatch(other.name) and other != path]


def _is_now(asked: Request, now_ms: int) -> bool:
    began = begun_ms(asked.savepoint_id)
    return began is not None and abs(now_ms - began) <= _TOGETHER_MS
