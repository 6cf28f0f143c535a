"""Stop the stack."""

from __future__ import annotations

from rich.console import Console

from tidemark.devstack import stack
from tidemark.settings import Settings


def stop_stack() -> None:
    """Stop the stack, and print what is stopped meanwhile. Blocks."""
    console = Console()
    ended = stack.down(Settings.load(), report=console.print)
    console.print(f"stopped {ended} processes" if ended else "nothing was running")
