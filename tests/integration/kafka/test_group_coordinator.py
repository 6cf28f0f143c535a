"""A question to a group's coordinator that does not answer in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tidemark.settings import project_root

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

_ASK = """
import sys
from confluent_kafka.admin import AdminClient
from tidemark.errors import OutcomeUnknown
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.group import members
from tidemark.settings import Settings
settings = Settings.load()
admin = AdminClient(librdkafka_config(settings))
admin.list_topics(timeout=60)
print("connected", flush=True)
sys.stdin.readline()
try:
    members(settings, admin, "any")
except OutcomeUnknown as error:
    print(error, flush=True)
sys.stdin.readline()
print(members(settings.model_copy(update={"broker_timeout_ms": 60_000}), admin, "any"), flush=True)
"""
_SETTLES_S = 3.0
"""If the late answer ends the process, it does so within milliseconds of the broker continuing. It is watched for this long."""


def test_should_survive_when_the_coordinator_answers_after_the_time_out(broker, settings):
    """Otherwise the client library would end the process with SIGABRT when the broker continues."""
    asking = subprocess.Popen(
        [sys.executable, "-c", _ASK],
        env={
            **os.environ,
            **settings.model_copy(update={"broker_timeout_ms": 2000}).as_environment(),
            "PYTHONPATH": str(project_root() / "include"),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with asking:
        assert asking.stdout.readline() == "connected\n"
        os.kill(broker.identity.pid, signal.SIGSTOP)
        try:
            asking.stdin.write("\n")
            asking.stdin.flush()
            assert "failed to read group any" in asking.stdout.readline()
        finally:
            os.kill(broker.identity.pid, signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            asking.wait(_SETTLES_S)
        rest, _ = asking.communicate("\n", timeout=90)
    assert asking.returncode == 0
    assert rest == "[]\n"
