"""Checks of an application: retention, compaction, durability, lag, skew.

Each ends with 1 if something failed, with 10 if the worst verdict is that evidence is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

app = typer.Typer(no_args_is_help=True)
_History = Annotated[bool, typer.Option("--history", help="past verdicts instead of a new one, the newest first")]


@app.command(epilog=examples("tidemark check retention clicks", "tidemark check retention clicks --history"))
def retention(topology: TopologyName, as_json: AsJson = False, history: _History = False) -> None:
    """Check whether state is kept as long as its windows need, on disk and in the changelogs, and no longer."""
    from tidemark.cli import check
    from tidemark.cli.output import Output

    check.retention(topology, Output(as_json=as_json), history=history)


@app.command(epilog=examples("tidemark check compaction clicks --scan 50000"))
def compaction(
    topology: TopologyName,
    as_json: AsJson = False,
    history: _History = False,
    scanned_offsets: Annotated[
        int | None,
        typer.Option("--scan", min=1, help="newest offsets of each partition to read; default: 200000"),
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option("--log-dir", help="a broker's log folder here, for the cleaner's exact position")
    ] = None,
) -> None:
    """Check whether changelogs are compacted, so that a restore reads little; name the setting that delays compaction."""
    from tidemark.cli import check
    from tidemark.cli.output import Output

    check.compaction(topology, scanned_offsets, log_dir, Output(as_json=as_json), history=history)


@app.command(epilog=examples("tidemark check durability clicks"))
def durability(topology: TopologyName, as_json: AsJson = False, history: _History = False) -> None:
    """Show what is lost, or cannot be used, if one broker or all brokers fail."""
    from tidemark.cli import check
    from tidemark.cli.output import Output

    check.durability(topology, Output(as_json=as_json), history=history)


@app.command(epilog=examples("tidemark check lag clicks", "tidemark check lag clicks --json | jq .verdict"))
def lag(topology: TopologyName, as_json: AsJson = False, history: _History = False) -> None:
    """Check whether the application catches up with its sources, and whether an open transaction holds readers back.

    Each run stores a sample; progress is judged over the samples of the last half hour.
    """
    from tidemark.cli import check
    from tidemark.cli.output import Output

    check.lag(topology, Output(as_json=as_json), history=history)


@app.command(
    epilog=examples(
        "tidemark check skew clicks",
        "tidemark check skew clicks --json | jq '.findings[].evidence.frequent_keys // empty'",
    )
)
def skew(
    topology: TopologyName,
    as_json: AsJson = False,
    history: _History = False,
    read_records: Annotated[
        int | None,
        typer.Option("--scan", min=1, help="newest records of each partition to read; default: 20000"),
    ] = None,
) -> None:
    """Show how records spread over partitions and keys over tasks, and name the keys that take most of a topic.

    Reads the newest records of every source and repartition topic, and the stores on this machine. Instances may run.
    """
    from tidemark.cli import check
    from tidemark.cli.output import Output

    check.skew(topology, read_records, Output(as_json=as_json), history=history)
