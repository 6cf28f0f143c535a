"""Change from the version that ran to that of the module, and keep the state that can be kept."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples

app = typer.Typer(no_args_is_help=True)
_Rename = Annotated[list[str] | None, typer.Option("--rename", help="OLD=NEW: a store has a new name")]
_Drop = Annotated[list[str] | None, typer.Option("--drop", help="STORE or STORE.FIELD of the old version to drop")]
_Add = Annotated[list[str] | None, typer.Option("--add", help="STORE.FIELD or STORE.FIELD=JSON: a new field")]


@app.command(epilog=examples("tidemark upgrade plan clicks --rename page-clicks=clicks-per-page"))
def plan(
    topology: TopologyName,
    rename: _Rename = None,
    drop: _Drop = None,
    add: _Add = None,
    as_json: AsJson = False,
) -> None:
    """Show what happens to each store; changes nothing, the application may run.

    Ends with 30 if the upgrade is refused.
    """
    from tidemark.cli import upgrade
    from tidemark.cli.output import Output

    upgrade.plan(topology, upgrade.Declared(rename or [], drop or [], add or []), Output(as_json=as_json))


@app.command(epilog=examples("tidemark upgrade run clicks --drop user-sessions --yes"))
def run(
    topology: TopologyName,
    rename: _Rename = None,
    drop: _Drop = None,
    add: _Add = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the plan, ask, then change state, offsets and commit records in one step; all instances must be stopped.

    Ends with 30 if the upgrade is refused.
    """
    from tidemark.cli import upgrade
    from tidemark.cli.output import Output

    upgrade.run(topology, upgrade.Declared(rename or [], drop or [], add or []), Output(as_json=as_json, yes=yes))
