"""`<var_dir>/instances/<app>-<instance>.outage`: written by an instance that ended because its brokers were away.

Its supervisor then waits for the brokers, and does not count this as a restart. The next launch removes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.atomic_file import replace_file

OUTAGE_SUFFIX = ".outage"


@dataclass(frozen=True)
class RecordedOutage:
    """Since when (epoch milliseconds) an instance waits for its brokers, and why. `topics` are those it needs."""

    since_ms: int
    why: str
    topics: tuple[str, ...]


def outage_path(var_dir: Path, application_id: str, instance: int) -> Path:
    """Return the path of an instance's outage file."""
    return var_dir / "instances" / f"{application_id}-{instance}{OUTAGE_SUFFIX}"


def read_outage(path: Path) -> RecordedOutage | None:
    """Return the content, or None if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(content, Mapping):
        return None
    try:
        return RecordedOutage(int(content["since_ms"]), str(content["why"]), tuple(map(str, content["topics"])))
    except (KeyError, TypeError, ValueError):
        return None


def recorded_outages(var_dir: Path) -> dict[str, RecordedOutage]:
    """Return all recorded outages, by `<app>-<instance>`."""
    found = {path.stem: read_outage(path) for path in sorted((var_dir / "instances").glob(f"*{OUTAGE_SUFFIX}"))}
    return {name: outage for name, outage in found.items() if outage is not None}


def write_outage(path: Path, outage: RecordedOutage) -> None:
    """Replace the file. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(asdict(outage)), synced=False)
