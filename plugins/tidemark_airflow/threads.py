"""Separate threads for the requests of triggers to brokers and databases.

All triggers of a triggerer share the few threads of `asyncio.to_thread`. A request may block until its time limit. In the
shared threads, a few streams without a broker would keep every other trigger from watching its instance.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def own_thread(name: str) -> Iterator[Callable[[Callable[[], T]], Awaitable[T]]]:
    """Yield a function like `asyncio.to_thread` that uses one thread, which only this block uses.

    The end of the block does not wait: a request that hangs ends by its own time limit.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        yield lambda ask: asyncio.get_running_loop().run_in_executor(executor, ask)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
