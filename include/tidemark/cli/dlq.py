"""Dead letters: look at them, send them back, delete them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command
from tidemark.names import TopicPartition
from tidemark.operations.dead_letters import replay as replaying
from tidemark.operations.dead_letters.reader import DeadLetterFilter, DeadLetterReader, StoredDeadLetter
from tidemark.operations.times import format_time, parse_time
from tidemark.registry.operator_rights import verify_operator
from tidemark.settings import Settings
from tidemark.topology_loader import load

_SHOWN_BYTES = 4096


def list_letters(topology: str, wanted: DeadLetterFilter, limit: int, *, as_json: bool) -> None:
    """List dead letters, oldest first in each partition."""
    found = list(_letters(topology, Command.LIST_LETTERS).read(wanted, limit))
    if as_json:
        for letter in found:
            print(json.dumps(_format(letter)), flush=True)
        return
    table = Table("letter", "written", "reason", "record", "key", "bytes", "what")
    for letter in found:
        table.add_row(
            f"{letter.place.partition}:{letter.offset}",
            format_time(letter.written_ms),
            letter.reason + (" (replayed)" if letter.is_replayed else ""),
            _coordinates(letter),
            (letter.key or b"").decode(errors="replace")[:40],
            str(len(letter.value or b"")),
            letter.summary.get("tidemark.error", letter.summary.get("tidemark.sink", ""))[:80],
        )
    Console(highlight=False, markup=False).print(table)
    if len(found) == limit:
        typer.echo(f"only the first {limit} are shown; raise --limit for more", err=True)


def show(topology: str, letter: str) -> None:
    """Show one dead letter, given as `PARTITION:OFFSET`, with all its headers and contents."""
    partition, _, offset = letter.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter("write PARTITION:OFFSET, such as 0:17")
    found = _letters(topology, Command.LIST_LETTERS).one(int(partition), int(offset))
    if found is None:
        typer.echo(
            f"there is no dead letter {letter}; `tidemark dlq list {topology}` lists the existing ones", err=True
        )
        raise typer.Exit(1)
    for name, text in found.summary.items():
        print(f"{name}: {text}")
    for header, content in found.headers:
        print(f"header {header}: {_text(content)}")
    print(f"written: {format_time(found.written_ms)}{', replayed' if found.is_replayed else ''}")
    print(f"key: {_text(found.key)}")
    print(f"value: {_text(found.value)}")


def replay(topology: str, wanted: DeadLetterFilter, limit: int | None) -> None:
    """Send dead letters back to where they came from, each once."""
    settings = Settings.load()
    work = replaying.DeadLetterReplay(_letters(topology, Command.REPLAY_LETTERS), settings, probe_from_environment())
    done = work.run(wanted, limit, lambda so_far: typer.echo(f"{so_far.sent} replayed", err=True))
    print(f"{done.sent} dead letters replayed")
    for why, count in sorted(done.left.items()):
        print(f"{count} not replayed: {why}")


def purge(topology: str, until: str, partition: int | None, *, yes: bool) -> None:
    """Ask, then delete all dead letters that were written before a time. Ends with 1 if the answer is no."""
    letters, until_ms = _letters(topology, Command.PURGE_LETTERS), _time(until, "--until")
    if not (
        yes
        or typer.confirm(f"delete all dead letters of {letters.application_id} before {format_time(until_ms or 0)}?")
    ):
        raise typer.Exit(1)
    done = replaying.purge(letters, until_ms or 0, partition)
    for place, offsets in done.items():
        print(f"{place}: {offsets} offsets deleted")
    if not done:
        print("there was nothing to delete")


def _letters(topology: str, command: Command) -> DeadLetterReader:
    plan, settings = load(topology).plan(), Settings.load()
    verify_operator(command, plan, settings, AdminClient(librdkafka_config(settings)))
    return DeadLetterReader(plan.application_id, settings)


def letter_filter(
    reason: str | None, topic: str | None, partition: int | None, since: str | None, until: str | None
) -> DeadLetterFilter:
    """Return the filter of these options. Raises a usage error for a time that cannot be read."""
    return DeadLetterFilter(reason, topic, partition, _time(since, "--since"), _time(until, "--until"))


def _time(text: str | None, option: str) -> int | None:
    try:
        return None if text is None else parse_time(text, wall_clock_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _coordinates(letter: StoredDeadLetter) -> str:
    source: TopicPartition | None = letter.source
    return "" if source is None else f"{source} {'' if letter.source_offset is None else letter.source_offset}".rstrip()


def _format(letter: StoredDeadLetter) -> dict[str, object]:
    return {
        "letter": f"{letter.place.partition}:{letter.offset}",
        "written": datetime.fromtimestamp(letter.written_ms / 1000, UTC).isoformat(),
        "replayed": letter.is_replayed,
        "key": _text(letter.key),
        "value_bytes": len(letter.value or b""),
        **{name.removeprefix("tidemark."): text for name, text in letter.summary.items()},
    }


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    shown = content[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return shown if len(content) <= _SHOWN_BYTES else f"{shown}… ({len(content)} bytes)"
