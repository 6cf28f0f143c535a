"""The member that has the place of a fenced instance, judged from descriptions of the group."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tidemark.errors import OutcomeUnknown
from tidemark.kafka import second_copy
from tidemark.kafka.second_copy import Holder, SecondCopyCheck, Sighting, judge
from tidemark.names import group_instance_id
from tidemark.settings import Settings

SESSION_S = 10.0


def seen(
    at_s: float,
    member_id: str | None = "other",
    *,
    coordinator: int = 1,
    is_stable: bool = True,
    answered_s: float | None = None,
) -> Sighting:
    return Sighting(
        at_s,
        at_s if answered_s is None else answered_s,
        coordinator,
        is_stable,
        is_empty=member_id is None,
        member_id=member_id,
    )


@pytest.mark.parametrize(
    ("sightings", "holder"),
    [
        # 1 the place is free: whoever took it is gone, or was never there
        ([seen(0, None)], Holder.NOBODY),
        # 2 the same in a group that is not stable
        ([seen(0), seen(1, None, is_stable=False)], Holder.NOBODY),
        # 3 a member that this instance has replaced itself, which a new coordinator has read from its log
        ([seen(0, "earlier")], Holder.NOBODY),
        # 4 a member that has been there for less than a session may have no process
        ([seen(0)], Holder.UNDECIDED),
        ([seen(0), seen(9.9)], Holder.UNDECIDED),
        # 5 for exactly a session: its end may be due this moment
        ([seen(0), seen(10)], Holder.UNDECIDED),
        # 6 for longer: it has sent heartbeats
        ([seen(0), seen(5), seen(10.1)], Holder.COPY),
        # 7 a group in a rebalance keeps members without heartbeats
        ([seen(0, is_stable=False), seen(10.1, is_stable=False)], Holder.UNDECIDED),
        ([seen(0), seen(5, is_stable=False), seen(10.1)], Holder.UNDECIDED),
        ([seen(0), seen(10.1, is_stable=False)], Holder.UNDECIDED),
        # 8 a new coordinator begins all sessions anew
        ([seen(0), seen(10.1, coordinator=2)], Holder.UNDECIDED),
        ([seen(0), seen(5, coordinator=2), seen(15.1, coordinator=2)], Holder.COPY),
        # 9 another member has come: what was seen of the one before says nothing of it
        ([seen(0, "one"), seen(9, "two"), seen(10.1, "two")], Holder.UNDECIDED),
        ([seen(0, "one"), seen(9, "two"), seen(19.1, "two")], Holder.COPY),
        # 10 an answer that waits for the processor is older than it seems
        ([seen(0), seen(9.9, answered_s=13)], Holder.UNDECIDED),
        ([seen(0, answered_s=3), seen(12)], Holder.UNDECIDED),
        ([seen(0, answered_s=3), seen(13.1)], Holder.COPY),
    ],
)
def test_should_say_which_member_has_the_place(sightings, holder):
    assert judge(sightings, {"earlier"}, SESSION_S) is holder


@dataclass
class Group:
    """A group whose coordinator is asked through `describe_group`, and the monotonic clock."""

    members: dict[str, str] = field(default_factory=dict)
    answers: bool = True
    now_s: float = 100.0
    asked: int = 0

    def describe(self, *_: object) -> SimpleNamespace:
        self.asked += 1
        if not self.answers:
            raise OutcomeUnknown("no answer")
        members = [SimpleNamespace(member_id=m, group_instance_id=name) for name, m in self.members.items()]
        return SimpleNamespace(coordinator=SimpleNamespace(id=1), state=ConsumerGroupState.STABLE, members=members)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(second_copy, "describe_group", made.describe)
    monkeypatch.setattr(second_copy, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


@pytest.fixture
def check() -> SecondCopyCheck:
    settings = Settings.load(session_timeout_ms=10_000, broker_timeout_ms=1000)
    return SecondCopyCheck(settings, AdminClient({"bootstrap.servers": "127.0.0.1:1"}), "app", 0)


@pytest.mark.parametrize(("later_s", "asked"), [(0.9, 1), (1.0, 1), (1.1, 2)])
def test_should_ask_again_before_the_join_if_the_last_answer_is_older_than_a_second(group, check, later_s, asked):
    group.members = {group_instance_id("app", 0): "one"}
    assert check.look_before_join().member_id == "one"
    group.now_s += later_s
    check.look_before_join()
    assert group.asked == asked


def test_should_know_every_member_that_it_saw_before_the_join(group, check):
    for member in ("one", "two"):
        group.members = {group_instance_id("app", 0): member}
        check.look_before_join()
        group.now_s += 2
    for member in ("one", "two"):
        group.members = {group_instance_id("app", 0): member}
        assert check.holder(threading.Event()) is Holder.NOBODY


def test_should_ask_again_after_no_answer(group, check):
    group.answers = False
    assert check.look_before_join() is None
    group.answers = True
    assert check.look_before_join().is_empty


def test_should_tell_a_group_of_others_from_an_empty_one(group, check):
    group.members = {group_instance_id("app", 1): "other"}
    found = check.look_before_join()
    assert (found.is_empty, found.member_id) == (False, None)
