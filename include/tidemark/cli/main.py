"""Entry point of `tidemark`.

Each module in this folder is a command of the same name: `up.py` has the function `up`, whose docstring is its help. A
module with a `typer.Typer` named `app` is a noun with verbs instead: `upgrade.py` has `plan` and `run`, which are
`tidemark upgrade plan` and `tidemark upgrade run`, and the module's docstring is the help of the noun. `plan` shows what
would happen and changes nothing; `run` does it. Only the module of the command that is called is imported, so that one
command does not wait for the imports of another.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from tidemark.atomic_file import as_full_disk, keep_files_private
from tidemark.errors import TidemarkError

_NOT_COMMANDS = {"main"}


class NounGroup(TyperGroup):
    """A noun with its verbs. A wrong verb is an error that names the right ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb's name, its command and the remaining arguments. Raises a usage error if there is no such verb."""
        if args and args[0] not in self.commands:
            ctx.fail(f"No such command '{args[0]}'. `{ctx.command_path}` has: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


def command_names() -> list[str]:
    """Return all commands, sorted, as they are typed."""
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name.replace("_", "-") for name in found if name not in _NOT_COMMANDS and not name.startswith("_"))


def build(names: list[str]) -> typer.Typer:
    """Return the command line with these commands; imports their modules."""
    app = typer.Typer(
        name="tidemark",
        help="Stateful streams the way Kafka Streams runs them, on Spark, operated from Airflow.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    # Otherwise typer makes a single command the whole program.
    app.callback()(lambda: None)
    for name in names:
        module = importlib.import_module(f"tidemark.cli.{name.replace('-', '_')}")
        group = getattr(module, "app", None)
        if isinstance(group, typer.Typer):
            app.add_typer(group, name=name, help=module.__doc__, cls=NounGroup)
        else:
            context = getattr(module, "CONTEXT_SETTINGS", {})
            app.command(name, context_settings=context)(getattr(module, name.replace("-", "_")))
    return app


def run() -> None:
    """Run the command in `sys.argv`. A `TidemarkError` and a full disk become one line on stderr and an exit code."""
    keep_files_private()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    names = command_names()
    try:
        build([asked] if asked in names else names)(prog_name="tidemark")
    except TidemarkError as error:
        print(f"tidemark: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        full = as_full_disk(error)
        if full is None:
            raise
        print(f"tidemark: {full}", file=sys.stderr)
        sys.exit(full.exit_code)


if __name__ == "__main__":
    run()
