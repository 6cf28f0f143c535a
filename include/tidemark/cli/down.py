"""Stop the stack."""

from __future__ import annotations

from rich.console import Console

from tidemark.devstack import stack
from tidemark.settings import Settings


def down() -> None:
    """Stop everything that `tidemark up` started, and all processes that these started. Data stays in `var/`."""
    console = Console()
    ended = stack.down(Settings.load(), report=console.print)
    console.print(f"stopped {ended} processes" if ended else "nothing was running")
