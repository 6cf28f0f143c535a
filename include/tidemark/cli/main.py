"""Entry point of `tidemark`.

Each module in this folder is a command of the same name: `up.py` has the function `up`, whose docstring is its help. A
module with a `typer.Typer` named `app` is a group of commands instead. Only the module of the command that is called is
imported, so that one command does not wait for the imports of another.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from pathlib import Path

import typer

from tidemark.atomic_file import as_full_disk, keep_files_private
from tidemark.errors import TidemarkError

_NOT_COMMANDS = {"main"}


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
            app.add_typer(group, name=name, help=module.__doc__)
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
