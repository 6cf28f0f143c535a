"""Entry point of `tidemark`: the list of all commands, and the import of the one that is called.

`tidemark.cli.commands` has a module for each command, with its declaration. The modules beside this one do the work.
"""

from __future__ import annotations

import importlib
import io
import logging
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidemark.atomic_file import as_file_error, keep_files_private
from tidemark.errors import TidemarkError
from tidemark.supervision.instance_log import error_lines

COMMANDS = {
    "This machine": {
        "up": "start a broker and Airflow",
        "down": "stop them",
        "status": "show what runs, waits, is held, and was left over",
        "top": "all applications here, on one screen that updates itself",
        "doctor": "what this machine lacks, and what to do about it",
        "demo": "the three examples, live",
        "replay": "write recorded heartbeats to a topic",
        "jars": "fetch and verify the jars of Kafka and Spark",
        "kafka": "run Kafka's own tools",
    },
    "Topologies": {
        "describe": "sub-topologies, nodes, stores and topics, as text or picture",
        "optimise": "what fewer topics would save",
        "topics": "the topics of an application and their settings",
        "acls": "the ACLs that secured brokers need",
    },
    "Running applications": {
        "lag": "how far it is behind its sources",
        "events": "state transitions, rebalances and restores",
        "state": "query the stores, live",
        "stores": "how large the stores are and how fast they grow",
        "inspect": "the contents of the stores at a time",
        "dlq": "dead letters: list, send back, delete",
        "standby": "keep warm copies of the stores here",
        "savepoint": "copy all stores elsewhere",
    },
    "Is it right?": {
        "check": "verdicts on retention, compaction, durability, lag and skew",
        "audit": "compare results with an independent recomputation",
        "drill": "rebuild the state elsewhere and compare it",
    },
    "Stopped applications": {
        "restore": "rebuild lost state",
        "rewind": "return to the state of an earlier time",
        "upgrade": "change to another version of the topology",
        "rescale": "change the number of tasks",
        "reset": "continue from other offsets",
        "repair": "write a damaged changelog from a correct copy",
        "clean": "remove leftovers from this disk",
    },
}
"""All commands, by section of `tidemark --help`, with the line that describes each."""


class NounGroup(TyperGroup):
    """A noun with its verbs. A wrong verb is an error that names the right ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb's name, its command and the remaining arguments. Raises a usage error if there is no such verb."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. `{ctx.command_path}` has: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


class AllCommands(TyperGroup):
    """All commands by name. Help and completion see a description of each; only the one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for section, commands in COMMANDS.items():
            for name, summary in commands.items():
                self.add_command(TyperCommand(name, help=summary, rich_help_panel=section))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command's name, the command and the remaining arguments. Raises a usage error for an unknown name."""
        name, described, rest = super().resolve_command(ctx, args)
        return name, described if name is None else load(name), rest


def load(name: str) -> Any:
    """Import the module of a command and return the command."""
    module = importlib.import_module(f"tidemark.cli.commands.{name}")
    app = typer.Typer()
    group = getattr(module, "app", None)
    if isinstance(group, typer.Typer):
        app.add_typer(group, name=name, help=module.__doc__, cls=NounGroup)
    else:
        context = getattr(module, "CONTEXT_SETTINGS", {})
        app.command(name, context_settings=context, epilog=module.EPILOG)(getattr(module, name))
    return typer.main.get_group(app).commands[name]


def build() -> typer.Typer:
    """Return the command line. Imports no command."""
    app = typer.Typer(
        name="tidemark",
        cls=AllCommands,
        help="Stateful streams the way Kafka Streams runs them, on Spark, operated from Airflow.",
        epilog="`tidemark COMMAND --help` has examples; docs/commands.md has the exit codes, docs/commands-json.md the forms "
        "of --json.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    return app


def run() -> None:
    """Run the command in `sys.argv`. A `TidemarkError` and an unusable file become one line on stderr and an exit code.

    Records of the error are in a line before it. A character that the output's encoding lacks is shown as an escape.
    """
    keep_files_private()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    try:
        build()(prog_name="tidemark")
    except TidemarkError as error:
        print(error_lines(error, "the output of the command"), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        known = as_file_error(error)
        if known is None:
            raise
        print(f"tidemark: {known}", file=sys.stderr)
        sys.exit(known.exit_code)


if __name__ == "__main__":
    run()
