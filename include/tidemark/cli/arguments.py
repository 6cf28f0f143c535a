"""Arguments and options that several commands have, and the examples at the end of their help."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated

import typer


def _topology_names(incomplete: str) -> list[str]:
    from tidemark.topology_loader import names

    return [name for name in names() if name.startswith(incomplete)]


TopologyName = Annotated[str, typer.Argument(help="module in include/topologies", autocompletion=_topology_names)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for a program")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
DEMO = "patient_monitoring"
"""The topology of a command that is called without a name."""


def command_to_run(noun: str, topology: str, *options: str) -> str:
    """Return, in backticks, the command that carries out what a `plan` shows; `options` are those that `plan` was given."""
    return f"`{shlex.join(['tidemark', noun, 'run', topology, *options])}`"


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Return an option once for each value, as it is typed."""
    return [word for value in values for word in (option, value)]


def examples(*lines: str) -> str:
    """Return the end of a command's help: lines that can be typed as they are."""
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)])
