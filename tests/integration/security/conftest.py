"""The secured broker, one for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.secured import Secured, secured


@pytest.fixture(scope="module")
def guarded_broker(mark: str, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with TLS, logins and ACLs."""
    with secured(tmp_path_factory.mktemp("secured"), kafka_jars) as running:
        yield running
