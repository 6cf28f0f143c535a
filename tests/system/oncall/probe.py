"""The failpoint in the steps of a restore or a change, for the point that the arm file names.

The worker dies, the step is refused, or another version of the topology is deployed. The file is
`{point: "kill" | "refuse" | "deploy VERSION"}`. A point is taken out before it is acted on, so that the next try passes.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.system.oncall.versions import deploy

from tidemark.errors import StartRefused

ARM_FILE = "TEST_ONCALL_ARM"
DEPLOYED = "TEST_ONCALL_DEPLOYED"
"""The folder that `deploy` writes to."""


def act(point: str) -> None:
    """The `Probe`."""
    path = Path(os.environ.get(ARM_FILE, "/nonexistent"))
    try:
        armed = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return
    how = armed.pop(point, None)
    if how is None:
        return
    arm(path, armed)
    if how == "refuse":
        raise StartRefused(f"the test refuses {point}")
    if how.startswith("deploy "):
        deploy(Path(os.environ[DEPLOYED]), how.removeprefix("deploy "))
        return
    # The task's process and the worker's that supervises it, so that nobody reports the death.
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(path: Path, points: dict[str, str]) -> None:
    """Write the arm file in one piece."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(points))
    temporary.replace(path)
