"""Start the stack."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark up", "tidemark up --no-airflow")


def up(
    airflow: Annotated[bool, typer.Option(help="start Airflow too, not only the broker")] = True,
    as_json: AsJson = False,
) -> None:
    """Start a broker and Airflow on this machine, or start again those of their parts that died; running parts are kept."""
    from tidemark.cli.output import Output
    from tidemark.cli.up import start_stack

    start_stack(Output(as_json=as_json), with_airflow=airflow)
