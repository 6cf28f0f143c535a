"""An audit pauses for the processor time that it used, not for the time that it waited for a core."""

from __future__ import annotations

import pytest
from spark_jobs.audit.throttle import Throttle


@pytest.mark.parametrize(
    ("share", "used_s", "took_s", "rested_s"),
    [
        (0.5, 2.0, 2.0, 2.0),
        (0.25, 1.0, 1.0, 3.0),
        (0.5, 0.4, 2.0, 0.0),
        (0.5, 1.2, 2.0, 0.4),
        (1.0, 3.0, 2.0, None),
    ],
)
def test_should_pause_until_its_share_of_a_core_is_kept(share, used_s, took_s, rested_s):
    used, now, rests = iter((7.0, 7.0 + used_s)), iter((50.0, 50.0 + took_s)), []
    with Throttle(share, lambda: next(used), lambda: next(now), rests.append).turn():
        pass
    assert rests == ([] if rested_s is None else [pytest.approx(rested_s)])
