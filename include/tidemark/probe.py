"""Points that a crash test may want to stop at; nothing in production."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

Probe = Callable[[str], None]
"""Called with the name of each point that is passed."""


def probe_from_environment() -> Probe:
    """What `TIDEMARK_PROBE=module:function` names; does nothing where it is not set."""
    path = os.environ.get("TIDEMARK_PROBE")
    if not path:
        return lambda _point: None
    module, _, name = path.partition(":")
    probe: Probe = getattr(importlib.import_module(module), name)
    return probe
