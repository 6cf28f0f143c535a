"""Where the processes of an application answer queries, announced on the compacted topic `<app>-endpoints`.

Each process writes one record, whose key is its name, whenever what it holds has changed and every half minute, and a tombstone
when it stops. A process that was killed leaves its record behind. Another one forgets it when three of its own records of later
half minutes follow in the topic: the order of records needs no clock, and while no broker answers nobody is forgotten. If two
processes have the same name, the newer one stays announced: the one whose first record comes later in the topic.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from tidemark.errors import TidemarkError
from tidemark.kafka.committed_reader import is_passing
from tidemark.names import TaskId, endpoints_topic
from tidemark.queries.hosts import CopyState, StoreHost, StoreRestore
from tidemark.stores.directory import STANDBY_PREFIX

log = logging.getLogger(__name__)

_POLL_S = 0.25
_ANNOUNCE_EVERY_S = 1.0
_AGAIN_S = 30.0
"""A process that has nothing new announces itself again after so long."""
_MOST_MISSED = 3
_RETRY_S = 10.0
_REPLACED_S = 30.0
_FLUSH_S = 2.0
_STOP_S = 10.0


@dataclass(frozen=True)
class Endpoint:
    """One process of an application: its address, the tasks that it holds, and the restores that run in it.

    `rack` is the setting of that name in the process, `launch` is another text for each process.
    """

    holder: str
    url: str
    copies: Mapping[TaskId, CopyState]
    restores: tuple[StoreRestore, ...] = ()
    rack: str = ""
    launch: str = ""

    @classmethod
    def of(cls, host: StoreHost, url: str, rack: str, launch: str) -> Endpoint:
        """Return the present endpoint of this process."""
        return cls(host.holder, url, dict(host.copies()), tuple(host.restores()), rack, launch)

    def to_bytes(self) -> bytes:
        """Return the JSON value of the record."""
        body = {
            "url": self.url,
            "copies": {str(task): state for task, state in self.copies.items()},
            "restores": [each.to_dict() for each in self.restores],
            "rack": self.rack,
            "launch": self.launch,
        }
        return json.dumps(body, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, holder: str, data: bytes) -> Endpoint:
        """Read what `to_bytes` wrote. Raises `ValueError` for anything else."""
        try:
            body: dict[str, Any] = json.loads(data)
            copies = {TaskId.parse(task): CopyState(state) for task, state in body["copies"].items()}
            restores = tuple(map(_restore_of, body["restores"]))
            return cls(holder, _usable_url(body["url"]), copies, restores, str(body["rack"]), str(body["launch"]))
        # JSON that is nested too deeply is a `RecursionError`, and a list has no `items`.
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is not the record of a process ({type(error).__name__}: {error})") from error


def _restore_of(body: Mapping[str, Any]) -> StoreRestore:
    found = StoreRestore(**body)
    numbers = (found.partition, found.next_offset, found.end_offset)
    left_s = found.remaining_s
    if not (all(type(n) is int for n in numbers) and (left_s is None or isinstance(left_s, int | float))):
        raise TypeError("a restore has a field that is not a number")
    return found


def _usable_url(url: object) -> str:
    """Return an address to which a query can be sent. Raises `ValueError` for anything else."""
    at = urlsplit(url) if isinstance(url, str) else None
    if (
        at is None
        or at.scheme not in ("http", "https")
        or not at.hostname
        or at.port == 0
        or not str(url).isprintable()
    ):
        raise ValueError(f"{url!r} is not the address of a process")
    return str(url)


def has_distant_standby(
    task: TaskId, holders: Iterable[Endpoint], answering: Iterable[Endpoint], unasked: Iterable[Endpoint] = ()
) -> bool | None:
    """Whether a standby that answers holds the task in a rack in which no instance holds it.

    Then one lost rack does not take both. None if that is not known: no instance is known, or one of the standbys that could be
    the one is `unasked`. `holders` also has instances that do not answer.
    """
    near = _instance_racks(task, holders)

    def is_distant(standby: Endpoint) -> bool:
        return standby.copies.get(task) is CopyState.STANDBY and standby.rack not in near

    if not near:
        return None
    if any(map(is_distant, answering)):
        return True
    return None if any(map(is_distant, unasked)) else False


def tasks_in_same_rack(standby: Endpoint, others: Sequence[Endpoint]) -> list[TaskId]:
    """Return the tasks that a standby copies in a rack in which an instance holds them: one lost rack takes both."""
    return sorted(task for task in standby.copies if standby.rack in _instance_racks(task, others))


def _instance_racks(task: TaskId, holders: Iterable[Endpoint]) -> set[str]:
    """Return the racks of the instances that hold a task. A standby restores its copy, too, but is none."""
    held = (CopyState.ACTIVE, CopyState.RESTORING)
    return {e.rack for e in holders if e.copies.get(task) in held and not e.holder.startswith(STANDBY_PREFIX)}


class Endpoints:
    """Announces this process and knows the others, in a thread of its own. A broker that is away is waited for."""

    def __init__(
        self,
        application_id: str,
        client_config: Mapping[str, Any],
        own: Callable[[], Endpoint],
        create_topic: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own` returns this process's endpoint; `create_topic` creates the topic if it is missing, and blocks."""
        self._own = own
        self._monotonic = monotonic
        first = own()
        self._holder, self._launch = first.holder, first.launch
        self._create_topic = create_topic
        self._topic = endpoints_topic(application_id)
        # Each with the number of own rounds before its record.
        self._known: Mapping[str, tuple[int, Endpoint]] = {}
        self._rounds = 0
        self._round_s = float("-inf")
        self._is_read_back = False
        self._announced: Endpoint | None = None
        self._has_written = False
        # Of other processes with this name: the launches before this one, and when a newer one was seen. A tombstone names no
        # launch, and counts as one of an earlier process.
        self._earlier = {""}
        self._is_own_read = False
        self._replaced_s: float | None = None
        self._announced_s = 0.0
        self._retry_s = 0.0
        self._has_topic = False
        self._warned: set[int] = set()
        self._stop = threading.Event()
        self._producer_config = {**client_config, "enable.idempotence": True, "acks": "all"}
        self._producer = Producer(self._producer_config)
        self._consumer = Consumer(
            {
                **client_config,
                "group.id": f"tidemark-endpoints-{application_id}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # A client that names a topic too early would create it with other settings than the application's.
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 250,
            }
        )
        self._thread = threading.Thread(target=self._run, name="query-endpoints", daemon=True)

    def start(self) -> None:
        """Begin to announce and to read."""
        self._consumer.assign([ClientPartition(self._topic, 0, OFFSET_BEGINNING)])
        self._thread.start()

    def others(self) -> list[Endpoint]:
        """Return the endpoints of the other processes, the last announced first, without those that are silent for long."""
        least = self._rounds - _MOST_MISSED
        known = reversed(list(self._known.items()))
        return [endpoint for holder, (rounds, endpoint) in known if holder != self._holder and rounds > least]

    def close(self) -> None:
        """Withdraw the announcement and stop. Blocks, for ten seconds at most if brokers are away."""
        self._stop.set()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            # It waits for a broker that is away, and uses the clients; it ends with the process.
            return
        if self._has_written and self._replaced_s is None:
            self._send(self._holder, None)
        self._producer.flush(_FLUSH_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._announce()
                for message in self._consumer.consume(500, timeout=_POLL_S):
                    error = message.error()
                    if error is None:
                        self._take(message.key(), message.value())
                    elif not is_passing(error):
                        self._warn(error)
                self._producer.poll(0)
            # Without this thread, the process would ask the wrong ones until it ends, and the others would not find it.
            except Exception as error:
                log.warning(
                    "endpoints of other processes are not read for now: %s",
                    error,
                    exc_info=not isinstance(error, KafkaException),
                )
                self._stop.wait(_ANNOUNCE_EVERY_S)

    def _warn(self, error: KafkaError) -> None:
        """Log each kind of error once: the client reports it again and again."""
        if error.code() not in self._warned:
            self._warned.add(error.code())
            log.warning("the addresses of other processes cannot be read, so this one passes no query on: %s", error)

    def _announce(self) -> None:
        now = self._monotonic()
        own = self._own()
        # While no broker answers, records would wait, and come all at once.
        is_due = self._is_read_back and now - self._announced_s >= _AGAIN_S
        if self._is_replaced(own, now) or (own == self._announced and not is_due) or now < self._retry_s:
            return
        if not self._has_topic:
            try:
                self._create_topic()
            except TidemarkError as error:
                # Nothing is written before: a broker might create the topic by itself, and delete its records by age.
                log.warning("other processes do not find the queries of this one for now: %s", error)
                self._retry_s = self._monotonic() + _RETRY_S
                return
            self._has_topic = True
        # A restore changes all the time; which tasks are held must be known at once.
        is_same = self._announced is not None and own.copies == self._announced.copies
        if is_same and now - self._announced_s < _ANNOUNCE_EVERY_S:
            return
        self._has_written = True
        self._announced, self._announced_s, self._is_read_back = own, now, False
        self._send(own.holder, own.to_bytes())

    def _is_replaced(self, own: Endpoint, now: float) -> bool:
        """Return whether a newer process has this one's name. One that still holds tasks after a while does not believe it."""
        if self._replaced_s is None:
            return False
        if now - self._replaced_s < _REPLACED_S or not own.copies:
            return True
        self._replaced_s = self._announced = None
        return False

    def _send(self, holder: str, value: bytes | None) -> None:
        try:
            self._producer.produce(self._topic, value, holder.encode(), partition=0, on_delivery=self._on_delivery)
        except (BufferError, KafkaException) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL:
                # The client sends nothing more.
                self._producer = Producer(self._producer_config)
            self._on_delivery(error, None)

    def _on_delivery(self, error: Exception | KafkaError | None, _message: object) -> None:
        if error is not None:
            log.warning("the address of queries was not announced, and is announced again later: %s", error)
            # The topic may have been deleted meanwhile.
            self._announced, self._has_topic, self._retry_s = None, False, self._monotonic() + _RETRY_S

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        holder = (key or b"").decode(errors="replace")
        known = {name: found for name, found in self._known.items() if name != holder}
        endpoint = None
        if value is not None:
            try:
                endpoint = Endpoint.from_bytes(holder, value)
                known[holder] = (self._rounds, endpoint)
            except ValueError as error:
                log.warning(
                    "the endpoint of %s cannot be read, so it is not asked: %s; run the same version of Tidemark everywhere",
                    holder,
                    error,
                )
        self._known = known
        if holder == self._holder:
            self._see_own_name(endpoint)

    def _see_own_name(self, found: Endpoint | None) -> None:
        """Look at the newest record with this process's name, which another process may have written."""
        launch = "" if found is None else found.launch
        if launch == self._launch:
            self._is_own_read, self._replaced_s, self._is_read_back = True, None, True
            now = self._monotonic()
            # A restore is announced more often.
            if now - self._round_s >= _AGAIN_S:
                self._rounds, self._round_s = self._rounds + 1, now
        elif not self._is_own_read:
            # The record of this process comes later, and is the newest then.
            self._earlier.add(launch)
        elif launch in self._earlier:
            # An earlier process has written it, most often when it stopped.
            self._replaced_s = self._announced = None
        else:
            self._replaced_s = self._monotonic()
