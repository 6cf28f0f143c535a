"""Start the stack."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from tidemark.devstack import stack
from tidemark.settings import Settings


def up(
    airflow: Annotated[bool, typer.Option(help="start Airflow too, not only the broker")] = True,
) -> None:
    """Start a broker and Airflow on this machine, or start again those of their parts that died; running parts are kept."""
    done = stack.up(Settings.load(), with_airflow=airflow)
    console = Console()
    console.print(f"started {', '.join(done.started)}" if done.started else "everything was already running")
    console.print(f"broker   {done.record.settings['bootstrap_servers']}")
    if airflow and done.record.airflow:
        console.print(f"Airflow  {done.record.airflow.url}  user {done.record.airflow.username}, password in")
        console.print(f"         {done.record.airflow.password_file}", soft_wrap=True)
