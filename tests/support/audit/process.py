"""One instance of the payments application in a process of its own, so that it can be killed: `process.py NAME`."""

from __future__ import annotations

import os
import sys

from confluent_kafka.admin import AdminClient
from tests.support.audit.application import PaymentsApp

from tidemark.failpoint import probe_from_environment
from tidemark.kafka.clients import librdkafka_config
from tidemark.settings import Settings

if __name__ == "__main__":
    settings = Settings.load()
    PaymentsApp(settings, AdminClient(librdkafka_config(settings)), sys.argv[1]).run(probe_from_environment())
    sys.stdout.flush()
    os._exit(0)
