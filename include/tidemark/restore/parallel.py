"""Independent work on several partitions at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    threads: int,
    *,
    on_failure: Callable[[BaseException], None],
    on_result: Callable[[Item, Result], None] = lambda _item, _result: None,
) -> list[Result]:
    """Run `work` on every item in threads. Returns the results in the items' order. Blocks until all threads are done.

    `on_result` is called in the calling thread for each result. The first error is raised: `on_failure`, which is called
    with it, may ask running work to end, and work that has not begun is cancelled.
    """
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="restore") as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                on_result(futures[future], future.result())
        except BaseException as error:
            on_failure(error)
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]
