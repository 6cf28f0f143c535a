"""What a start derives from the description that the last commit left."""

from __future__ import annotations

import pytest
from tests.support.changes import version

from tidemark.registry.description import describe_state
from tidemark.registry.reader import accepted_guarantee
from tidemark.topology.plan import Guarantee

ONCE, AT_LEAST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE


def plan_with(guarantee):
    return version("app", "1", "n", guarantee.value, n="count(*)").plan()


@pytest.mark.parametrize(
    ("recorded", "declared", "accepted"),
    [
        (None, ONCE, ONCE),
        (None, AT_LEAST, AT_LEAST),
        (ONCE, ONCE, ONCE),
        (AT_LEAST, AT_LEAST, AT_LEAST),
        # A crash has left offsets behind the commit record.
        (AT_LEAST, ONCE, AT_LEAST),
        # Another instance has already committed, and crashed, before the description is read again.
        (ONCE, AT_LEAST, AT_LEAST),
    ],
)
def test_should_judge_the_last_commits_by_the_weaker_guarantee(recorded, declared, accepted):
    description = None if recorded is None else describe_state(plan_with(recorded), {"app-in": 2})
    assert accepted_guarantee(plan_with(declared), description) is accepted
