"""Dead letters: look at them, send them back, delete them."""

from __future__ import annotations

import typer
from confluent_kafka.admin import AdminClient

from tidemark.cli.output import Output
from tidemark.clock import wall_clock_ms
from tidemark.failpoint import probe_from_environment
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command
from tidemark.listing import Listing
from tidemark.operations.dead_letters import replay as replaying
from tidemark.operations.dead_letters.reader import DeadLetterFilter, DeadLetterReader, StoredDeadLetter
from tidemark.operations.times import format_time, parse_time
from tidemark.registry.operator_rights import verify_operator
from tidemark.settings import Settings
from tidemark.store_rows import printable, printable_line
from tidemark.topology_loader import load

_SHOWN_BYTES = 4096


def list_letters(topology: str, wanted: DeadLetterFilter, limit: int, output: Output) -> None:
    """List dead letters, oldest first in each partition."""
    found = list(_letters(topology, Command.LIST_LETTERS).read(wanted, limit))
    listing = Listing("letter", "written", "reason", "record", "key", "bytes", "what", right=("bytes",))
    for letter in found:
        listing.add(
            f"{letter.place.partition}:{letter.offset}",
            format_time(letter.written_ms),
            printable_line(letter.reason) + (" (replayed)" if letter.is_replayed else ""),
            _coordinates(letter),
            printable(letter.key or b"", 40),
            str(len(letter.value or b"")),
            printable_line(letter.summary.get("tidemark.error", letter.summary.get("tidemark.sink", "")), 80),
        )
    output.show([_form(letter) for letter in found], listing)
    if len(found) == limit:
        output.note(f"only the first {limit} are shown; raise --limit for more")


def show(topology: str, letter: str, output: Output) -> None:
    """Show one dead letter, given as `PARTITION:OFFSET`, with all its headers and contents. Ends with 1 if there is none."""
    partition, _, offset = letter.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter("write PARTITION:OFFSET, such as 0:17")
    found = _letters(topology, Command.LIST_LETTERS).one(int(partition), int(offset))
    if found is None:
        output.note(f"there is no dead letter {letter}; `tidemark dlq list {topology}` lists the existing ones")
        raise typer.Exit(1)
    headers = [[name, _text(content)] for name, content in found.headers]
    output.show(
        {**_form(found), "headers": headers, "value": _text(found.value)},
        *(f"{printable_line(name)}: {_lines(text)}" for name, text in found.summary.items()),
        *(f"header {printable_line(name)}: {_shown(content)}" for name, content in found.headers),
        f"written: {format_time(found.written_ms)}{', replayed' if found.is_replayed else ''}",
        f"key: {_shown(found.key)}",
        f"value: {_shown(found.value)}",
    )


def replay(topology: str, wanted: DeadLetterFilter, limit: int | None, output: Output) -> None:
    """Send dead letters back to where they came from, each once."""
    settings = Settings.load()
    plan, letters = load(topology).plan(), _letters(topology, Command.REPLAY_LETTERS)
    work = replaying.DeadLetterReplay(plan, letters, settings, probe_from_environment())
    done = work.run(wanted, limit, lambda so_far: output.note(f"{so_far.sent} replayed"))
    output.show(
        {"replayed": done.sent, "not_replayed": done.left},
        f"{done.sent} dead letters replayed",
        *(f"{count} not replayed: {why}" for why, count in sorted(done.left.items())),
    )


def purge(topology: str, until: str, partition: int | None, output: Output) -> None:
    """Ask, then delete all dead letters that were written before a time. Ends with 1 if the answer is no."""
    letters, until_ms = _letters(topology, Command.PURGE_LETTERS), _time(until, "--until")
    if not output.confirm(f"delete all dead letters of {letters.application_id} before {format_time(until_ms or 0)}?"):
        raise typer.Exit(1)
    done = replaying.purge(letters, until_ms or 0, partition)
    output.show(
        {"deleted_offsets": done},
        *(f"{place}: {offsets} offsets deleted" for place, offsets in done.items()),
        *([] if done else ["there was nothing to delete"]),
    )


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
    source = letter.source
    return (
        ""
        if source is None
        else f"{printable_line(str(source))} {'' if letter.source_offset is None else letter.source_offset}".rstrip()
    )


def _form(letter: StoredDeadLetter) -> dict[str, object]:
    return {
        "letter": f"{letter.place.partition}:{letter.offset}",
        "written_ms": letter.written_ms,
        "reason": letter.reason,
        "is_replayed": letter.is_replayed,
        "source": letter.source,
        "source_offset": letter.source_offset,
        "key": _text(letter.key),
        "value_bytes": len(letter.value or b""),
        "details": {name.removeprefix("tidemark."): text for name, text in letter.summary.items()},
    }


def _lines(text: str) -> str:
    """Return text, such as a traceback, with its line breaks."""
    return "\n".join(map(printable_line, text.split("\n")))


def _shown(content: bytes | None) -> str:
    """Return bytes as text that cannot control a terminal."""
    if content is None:
        return "—"
    size = f" ({len(content)} bytes)" if len(content) > _SHOWN_BYTES else ""
    return f"{printable(content, _SHOWN_BYTES)}{size}"


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    shown = content[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return shown if len(content) <= _SHOWN_BYTES else f"{shown}… ({len(content)} bytes)"
