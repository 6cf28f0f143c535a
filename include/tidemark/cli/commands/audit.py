"""Check that every record was processed exactly once and that the results are right."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=examples("tidemark audit run clicks", "tidemark audit run clicks --whole --json"))
def run(
    topology: TopologyName,
    batches: Annotated[
        int | None, typer.Option(min=1, help="most batches of each task; default: audit_batches")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="all that the commits topic holds, not only the new batches")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the batches since the last audit with an independent recomputation.

    Ends with 1 if something is wrong, with 10 if the worst verdict is that evidence is missing.

    Instances may run. A Spark job on one core reads sources, sinks, changelogs and dead letters of the new batches.
    """
    from tidemark.cli import audit
    from tidemark.cli.output import Output

    audit.run(topology, batches, Output(as_json=as_json), whole=whole)
