"""One event of an instance, and its JSON form. `docs/events.md` lists the kinds with their fields; a test compares them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.errors import ExitCode, TidemarkError
from tidemark.names import TopicPartition
from tidemark.restore.listener import RestoreProgress
from tidemark.supervision.state import InstanceState


class EventKind(StrEnum):
    """The kind of an event."""

    STATE = "state"
    FAILURE = "failure"
    REBALANCE = "rebalance"
    RESTORE_START = "restore-start"
    RESTORE_BATCH = "restore-batch"
    RESTORE_END = "restore-end"
    RESTORE_SUSPENDED = "restore-suspended"
    WAITING = "waiting"
    WAITING_END = "waiting-end"
    STANDSTILL = "standstill"
    STANDSTILL_END = "standstill-end"


_PROGRESS = (
    "store", "changelog", "partition", "start_offset", "next_offset", "end_offset", "records", "elapsed_s",
    "records_per_second", "remaining_s",
)  # fmt: skip

BODY_FIELDS: Mapping[EventKind, tuple[str, ...]] = {
    EventKind.STATE: ("new", "old"),
    EventKind.FAILURE: ("error", "message", "exit_code"),
    EventKind.REBALANCE: ("held", "gained", "lost", "generation"),
    EventKind.RESTORE_START: _PROGRESS,
    EventKind.RESTORE_BATCH: _PROGRESS,
    EventKind.RESTORE_END: _PROGRESS,
    EventKind.RESTORE_SUSPENDED: _PROGRESS,
    EventKind.WAITING: ("why",),
    EventKind.WAITING_END: ("why", "waited_s"),
    EventKind.STANDSTILL: ("since_ms", "stood_s", "rto_s", "why"),
    EventKind.STANDSTILL_END: ("since_ms", "stood_s", "rto_s"),
}
"""The names in `body`, by kind."""


@dataclass(frozen=True)
class Rebalance:
    """The source partitions whose tasks an instance holds, and how they differ from the previous assignment.

    `generation` is that of the group, under which the instance commits from now on.
    """

    held: tuple[TopicPartition, ...]
    gained: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True)
class Waiting:
    """A wait of an instance for brokers that its commits need. `waited_s` is its duration once it is over, None before."""

    why: str
    waited_s: float | None = None


@dataclass(frozen=True)
class Event:
    """An event. `time_ms` is the instance's wall clock in epoch milliseconds; `body` holds only what JSON can represent."""

    kind: EventKind
    application_id: str
    topology_version: str
    instance: int
    time_ms: int
    body: Mapping[str, Any]

    def to_json(self) -> str:
        """Return one line of JSON with the field names of this class."""
        return json.dumps(
            {
                "kind": self.kind,
                "application_id": self.application_id,
                "topology_version": self.topology_version,
                "instance": self.instance,
                "time_ms": self.time_ms,
                "body": dict(self.body),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Read what `to_json` wrote; raises `ValueError` on anything else."""
        try:
            read = json.loads(text)
            return cls(**(read | {"kind": EventKind(read["kind"])}))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not an event: {error}") from error

    @property
    def what(self) -> str:
        """Return the body in a few words, for people."""
        body = self.body
        if self.kind is EventKind.STATE:
            return f"{body['old']} → {body['new']}" if body["old"] != body["new"] else str(body["new"])
        if self.kind is EventKind.FAILURE:
            return f"{body['error']}: {body['message']}"
        if self.kind is EventKind.REBALANCE:
            summary = [f"{name} {', '.join(body[name])}" for name in ("gained", "lost") if body[name]]
            return "; ".join([f"holds {len(body['held'])} in generation {body['generation']}", *summary])
        if self.kind is EventKind.WAITING:
            return f"waits: {body['why']}"
        if self.kind is EventKind.WAITING_END:
            return f"waited for {body['waited_s']:.0f} s: {body['why']}"
        if self.kind is EventKind.STANDSTILL:
            return f"no progress for {body['stood_s']:.0f} s: {body['why']}"
        if self.kind is EventKind.STANDSTILL_END:
            return f"progress again after {body['stood_s']:.0f} s"
        place = f"{body['store']} from {body['changelog']}[{body['partition']}]"
        if self.kind is EventKind.RESTORE_START:
            return f"{place}: offsets {body['start_offset']} to {body['end_offset']}"
        done = f"{place}: at offset {body['next_offset']} of {body['end_offset']}, {body['records']} records"
        return f"{done} in {body['elapsed_s']:.1f} s, {body['records_per_second']:.0f}/s"


def state_body(new: InstanceState, old: InstanceState) -> dict[str, Any]:
    """Return the body of `EventKind.STATE`; both states are the same for an instance that was just created."""
    return {"new": str(new), "old": str(old)}


def failure_body(failure: BaseException) -> dict[str, Any]:
    """Return the body of `EventKind.FAILURE`; only Tidemark's own messages are known to contain no secrets."""
    message, exit_code = "see the instance's log", ExitCode.FAILED
    if isinstance(failure, TidemarkError):
        message, exit_code = " ".join(str(failure).split()), failure.exit_code
    return {"error": type(failure).__name__, "message": message, "exit_code": int(exit_code)}


def rebalance_body(rebalance: Rebalance) -> dict[str, Any]:
    """Return the body of `EventKind.REBALANCE`; partitions are written `topic[number]`."""
    return {
        "held": [str(p) for p in rebalance.held],
        "gained": [str(p) for p in rebalance.gained],
        "lost": [str(p) for p in rebalance.lost],
        "generation": rebalance.generation,
    }


def waiting_body(waiting: Waiting) -> dict[str, Any]:
    """Return the body of `EventKind.WAITING`, or of `EventKind.WAITING_END` if `waited_s` is known."""
    body: dict[str, Any] = {"why": waiting.why}
    return body if waiting.waited_s is None else body | {"waited_s": round(waiting.waited_s, 3)}


def restore_body(progress: RestoreProgress) -> dict[str, Any]:
    """Return the body of every kind about a restore."""
    return {
        "store": progress.store,
        "changelog": progress.changelog.topic,
        "partition": progress.changelog.partition,
        "start_offset": progress.start_offset,
        "next_offset": progress.next_offset,
        "end_offset": progress.end_offset,
        "records": progress.records,
        "elapsed_s": round(progress.elapsed_s, 3),
        "records_per_second": round(progress.records_per_second, 1),
        "remaining_s": None if progress.remaining_s is None else round(progress.remaining_s, 1),
    }
