"""A call that blocks in one trigger does not keep other triggers from watching their instances."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from tests.support.airflow.stream_bench import Bench

from tidemark.processes import wait_until
from tidemark_airflow.rto_watch import RtoWatch, rto_watched
from tidemark_airflow.threads import own_thread

# More than `asyncio.to_thread` ever has threads for.
STREAMS = 40


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_should_keep_watching_while_the_deadlines_of_many_streams_wait_for_a_broker(
    bench: Bench, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(bench.settings.var_dir))
    asking: list[int] = []

    def ask(self: RtoWatch, now_ms: int) -> None:
        asking.append(now_ms)
        released.wait(120)

    monkeypatch.setattr(RtoWatch, "look", ask)

    async def watch() -> bool:
        async with AsyncExitStack() as streams:
            for _ in range(STREAMS):
                await asyncio.wait_for(streams.enter_async_context(rto_watched(bench.files)), 60)
            while len(asking) < STREAMS:
                await asyncio.sleep(0.05)
            looked = await asyncio.wait_for(asyncio.to_thread(lambda: True), 60)
            released.set()
            return looked

    assert asyncio.run(asyncio.wait_for(watch(), 240))


def test_should_end_without_waiting_for_a_request_that_hangs(released: threading.Event) -> None:
    begun = threading.Event()

    def ask() -> bool:
        begun.set()
        return released.wait(120)

    async def give_up() -> None:
        with own_thread("a broker") as in_thread:
            asked = asyncio.ensure_future(in_thread(ask))
            assert await asyncio.to_thread(wait_until, begun.is_set, 60)
            asked.cancel()

    asyncio.run(asyncio.wait_for(give_up(), 120))
    assert not released.is_set()
