"""What of the demo a machine bears, at the limits."""

from __future__ import annotations

import pytest

from demo.capacity import capacity

GB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "memory_bytes", "streams", "keeps_audit", "reasons"),
    [
        (4, 10 * GB, 3, True, ()),
        (3, 10 * GB, 3, False, ("every 15 minutes is too often for 3 cores",)),
        (2, 10 * GB, 3, False, ("every 15 minutes is too often for 2 cores",)),
        (
            1,
            64 * GB,
            1,
            False,
            ("clicks and shopping do not run: three streams need 2 cores", "is too often for 1 cores"),
        ),
        (8, 10 * GB - 1, 1, True, ("clicks and shopping do not run",)),
    ],
)
def test_should_leave_out_what_a_machine_does_not_bear_and_say_why(cores, memory_bytes, streams, keeps_audit, reasons):
    found = capacity(cores, memory_bytes)
    assert found.streams[0] == "patient_monitoring"
    assert (len(found.streams), found.keeps_audit, len(found.reasons)) == (streams, keeps_audit, len(reasons))
    for reason, part in zip(found.reasons, reasons, strict=True):
        assert part in reason
