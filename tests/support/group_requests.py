"""Requests of a member of a consumer group, sent by hand: a member that does exactly what a test asks of it, and no more."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_JOIN, _LEAVE, _SYNC = 11, 13, 14
_COOPERATIVE = b"cooperative-sticky"
_ANSWER_S = 60.0


def _number(value: int, width: int = 4) -> bytes:
    return value.to_bytes(width, "big", signed=True)


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _number(len(data), 2) + data


def _bytes(value: bytes) -> bytes:
    return _number(len(value)) + value


def _array(items: Iterable[bytes]) -> bytes:
    all_items = list(items)
    return _number(len(all_items)) + b"".join(all_items)


class _Answer:
    """Reads the fields of a response one after the other, and begins with the throttle time that each of them has first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.number()

    def number(self, width: int = 4) -> int:
        taken, self._data = self._data[:width], self._data[width:]
        return int.from_bytes(taken, "big", signed=True)

    def text(self) -> str:
        length = max(0, self.number(2))
        taken, self._data = self._data[:length], self._data[length:]
        return taken.decode()

    def skip_bytes(self) -> None:
        length = max(0, self.number())
        self._data = self._data[length:]


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        assert more, "the broker has closed the connection"
        data += more
    return data


def _ask(address: str, api: int, version: int, body: bytes) -> _Answer:
    request = _number(api, 2) + _number(version, 2) + _number(1) + _text("test") + body
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _ANSWER_S) as connection:
        connection.sendall(_bytes(request))
        answer = _exactly(connection, _Answer(b"\0\0\0\0" + _exactly(connection, 4)).number())
    return _Answer(answer[4:])


@dataclass(frozen=True)
class Joined:
    """What the coordinator answered: `members` maps instance ids to member ids, and is empty for all but the leader."""

    generation: int
    member_id: str
    members: Mapping[str, str]


def join_group(
    address: str, group: str, instance: str, topics: Sequence[str], member_id: str = "", session_ms: int = 6000
) -> Joined:
    """Join as a static member, with no id as a process that has just started. Blocks until all members have joined.

    `address` is the coordinator's. The member sends no heartbeats afterwards.
    """
    subscription = _number(1, 2) + _array(_text(topic) for topic in topics) + _number(-1) + _array([])
    body = _text(group) + _number(session_ms) + _number(300_000) + _text(member_id) + _text(instance)
    body += _text("consumer") + _array([_text(_COOPERATIVE) + _bytes(subscription)])
    answer = _ask(address, _JOIN, 5, body)
    error, generation = answer.number(2), answer.number()
    assert error == 0, f"JoinGroup was refused with {error}"
    answer.text()
    answer.text()
    own, members = answer.text(), {}
    for _ in range(answer.number()):
        member = answer.text()
        members[answer.text()] = member
        answer.skip_bytes()
    return Joined(generation, own, members)


def sync_group(
    address: str, group: str, instance: str, joined: Joined, given: Mapping[str, Mapping[str, Sequence[int]]]
) -> None:
    """Give, as the group's leader, partitions of topics to members by their instance ids. The group is stable afterwards."""
    assignments = []
    for name, partitions in given.items():
        places = _array(_text(topic) + _array(map(_number, numbers)) for topic, numbers in partitions.items())
        assignments.append(_text(joined.members[name]) + _bytes(_number(1, 2) + places + _number(-1)))
    body = _text(group) + _number(joined.generation) + _text(joined.member_id) + _text(instance) + _array(assignments)
    error = _ask(address, _SYNC, 3, body).number(2)
    assert error == 0, f"SyncGroup was refused with {error}"


def remove_from_group(address: str, group: str, instance: str) -> None:
    """Remove a static member, as an administrator's tool does: what the end of its session does, at once."""
    member = _text("") + _text(instance)
    error = _ask(address, _LEAVE, 3, _text(group) + _array([member])).number(2)
    assert error == 0, f"LeaveGroup was refused with {error}"
