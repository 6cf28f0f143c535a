"""Rebuild the state of a stopped application from the best source of state, and verify it before it is swapped in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples
from tidemark.recovery.source_of_state import SourceOfState

app = typer.Typer(no_args_is_help=True)
_From = Annotated[
    SourceOfState | None, typer.Option("--from", help="only this source of state; default: the fastest usable one")
]
_Tasks = Annotated[list[str] | None, typer.Option("--task", help="only this task, such as 0_1; can be repeated")]
_Stores = Annotated[
    list[str] | None,
    typer.Option("--store", help="only this store, in the tasks that are restored; can be repeated"),
]
_Id = Annotated[str | None, typer.Argument(help="id of a restore; default: the newest")]
_SwappedId = Annotated[
    str | None, typer.Argument(help="id of a restore; default: the newest that has replaced folders")
]


@app.command(epilog=examples("tidemark restore plan clicks", "tidemark restore plan clicks --task 0_1 --out plan.json"))
def plan(
    topology: TopologyName,
    source: _From = None,
    task: _Tasks = None,
    store: _Stores = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="also write it to this file, for `restore run --plan`")] = None,
) -> None:
    """Show what would be rebuilt from where, how long it takes and what it replaces; changes nothing, the stream may run."""
    from tidemark.cli import restore
    from tidemark.cli.output import Output

    restore.plan(topology, restore.Asked(source, task or [], store or []), out, Output(as_json=as_json))


@app.command(
    epilog=examples(
        "tidemark restore run clicks",
        "tidemark restore run clicks --plan plan.json --yes",
        "tidemark restore run clicks --from savepoint --store page-clicks",
    )
)
def run(
    topology: TopologyName,
    source: _From = None,
    task: _Tasks = None,
    store: _Stores = None,
    plan_file: Annotated[Path | None, typer.Option("--plan", help="a plan that `restore plan --out` wrote")] = None,
    resume: Annotated[str | None, typer.Option(help="continue the restore with this id")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the plan, ask, then build beside the old state, verify every key against the changelog, and swap.

    Ends with 10 if the new state is in place but the changelog could not show for all of it that it is right.
    """
    from tidemark.cli import restore
    from tidemark.cli.output import Output

    if resume and plan_file:
        raise typer.BadParameter(
            "the restore that is continued has a plan of its own: omit --plan", param_hint="--resume"
        )
    if (source or task or store) and (plan_file or resume):
        raise typer.BadParameter(
            "an existing plan already states what it restores, and from what: omit --from, --task and --store, or make "
            "another plan",
            param_hint="--resume" if resume else "--plan",
        )
    asked = restore.Asked(source, task or [], store or [])
    restore.run(topology, asked, plan_file, resume, Output(as_json=as_json, yes=yes))


@app.command(epilog=examples("tidemark restore status clicks"))
def status(topology: TopologyName, as_json: AsJson = False) -> None:
    """Show all restores of the application, the newest first."""
    from tidemark.cli import restore
    from tidemark.cli.output import Output

    restore.status(topology, Output(as_json=as_json))


@app.command(epilog=examples("tidemark restore abort clicks"))
def abort(topology: TopologyName, restore_id: _Id = None, as_json: AsJson = False) -> None:
    """End a restore that runs or was interrupted; what it built is deleted, the old state stays in place."""
    from tidemark.cli import restore
    from tidemark.cli.output import Output

    restore.abort(topology, restore_id, Output(as_json=as_json))


@app.command(epilog=examples("tidemark restore rollback clicks"))
def rollback(topology: TopologyName, restore_id: _SwappedId = None, as_json: AsJson = False) -> None:
    """Bring back the state folders that a restore has replaced."""
    from tidemark.cli import restore
    from tidemark.cli.output import Output

    restore.rollback(topology, restore_id, Output(as_json=as_json))
