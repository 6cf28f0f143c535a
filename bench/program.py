"""Runs a benchmark: errors become a message and an exit code, and no process that it started is left at its end."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from typing import NoReturn

from tidemark import processes
from tidemark.errors import TidemarkError


def run_program(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Run the `main` of the benchmark `name`, and exit with what it returns, or with the exit code of its `TidemarkError`.

    Every process that carries the mark ends with it, also if the benchmark is killed.
    """
    os.environ[processes.MARK] = mark = uuid.uuid4().hex
    try:
        with processes.guarded(mark):
            sys.exit(main())
    except TidemarkError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
