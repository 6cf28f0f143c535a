"""The query service of one process: its HTTP server in a thread of its own, and its announcement to the others.

Nothing here ever stops a stream: a server that cannot be started is logged and named in the run file.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient

from tidemark.errors import InvalidSettings
from tidemark.kafka.topics import create_topics, endpoints_spec
from tidemark.metrics.registry import Scrape
from tidemark.names import TaskId
from tidemark.queries.access import Tokens
from tidemark.queries.catalog import Catalog
from tidemark.queries.changelog_watch import Changelogs
from tidemark.queries.endpoints import Endpoint, Endpoints, tasks_in_same_rack
from tidemark.queries.event_feed import EventFeed
from tidemark.queries.hosts import StoreHost
from tidemark.queries.part_source import LiveSources
from tidemark.queries.peers import Peers
from tidemark.queries.router import Router
from tidemark.queries.tls import key_file, require_usable, trusted, uses_tls
from tidemark.settings import Settings
from tidemark.supervision.run_file import QUERY_ERROR, QUERY_URL, RunFile
from tidemark.topology.plan import TopologyPlan

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

log = logging.getLogger(__name__)

_STOP_S = 5.0
_LOOK_MS = 500
_BACKLOG = 128
_MOST_KERNEL_MS = 2**31 - 1
"""The longest time that a socket option takes: 24 days."""
# A server can listen at these addresses, but another machine cannot reach it by them.
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}


@dataclass(eq=False, repr=False)
class QueryService:
    """Answers queries and scrapes from `start` until `close`.

    `tasks` are all tasks of the application; a standby has no `events`.
    """

    plan: TopologyPlan
    settings: Settings
    tasks: Sequence[TaskId]
    host: StoreHost
    scrape: Scrape
    client_config: Mapping[str, Any]
    run_file: RunFile
    events: EventFeed | None = None
    _running: _Running | None = field(init=False, default=None)

    def start(self) -> None:
        """Start to answer, unless `query_port` is -1. Never raises."""
        url = error = None
        if self.settings.query_port >= 0:
            try:
                self._running = _Running(self)
                url = self._running.url
                log.info("queries: answered at %s", url)
            # Also what clients and threads raise where the machine allows no more of them: the stream goes on without queries.
            except Exception as failed:
                where = f"{self.settings.query_host}:{self.settings.query_port}"
                error = (
                    f"queries are not answered at {where}: {failed}; set TIDEMARK_QUERY_PORT to a free port, or to -1"
                )
                log.error("%s", error, exc_info=not isinstance(failed, OSError | OverflowError | InvalidSettings))
        self.run_file.update({QUERY_URL: url, QUERY_ERROR: error}, now=True)

    def tasks_in_same_rack(self) -> list[TaskId]:
        """Return the tasks that this standby copies in the rack of their instance, as far as instances are announced.

        Without queries nothing is announced, so there are none.
        """
        return [] if self._running is None else self._running.tasks_in_same_rack()

    def close(self) -> None:
        """Withdraw the announcement and stop the server. Blocks for a few seconds at most; may be called twice."""
        running, self._running = self._running, None
        if running is not None:
            self.run_file.update({QUERY_URL: None}, now=True)
            running.close()


class _Running:
    """The parts of a service that run."""

    def __init__(self, service: QueryService) -> None:
        """Open the port and start the threads. Raises `OSError`, `InvalidSettings`, `RuntimeError` and `KafkaException`.

        The last two mean that the machine allows no more threads. Nothing stays open then.
        """
        settings = service.settings
        tokens = Tokens.load(settings, service.plan.application_id)
        require_usable(settings)
        verify = trusted(settings)
        self._stopping = threading.Event()
        self._socket = listening_socket(settings.query_host, settings.query_port, settings.query_stall_ms)
        try:
            self._start(service, tokens, verify)
        except BaseException:
            self._stopping.set()
            self._socket.close()
            raise

    def _start(self, service: QueryService, tokens: Tokens, verify: ssl.SSLContext) -> None:
        settings, plan = service.settings, service.plan
        self.url = announced_url(settings, self._socket.getsockname()[1])
        rack, launch = settings.rack or socket.gethostname(), uuid.uuid4().hex
        self._own: Callable[[], Endpoint] = lambda: Endpoint.of(service.host, self.url, rack, launch)
        self._endpoints = Endpoints(
            plan.application_id,
            service.client_config,
            self._own,
            lambda: create_topics(AdminClient(dict(service.client_config)), [endpoints_spec(plan)], settings),
        )
        self._peers = Peers(plan.application_id, verify)
        router = Router(
            Catalog.of(plan), service.tasks, service.host, self._endpoints.others, self._peers, rack, launch
        )
        self._run_file = service.run_file
        self._is_withdrawn = False
        self._server: uvicorn.Server | None = None
        timeout_ms = min(settings.broker_timeout_ms, settings.query_timeout_ms)
        changes = Changelogs(plan.application_id, service.client_config, timeout_ms)
        live = LiveSources(changes, service.events, self._stopping)
        self._thread = threading.Thread(
            target=self._serve,
            args=(router, service.scrape, tokens, settings, plan.version, live),
            name="query-server",
            daemon=True,
        )
        self._thread.start()
        self._endpoints.start()

    def _serve(
        self, router: Router, scrape: Scrape, tokens: Tokens, settings: Settings, version: str, live: LiveSources
    ) -> None:
        why = "it has ended"
        try:
            if not wait_for_request(self._socket, self._stopping):
                return
            # This import takes a second of processor time, so it waits for the first query.
            from tidemark.queries.api import make_api

            self._server = make_server(make_api(router, scrape, tokens, settings, version, live), settings)
            if not self._stopping.is_set():
                self._server.run(sockets=[self._socket])
        except BaseException as error:
            # Also `SystemExit`, with which uvicorn ends a server that cannot start.
            why = f"{type(error).__name__}: {error}"
            log.exception("the server of queries has failed")
        finally:
            if not self._stopping.is_set():
                self._give_up(why)

    def _give_up(self, why: str) -> None:
        """Take a failed server out of use: close its port, withdraw its announcement, and record the reason."""
        error = f"the server of queries has failed ({why}): queries are not answered until this process starts again"
        log.error("%s", error)
        self._socket.close()
        self._run_file.update({QUERY_URL: None, QUERY_ERROR: error}, now=True)
        self._withdraw()

    def _withdraw(self) -> None:
        if not self._is_withdrawn:
            self._is_withdrawn = True
            self._endpoints.close()

    def tasks_in_same_rack(self) -> list[TaskId]:
        return tasks_in_same_rack(self._own(), self._endpoints.others())

    def close(self) -> None:
        self._stopping.set()
        self._withdraw()
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._peers.close()
        self._socket.close()


def announced_url(settings: Settings, port: int) -> str:
    """Return the address under which others reach the queries of this process."""
    own = socket.gethostname() if settings.query_host in _EVERY_ADDRESS else settings.query_host
    advertised = settings.query_advertised_host or own
    host = f"[{advertised}]" if ":" in advertised else advertised
    return f"{'https' if uses_tls(settings) else 'http'}://{host}:{port}"


def wait_for_request(listening: socket.socket, stop: threading.Event) -> bool:
    """Wait for the first request to a socket that listens. Returns False if `stop` is set before. Blocks."""
    # Unlike `select`, this has no limit of 1024 open files, and a standby opens the files of many stores first.
    asking = select.poll()
    asking.register(listening, select.POLLIN)
    while not stop.is_set():
        if asking.poll(_LOOK_MS):
            return True
    return False


def make_server(api: FastAPI, settings: Settings) -> uvicorn.Server:
    """Return the server of an API, which `run` serves from sockets until `should_exit` is set."""
    import uvicorn

    from tidemark.queries.bounded_protocol import BoundedLoop, BoundedProtocol

    tls: dict[str, Any] = {}
    if uses_tls(settings):
        tls = {"ssl_certfile": settings.query_tls_certificate, "ssl_keyfile": str(key_file(settings))}
    config = uvicorn.Config(
        api,
        http=BoundedProtocol,
        loop=f"{BoundedLoop.__module__}:{BoundedLoop.__name__}",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        **tls,
    )
    return uvicorn.Server(config)


def listening_socket(host: str, port: int, stall_ms: int) -> socket.socket:
    """Return a socket that already listens, so that requests wait until the server has started. Raises `OSError`.

    The kernel closes a connection to it whose client is gone, or has taken nothing for three times `stall_ms`: a server that
    closes a connection first waits for the client to take what was written.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Every address includes those of IPv4, which the name of the machine may stand for.
    takes_both = host == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=takes_both)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A client has `stall_ms` to take a part, and as long to take the event that says that it is too slow.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(3 * stall_ms, _MOST_KERNEL_MS))
    return listening
