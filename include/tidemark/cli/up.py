"""Start the stack."""

from __future__ import annotations

from tidemark.cli.output import Output, Verbatim
from tidemark.devstack import stack
from tidemark.settings import Settings


def start_stack(output: Output, *, with_airflow: bool) -> None:
    """Start what does not run, and show the addresses. Blocks."""
    done = stack.up(Settings.load(), with_airflow=with_airflow)
    broker = done.record.settings["bootstrap_servers"]
    airflow = done.record.airflow if with_airflow else None
    views = [
        f"started {', '.join(done.started)}" if done.started else "everything was already running",
        f"broker   {broker}",
    ]
    if airflow is not None:
        views += [
            Verbatim(f"Airflow  {airflow.url}  user {airflow.username}, password in"),
            Verbatim(f"         {airflow.password_file}"),
        ]
    output.show({"started": done.started, "bootstrap_servers": broker, "airflow": airflow}, *views)
