"""Start the stack."""

from __future__ import annotations

from rich.console import Console

from tidemark.devstack import stack
from tidemark.settings import Settings


def start_stack(*, with_airflow: bool) -> None:
    """Start what does not run, and print the addresses. Blocks."""
    done = stack.up(Settings.load(), with_airflow=with_airflow)
    console = Console()
    console.print(f"started {', '.join(done.started)}" if done.started else "everything was already running")
    console.print(f"broker   {done.record.settings['bootstrap_servers']}")
    if with_airflow and done.record.airflow:
        console.print(f"Airflow  {done.record.airflow.url}  user {done.record.airflow.username}, password in")
        console.print(f"         {done.record.airflow.password_file}", soft_wrap=True)
