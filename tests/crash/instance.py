"""`spark_jobs/stream_instance.py` as it is, with the topologies of this folder beside the project's own."""

from __future__ import annotations

import runpy
from pathlib import Path

import topologies

if __name__ == "__main__":
    here = Path(__file__).resolve()
    topologies.__path__.append(str(here.parent / "topologies"))
    runpy.run_path(str(here.parents[2] / "spark_jobs" / "stream_instance.py"), run_name="__main__")
