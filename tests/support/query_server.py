"""An API of queries behind a real server on a real socket, and settings with which a client asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from tidemark.processes import wait_until
from tidemark.queries.service import listening_socket, make_server
from tidemark.queries.tls import uses_tls
from tidemark.settings import Settings


@contextmanager
def served(api: FastAPI, settings: Settings) -> Iterator[str]:
    """Serve until the block ends; gives the address."""
    with listening_socket("127.0.0.1", 0, settings.query_stall_ms) as listening:
        server = make_server(api, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert wait_until(lambda: server.started, 60)
        try:
            yield f"{'https' if uses_tls(settings) else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
