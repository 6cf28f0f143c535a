"""The three examples, live."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import examples

EPILOG = examples("tidemark demo", "tidemark demo --patients 100 --seconds 60", "tidemark demo --whole | tee demo.log")


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="end after this time; a terminal's default: until Ctrl-C")
    ] = None,
    patients: Annotated[int, typer.Option(min=1, help="number of patients; a running replay is not changed")] = 500,
    whole: Annotated[
        bool, typer.Option("--whole", help="without a terminal: end when every step has run, not at the first counts")
    ] = False,
) -> None:
    """Run the three examples on real heartbeats and made-up purchases and clicks, launched and watched by Airflow.

    Starts what does not run yet and keeps what runs: the streams one after another, then savepoint, checks, one restore
    drill and one audit. A terminal shows one screen; without one, ends with 0 when counts were written.
    """
    from tidemark.cli.demo import show_demo

    show_demo(seconds, patients, whole=whole)
