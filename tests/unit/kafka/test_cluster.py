"""Whether a broker answers, asked without a broker."""

from __future__ import annotations

import pytest

from tidemark.kafka.cluster import brokers_answer, short_timeout_s
from tidemark.settings import Settings


@pytest.mark.parametrize(
    "options",
    [{}, {"security.protocol": "ssl", "ssl.ca.location": "/there/is/none.pem"}],
    ids=["nobody listens", "no client can be created"],
)
def test_should_report_no_answer(options):
    assert not brokers_answer({"bootstrap.servers": "127.0.0.1:1", **options}, 0.1)


@pytest.mark.parametrize(("broker_timeout_ms", "timeout_s"), [(2_999, 2.999), (3_000, 3.0), (3_001, 3.0)])
def test_should_wait_for_an_answer_no_longer_than_the_broker_timeout(broker_timeout_ms, timeout_s):
    assert short_timeout_s(Settings.load(broker_timeout_ms=broker_timeout_ms), 3.0) == timeout_s
