"""Points in the code at which a crash test may stop the process; they do nothing in production."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

Probe = Callable[[str], None]
"""A function that is called with the name of each point that the process reaches."""


def probe_from_environment() -> Probe:
    """Return the function that `TIDEMARK_PROBE=module:function` names, or one that does nothing if it is not set."""
    path = os.environ.get("TIDEMARK_PROBE")
    if not path:
        return lambda _point: None
    module, _, name = path.partition(":")
    probe: Probe = getattr(importlib.import_module(module), name)
    return probe
