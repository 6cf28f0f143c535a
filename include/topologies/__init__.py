"""Topology modules; each defines `def topology() -> Topology`.

`TIDEMARK_TOPOLOGY_PATH` names more folders of such modules, separated by `:` as in PATH; they are searched after this one.
"""

from __future__ import annotations

import os

__path__ += [folder for folder in os.environ.get("TIDEMARK_TOPOLOGY_PATH", "").split(os.pathsep) if folder]
