"""Kafka Streams beside the ward: the same end of an instance, and the time until its tasks commit again."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from bench.cases import CASES as WORK
from bench.sides import Command, StreamsSide, running
from confluent_kafka import ConsumerGroupState
from tests.support.truth.topics import Place, commits_past, end_offsets
from tests.system.crash.bench import RULES
from tests.system.failover.cases import Case, Loss
from tests.system.failover.waiting import BACK_S, READY_S, NotBack, wait_for
from tests.system.failover.ward import FIRST, SECOND, Ward

from tidemark.kafka.member import heartbeat_ms
from tidemark.kafka.offsets import describe_group, retry_until_stable
from tidemark.settings import Settings

_OUTPUT = "pulse-counts-streams"
_STOP_S = 60.0
_ANSWER_S = 15.0
_COPY = re.compile(r"^standby (\d+) (?:at (\d+)|ended)$", re.M)


class StreamsPeer:
    """Runs `bench/peers/WindowedCount.java` on the ward's input; each case is an application that counts from the beginning."""

    def __init__(self, ward: Ward, settings: Settings) -> None:
        self._ward = ward
        self._settings = settings
        self._numbers = itertools.count()
        ward.create_topics([_OUTPUT])

    def play(self, case: Case) -> float:
        """Play a case from empty machines, and return the seconds until the lost tasks commit. Blocks; raises `NotBack`."""
        group = f"streams-{next(self._numbers)}"
        with _Clients(self._ward, self._settings, case, group) as clients, self._ward.feeder.feeding():
            clients.wait_level()
            return clients.lose()


class _Clients:
    """The clients of one application: a process with one stream thread each, with the folder of its machine."""

    def __init__(self, ward: Ward, settings: Settings, case: Case, group: str) -> None:
        self._ward, self._case, self._group = ward, case, group
        timeouts = {"session_timeout_ms": ward.session_timeout_ms, "bootstrap_servers": ward.bootstrap}
        self._settings = settings.model_copy(update=timeouts)
        self._folder = ward.folder / group
        self._machines = {0: FIRST, 1: SECOND} if case.has_other else {0: FIRST}
        # Made before anything is measured, because it compares the checksums of the jars.
        self._commands = {place: self._command(*place) for place in ((0, FIRST), (0, SECOND), (1, SECOND))}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: list[Path] = []
        self._opened = ExitStack()

    def __enter__(self) -> _Clients:
        with ExitStack() as opened:
            self._opened = opened
            for number in self._machines:
                self._launch(number)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.kill()
        self._opened.close()
        if error is None:
            # The logs of a case that failed are shown.
            for log in self._logs:
                log.unlink()
        shutil.rmtree(self._folder)

    def _command(self, number: int, machine: str) -> Command:
        ward = self._ward
        overrides = {
            "application.id": self._group,
            "bench.inputs": RULES.source_topic,
            "bench.output": _OUTPUT,
            "num.standby.replicas": str(int(self._case.has_standby)),
            # A static member, as Tidemark's are: one that is launched again need not wait for the session of the one before.
            "group.protocol": "classic",
            "group.instance.id": str(number),
            "session.timeout.ms": str(ward.session_timeout_ms),
            "heartbeat.interval.ms": str(heartbeat_ms(self._settings)),
            "transaction.timeout.ms": str(ward.transaction_timeout_ms),
            # The least that is allowed, for the clients to share the tasks soon.
            "probing.rebalance.interval.ms": "60000",
            "deserialization.exception.handler": "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
        }
        side = StreamsSide(self._settings, heap="512m", threads=1, overrides=overrides)
        folder = self._folder / machine / str(number)
        folder.mkdir(parents=True)
        return side.command(replace(WORK["hot"], commit_interval_ms=ward.commit_interval_ms), ward.bootstrap, folder)

    def _launch(self, number: int) -> None:
        log = self._ward.folder / f"{self._group}-{len(self._logs)}.log"
        self._logs.append(log)
        command = self._commands[number, self._machines[number]]
        self._running[number] = self._opened.enter_context(running(command, log)).process

    def wait_level(self) -> None:
        """Block until all tasks have committed, every client has some, and the copies, if there are any, are up to date."""
        ward = self._ward
        ends = end_offsets(ward.bootstrap, ward.places(), "read_committed")
        self._wait(lambda: len(self._held()) == len(self._running), READY_S, "not every client has tasks")
        self._wait(lambda: commits_past(ward.bootstrap, self._group, ends), READY_S, "the tasks commit nothing")
        if self._case.has_standby:
            changelog = f"{self._group}-{RULES.store}-changelog"
            places = [(changelog, partition) for partition in range(ward.partitions)]
            # More keeps arriving, so a copy that has this end has a record at or after it soon.
            copied = end_offsets(ward.bootstrap, places, "read_committed")
            self._wait(lambda: self._has_copies(copied), READY_S, "the copies are not up to date")

    def _has_copies(self, ends: dict[Place, int]) -> bool:
        """Return whether the other client has copies up to these offsets of all tasks that client 0 has."""
        held = self._held()
        copies = copied_offsets(self._logs[1].read_text(errors="replace"))
        wanted = {partition for _, partition in held.get(0, ())}
        return bool(wanted) and all(copies.get(p, -1) >= end for (_, p), end in ends.items() if p in wanted)

    def lose(self) -> float:
        """End client 0 as the case has it, and return the seconds until its tasks commit what has arrived since."""
        ward, lost = self._ward, self._held().get(0)
        if not lost:
            raise NotBack(f"{self._group}: client 0 has no task to lose")
        began = time.monotonic()
        self._end(self._running.pop(0))
        ends = end_offsets(ward.bootstrap, ward.places(), "read_committed")
        if self._case.is_launched_again:
            self._launch(0)
        marks = {place: ends[place] for place in lost}
        self._wait(lambda: commits_past(ward.bootstrap, self._group, marks), BACK_S, "the lost tasks commit nothing")
        return time.monotonic() - began

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if self._case.loss is Loss.NOTHING:
            process.terminate()
        else:
            process.kill()
        process.wait(_STOP_S)
        if self._case.loss is Loss.MACHINE:
            shutil.rmtree(self._folder / FIRST)
            self._machines[0] = SECOND

    def _held(self) -> dict[int, set[Place]]:
        """Return the source partitions by client, of those that have any; empty while the group is not stable."""
        settings, admin = self._settings, self._ward.admin
        found = retry_until_stable(lambda: describe_group(settings, admin, self._group), self._group, _ANSWER_S)
        if found.state is not ConsumerGroupState.STABLE:
            return {}
        assigned = {
            # Kafka Streams adds the number of the stream thread.
            int(member.group_instance_id.partition("-")[0]): {
                (p.topic, p.partition) for p in member.assignment.topic_partitions if p.topic == RULES.source_topic
            }
            for member in found.members
        }
        return {number: places for number, places in assigned.items() if places}

    def _wait(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        def holds() -> bool:
            for number, process in self._running.items():
                if process.poll() is not None:
                    raise NotBack(f"{self._group}: client {number} ended with {process.returncode}")
            return condition()

        wait_for(holds, timeout_s, f"{self._group}: {otherwise}")


def copied_offsets(log: str) -> dict[int, int]:
    """Return the last changelog offset in each copy that a client keeps, by partition, from what it has written."""
    copies: dict[int, int] = {}
    for partition, offset in _COPY.findall(log):
        if offset:
            copies[int(partition)] = int(offset)
        else:
            copies.pop(int(partition), None)
    return copies
