"""The output of long `make` runs that end with an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


@contextmanager
def ends_of_logs(console: Console, folder: Path, pattern: str = "*.log", lines: int = 15) -> Iterator[None]:
    """Prints the last lines of every log in `folder` when the block fails, as the folder does not outlive it."""
    try:
        yield
    except BaseException:
        for log in sorted(folder.glob(pattern)):
            console.print(f"--- the end of {log.name}")
            summary = log.read_text(errors="replace").splitlines()[-lines:]
            console.print("\n".join(summary), markup=False, soft_wrap=True)
        raise
