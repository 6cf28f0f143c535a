"""Calls functions that need Airflow's modules and its database, each in a fork of this process, which imports Airflow once.

A request is a line of JSON on stdin: the name of a function in `CALLS`, and its arguments. The answer is a line of JSON on
stdout: the exit code of the fork, what the function returned, and all that it wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from tempfile import TemporaryFile
from typing import Any

import httpx
import psutil
from airflow import settings
from airflow.sdk.execution_time.supervisor import in_process_api_server
from sqlalchemy.orm import configure_mappers
from tests.support.airflow.calls import clear_failed_run, run_dag

from tidemark import processes

_THREADS_END_S = 30
CALLS: Mapping[str, Callable[..., Any]] = {call.__name__: call for call in (clear_failed_run, run_dag)}


def require_nothing_is_open() -> None:
    """Raise `RuntimeError` if a fork would inherit a thread's locks or a connection to the database."""
    threads, connections = psutil.Process().num_threads(), settings.engine.pool.checkedin()
    if (threads, connections) != (1, 0):
        raise RuntimeError(f"a fork would not be safe: {threads} threads, {connections} connections to the database")


async def ask_the_api() -> None:
    """Have the API that tasks talk to made, with all its versions: that takes longer than most runs do."""
    transport = in_process_api_server().atransport
    async with httpx.AsyncClient(transport=transport, base_url="http://in-process.invalid") as client:
        (await client.get("/health")).raise_for_status()


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    configure_mappers()
    asyncio.run(ask_the_api())
    # The event loop's worker threads end a moment after it.
    processes.wait_until(lambda: psutil.Process().num_threads() == 1, _THREADS_END_S)
    for line in sys.stdin:
        require_nothing_is_open()
        request = json.loads(line)
        with TemporaryFile() as log, TemporaryFile() as returned:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(log.fileno(), stream.fileno())
                returned.write(json.dumps(CALLS[request["call"]](**request["arguments"])).encode())
                return
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            log.seek(0)
            returned.seek(0)
            answer = {
                "code": code,
                "returned": json.loads(returned.read() or "null"),
                "log": log.read().decode(errors="replace"),
            }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
