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
    on_failure: Callable[[], None],
    on_result: Callable[[Item, Result], None] = lambda _item, _result: None,
) -> list[Result]:
    """The results in the items' order. Blocks until nothing is at work any more.

    `on_result` is called in this thread as each is done. What fails first is raised: `on_failure` asks what is at work to
    end, what has not begun is not begun.
    """
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="restore") as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                on_result(futures[future], future.result())
        except BaseException:
            on_failure()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]
