"""The member that has the place of a fenced instance, judged from descriptions of the group."""

from __future__ import annotations

import pytest

from tidemark.kafka.second_copy import Holder, Sighting, judge

SESSION_S = 10.0


def seen(at_s: float, member_id: str | None = "other", *, coordinator: int = 1, is_stable: bool = True) -> Sighting:
    return Sighting(at_s, coordinator, is_stable, member_id)


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
    ],
)
def test_should_say_which_member_has_the_place(sightings, holder):
    assert judge(sightings, {"earlier"}, SESSION_S) is holder
