"""A user's alert callback for tests: a line of JSON per alert, in the file that `TEST_ALERTS` names."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidemark.alerts import Alert

NOTE = "tests.support.alert_notes:note"
NOTES_FILE = "TEST_ALERTS"


def note(alert: Alert) -> None:
    """The callback."""
    with Path(os.environ[NOTES_FILE]).open("a") as notes:
        notes.write(json.dumps(asdict(alert)) + "\n")


def noted(path: Path) -> list[dict[str, Any]]:
    """What was told so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
