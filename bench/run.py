"""Compares Tidemark with Kafka Streams on the same input: `python bench/run.py --cases hot,wide`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # So that it runs by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]
    import typer

    from bench.command import main
    from bench.program import run_program

    run_program("bench", lambda: typer.run(main))
