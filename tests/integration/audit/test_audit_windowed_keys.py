"""An audit of sinks with windowed keys: it reports no fault, and finds a key of another window."""

from __future__ import annotations

import uuid
from functools import partial

import pytest
from tests.support.audit.application import PaymentsApp, payments
from tests.support.audit.matrix import STALLED_MS, Matrix, complaints_of
from tests.support.audit.tampering import tampering

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]


def test_should_compare_results_under_windowed_keys(matrix: Matrix) -> None:
    name = f"windowed-{uuid.uuid4().hex[:8]}"
    app = PaymentsApp(matrix.settings, matrix.admin, name, partial(payments, windowed_key=True))
    app.feed(300)
    app.run()
    assert complaints_of(matrix.audit.run(app.plan, stalled_ms=STALLED_MS)) == []

    def a_minute_later(messages):
        key = messages[0]["key"]
        later = int.from_bytes(key[-8:], "big") + 60_000
        return [messages[0] | {"key": key[:-8] + later.to_bytes(8, "big")}, *messages[1:]]

    app.feed(300)
    with tampering(f"{name}-minutes", a_minute_later):
        app.run()
    assert "every_update_is_there" in complaints_of(matrix.audit.run(app.plan, stalled_ms=STALLED_MS))
