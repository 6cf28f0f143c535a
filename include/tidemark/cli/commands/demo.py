"""The patient monitoring example, live."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import examples

EPILOG = examples("tidemark demo", "tidemark demo --patients 100 --seconds 60")


def demo(
    seconds: Annotated[
        float | None, typer.Option(help="end after this time; a terminal's default: until Ctrl-C")
    ] = None,
    patients: Annotated[int, typer.Option(help="number of patients; a running replay is not changed")] = 500,
) -> None:
    """Replay real heartbeats and count them per patient and minute, exactly once, launched and watched by Airflow.

    Starts what does not run yet and keeps what runs. Without a terminal, ends with 0 when counts were written.
    """
    from tidemark.cli.demo import show_demo

    show_demo(seconds, patients)
