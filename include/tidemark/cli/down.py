"""Stop the stack."""

from __future__ import annotations

from tidemark.cli.output import Output
from tidemark.devstack import stack
from tidemark.settings import Settings


def stop_stack(output: Output) -> None:
    """Stop the stack, and report what is being stopped meanwhile. Blocks."""
    ended = stack.down(Settings.load(), report=output.message)
    output.show({"ended_processes": ended}, f"stopped {ended} processes" if ended else "nothing was running")
