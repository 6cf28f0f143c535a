"""The examples at the end of each command's help, parsed by the command line itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup

from tidemark.cli import main
from tidemark.topology_loader import names


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that can be called, by what is typed for it."""
    if isinstance(command, TyperGroup):
        for name, verb in command.commands.items():
            yield from commands(f"{path} {name}", verb)
    else:
        yield path, command


EVERY = [
    found
    for section in main.COMMANDS.values()
    for name in section
    for found in commands(f"tidemark {name}", main.load(name))
]
EXAMPLES = [
    (path, line.strip())
    for path, command in EVERY
    for line in (command.epilog or "").removeprefix("Examples:\n").splitlines()
]


def test_every_command_should_have_an_example() -> None:
    assert [path for path, _ in EVERY if path not in dict(EXAMPLES)] == []


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=lambda text: text.removeprefix("tidemark "))
def test_examples_should_be_understood(path: str, example: str) -> None:
    typed, _, _ = example.partition(" | ")
    program, *arguments = shlex.split(typed)
    assert program == "tidemark"
    command = main.typer.main.get_command(main.build())
    context = command.make_context(program, arguments)
    rest = [*context._protected_args, *context.args]
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
        rest = [*getattr(context, "_protected_args", []), *context.args]
    assert context.command_path == path, "an example of another command"
    if "topology" in context.params:
        assert context.params["topology"] in names()


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(Exception, match="valid integer"):
        test_examples_should_be_understood("tidemark rescale plan", "tidemark rescale plan clicks --tasks none")
    with pytest.raises(AssertionError):
        test_examples_should_be_understood(
            "tidemark rescale plan", "tidemark reset plan clicks --to latest --state keep"
        )
