"""The HTTP interface does what its description says, for the requests that schemathesis makes of it, on stores of RocksDB."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from tests.support.queries import ALL_TASKS, HeldTasks, ScriptedChanges, fill, stored_key
from tests.support.standby import count as count_value
from tests.unit.queries.test_query_api import api_of

from tidemark.queries.event_feed import EventFeed
from tidemark.queries.part_source import LiveSources
from tidemark.settings import Settings
from tidemark.stores.rocksdb import RocksStore
from tidemark.topology.plan import StoreKind

AUTHORIZATION = {"Authorization": "Bearer all"}
KINDS = {"n": StoreKind.KEY_VALUE, "w": StoreKind.WINDOW, "s": StoreKind.SESSION}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    held = {
        task: {name: RocksStore(folder / f"{task}-{name}", write_buffer_bytes=1 << 20) for name in KINDS}
        for task in ALL_TASKS
    }
    for task, stores in held.items():
        for name, kind in KINDS.items():
            keys = [b"", b"a", "ä".encode(), b"\xff\x00", b"%d" % task.partition]
            fill(stores[name], {stored_key(kind, key, 60_000, 90_000): count_value(len(key)) for key in keys})
    # Every stream ends at once; a test cannot wait for one that goes on.
    ending = threading.Event()
    ending.set()
    live = LiveSources(ScriptedChanges(), EventFeed("1"), ending)
    app = api_of(HeldTasks(held=held), Settings(query_requests_per_second=0, query_timeout_ms=60_000), live=live)
    # Each worker collects this file, and schemathesis takes long to import.
    import schemathesis

    yield schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=AUTHORIZATION)
    for stores in held.values():
        for store in stores.values():
            store.close()


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_should_answer_as_it_describes_itself(described, mode):
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as openapi

    checks = [
        not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
        openapi.unsupported_method,
        openapi.allow_header_conformance,
        openapi.ignored_auth,
    ]
    seen: Counter[int] = Counter()
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
        def answers(case):
            drawn = case.path_parameters.get("store")
            if drawn is not None and drawn not in KINDS:
                # Drawn names are unknown stores, which says little about the others.
                case.path_parameters["store"] = sorted(KINDS)[len(str(drawn)) % len(KINDS)]
            seen[case.call_and_validate(headers=AUTHORIZATION, checks=checks).status_code] += 1

        try:
            answers()
        except Unsatisfiable:
            # Every request without parameters is valid.
            assert mode == "negative"
            assert operation.path in ("/v1/health", "/v1/openapi.json", "/v1/stores")
    assert seen[200] > 0
    assert seen[422] > 0
