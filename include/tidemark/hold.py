"""A hold: while it lies there, nobody launches an instance of the application on this machine.

A restore from Airflow stops the instances for a while without ending the stream's DAG run; the file
`<var_dir>/instances/<application_id>.hold.json` tells whoever would relaunch them to wait until it is gone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.errors import TaskLocked
from tidemark.files import replace_file


@dataclass(frozen=True)
class Hold:
    """Who holds the application and why. `instances` ran when it was taken, and are wanted back afterwards."""

    by: str
    reason: str
    since_ms: int
    instances: tuple[int, ...] = ()


def hold_path(var_dir: Path, application_id: str) -> Path:
    """Where the hold of an application lies."""
    return var_dir / "instances" / f"{application_id}.hold.json"


def read_hold(var_dir: Path, application_id: str) -> Hold | None:
    """The hold that is there; None where there is none. Raises `OSError`."""
    try:
        body = json.loads(hold_path(var_dir, application_id).read_text())
        return Hold(str(body["by"]), str(body["reason"]), int(body["since_ms"]), tuple(map(int, body["instances"])))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # Somebody meant to hold; a person has to look.
        return Hold("unknown", "the hold cannot be read", 0)


def take_hold(var_dir: Path, application_id: str, hold: Hold) -> Hold:
    """Hold the application; gives the hold that lies there afterwards.

    Taken again by the same one, it keeps the instances that it knew. Raises `TaskLocked` naming another holder.
    """
    there = read_hold(var_dir, application_id)
    if there is not None and there.by != hold.by:
        raise TaskLocked(
            f"{application_id} is held by {there.by} ({there.reason}): wait until that has ended; where nothing works on it "
            f"any more, remove {hold_path(var_dir, application_id)}"
        )
    if there is not None:
        instances = tuple(sorted({*there.instances, *hold.instances}))
        hold = Hold(there.by, there.reason, there.since_ms, instances)
    path = hold_path(var_dir, application_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(asdict(hold), indent=1), synced=True)
    return hold


def release_hold(var_dir: Path, application_id: str, by: str) -> bool:
    """Take one's own hold away; False where there was none, or where it is another's."""
    there = read_hold(var_dir, application_id)
    if there is None or there.by != by:
        return False
    hold_path(var_dir, application_id).unlink(missing_ok=True)
    return True
