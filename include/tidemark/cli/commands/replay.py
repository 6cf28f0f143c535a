"""Replay recorded heartbeats into a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark replay --patients 100", "tidemark replay --events 1000000 --rate 20000")


def replay(
    patients: Annotated[int | None, typer.Option(help="number of patients; default: 500, or what --rate needs")] = None,
    rate: Annotated[float | None, typer.Option(help="events per second; default: the speed of the recordings")] = None,
    events: Annotated[
        int | None, typer.Option(help="stop after this many events; default: replay until stopped")
    ] = None,
    start_ms: Annotated[int | None, typer.Option(help="event time of the first beat, epoch milliseconds")] = None,
    late: Annotated[float, typer.Option(help="share of beats that arrive after their window's grace")] = 0.0,
    out_of_order: Annotated[float, typer.Option(help="share of beats that arrive up to 4 s out of order")] = 0.0,
    bad: Annotated[float, typer.Option(help="share of records that cannot be processed")] = 0.0,
    seed: Annotated[int, typer.Option(help="the same seed makes the same patients and the same disorder")] = 0,
    topic: Annotated[str, typer.Option(help="topic to write to")] = "pulse-events",
    as_json: AsJson = False,
) -> None:
    """Replay recorded heartbeats: each patient is a recording, looped and shifted; see `docs/heartbeats.md`.

    Without --events, replays in real time until it is stopped. With --events, replays as fast as the broker, or --rate,
    allows, and begins far enough in the past that no beat is ahead of the clock.
    """
    from demo.heartbeats.disorder import Disorder
    from demo.heartbeats.replay import ReplayOptions
    from tidemark.cli.output import Output
    from tidemark.cli.replay import write_heartbeats

    disorder = Disorder(seed, late, out_of_order, bad)
    write_heartbeats(ReplayOptions(topic, patients, rate, events, start_ms, disorder), Output(as_json=as_json))
