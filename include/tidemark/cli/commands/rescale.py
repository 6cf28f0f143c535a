"""Change the number of tasks, and move the state of each key to the task of its records."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples

app = typer.Typer(no_args_is_help=True)
_Tasks = Annotated[int, typer.Option("--tasks", min=1, help="new number of tasks of each sub-topology")]


@app.command(epilog=examples("tidemark rescale plan clicks --tasks 8"))
def plan(topology: TopologyName, tasks: _Tasks, as_json: AsJson = False) -> None:
    """Show what a change of the number of tasks moves; changes nothing, the application may run."""
    from tidemark.cli import rescale
    from tidemark.cli.output import Output

    rescale.plan(topology, tasks, Output(as_json=as_json))


@app.command(epilog=examples("tidemark rescale run clicks --tasks 8 --yes"))
def run(topology: TopologyName, tasks: _Tasks, yes: Yes = False, as_json: AsJson = False) -> None:
    """Show the plan, ask, then move state, offsets and commit records in one step; all instances must be stopped."""
    from tidemark.cli import rescale
    from tidemark.cli.output import Output

    rescale.run(topology, tasks, Output(as_json=as_json, yes=yes))
