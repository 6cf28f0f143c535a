"""`make restores` compares stores only once their owners have them: when a group counts as stable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.system.restores.settled import Group

from tidemark.kafka.member import Member
from tidemark.processes import wait_until

ALL = frozenset({"in[0]", "in[1]", "in[2]"})
SOME, REST = frozenset({"in[1]", "in[2]"}), frozenset({"in[0]"})
NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("is_stable", "assigned", "held", "settled"),
    [
        (True, {"app-0": ALL}, {"app-0": ALL}, True),
        (True, {"app-0": SOME, "app-1": REST}, {"app-0": SOME, "app-1": REST}, True),
        # Between the rounds: what the first gives up is assigned to nobody, and it has not said so yet.
        (True, {"app-0": SOME, "app-1": NONE}, {"app-0": ALL, "app-1": NONE}, False),
        (True, {"app-0": SOME, "app-1": NONE}, {"app-0": SOME, "app-1": NONE}, False),
        # The second has started and has not joined.
        (True, {"app-0": ALL}, {"app-0": ALL, "app-1": NONE}, False),
        (False, {"app-0": ALL}, {"app-0": ALL}, False),
        # A static member that was killed keeps its partitions until its session ends.
        (True, {"app-0": SOME, "app-1": REST}, {"app-0": SOME}, False),
    ],
)
def test_should_treat_a_group_as_stable_only_when_members_hold_all_that_is_assigned(is_stable, assigned, held, settled):
    assert Group(is_stable, assigned).is_settled(held, 3) is settled


def test_should_not_treat_a_group_as_stable_while_a_member_revokes_partitions(
    broker, admin, settings, unique, create_topic
):
    topic, group = create_topic(unique("in"), partitions=3), unique("group")
    with _member(broker, group, topic, 0) as (first, _):

        def held(of: dict[str, Member]) -> dict[str, frozenset[str]]:
            return {name: frozenset(map(str, member.ownership.held())) for name, member in of.items()}

        members = {f"{group}-0": first}
        assert wait_until(lambda: Group.asked(admin, settings, group).is_settled(held(members), 3), 60)
        said_before = held(members)
        with _member(broker, group, topic, 1) as (second, gains):
            members[f"{group}-1"] = second
            assert wait_until(lambda: len(Group.asked(admin, settings, group).assigned) == 2, 60)
            # What the first said before does not count any more, though it named all three.
            late = {**said_before, f"{group}-1": NONE}
            assert not Group.asked(admin, settings, group).is_settled(late, 3)
            assert wait_until(lambda: Group.asked(admin, settings, group).is_settled(held(members), 3), 60)
            # The member tells of its partitions a moment after it has them.
            assert gains.wait(60)
            assert all(held(members).values())


@contextmanager
def _member(broker, group: str, topic: str, number: int) -> Iterator[tuple[Member, threading.Event]]:
    changed = threading.Event()
    config = {
        "bootstrap.servers": broker.bootstrap, "group.id": group, "group.instance.id": f"{group}-{number}",
        "auto.offset.reset": "earliest", "log_level": 0,
    }  # fmt: skip
    member = Member(config, [topic], threading.RLock(), changed.set)
    member.start()
    try:
        yield member, changed
    finally:
        member.close()
