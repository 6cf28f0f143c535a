"""Dead letters: look at them, send them back, delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, Yes, examples

app = typer.Typer(no_args_is_help=True)

_Reason = Annotated[str | None, typer.Option("--reason", help="only with this reason, as `list` shows it")]
_Topic = Annotated[str | None, typer.Option("--topic", help="only of records of this source topic")]
_Partition = Annotated[
    int | None, typer.Option("--partition", min=0, help="only of records of this partition of the source")
]
_Since = Annotated[
    str | None, typer.Option("--since", help="written at or after this time: 2026-08-01T12:00:00Z, epoch ms, -10m")
]
_Until = Annotated[str | None, typer.Option("--until", help="written before this time")]


@app.command(
    "list",
    epilog=examples(
        "tidemark dlq list patient_monitoring --since -1h",
        "tidemark dlq list patient_monitoring --reason unparsable --json",
    ),
)
def list_(
    topology: TopologyName,
    reason: _Reason = None,
    topic: _Topic = None,
    partition: _Partition = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="at most this many")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first in each partition."""
    from tidemark.cli import dlq
    from tidemark.cli.output import Output

    dlq.list_letters(
        topology, dlq.letter_filter(reason, topic, partition, since, until), limit, Output(as_json=as_json)
    )


@app.command(epilog=examples("tidemark dlq show patient_monitoring 0:17"))
def show(
    topology: TopologyName,
    letter: Annotated[str, typer.Argument(help="PARTITION:OFFSET, as `list` shows it")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with all its headers and contents."""
    from tidemark.cli import dlq
    from tidemark.cli.output import Output

    dlq.show(topology, letter, Output(as_json=as_json))


@app.command(epilog=examples("tidemark dlq replay patient_monitoring --reason unparsable --limit 100"))
def replay(
    topology: TopologyName,
    reason: _Reason = None,
    topic: _Topic = None,
    partition: _Partition = None,
    since: _Since = None,
    until: _Until = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="at most this many")] = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to where they came from, each once, except those replayed before. The application may run."""
    from tidemark.cli import dlq
    from tidemark.cli.output import Output

    dlq.replay(topology, dlq.letter_filter(reason, topic, partition, since, until), limit, Output(as_json=as_json))


@app.command(epilog=examples("tidemark dlq purge patient_monitoring --until -7d"))
def purge(
    topology: TopologyName,
    until: Annotated[
        str, typer.Option("--until", help="written before this time: 2026-08-01T12:00:00Z, epoch ms, -1d")
    ],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="only of this partition of the dead letters' topic")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete all dead letters that were written before a time, whatever their reason: Kafka deletes only from the beginning."""
    from tidemark.cli import dlq
    from tidemark.cli.output import Output

    dlq.purge(topology, until, partition, Output(as_json=as_json, yes=yes))
