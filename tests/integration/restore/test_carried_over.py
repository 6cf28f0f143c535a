"""Custom logged stores in a restore, on a real broker: they keep their contents when these are up to date."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.restore.test_restore_run import SeenTwice, counts_of, items_of, planned, restore
from tests.support.counting import PARTITIONS, CountingApp

from tidemark.recovery.source_of_state import SourceOfState
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import RocksStore, opened
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

WITNESS = b"held here alone"


class OwnStore(RocksStore):
    """Made with its folder alone, as custom stores are."""

    def __init__(self, folder: Path) -> None:
        if (folder / "unreadable").exists():
            raise ValueError("not a store of mine")
        super().__init__(folder, write_buffer_bytes=1 << 20)


def with_own_store(name):
    """Counts in the store `n`, and the same counts in the store `own`, which is custom and logged."""
    topology = Topology(name)
    grouped = topology.stream(f"{name}-in", schema="id STRING").group_by_key()
    grouped.count(name="n", store="n").to(f"{name}-out")
    grouped.count(name="n", store=Materialized("own", custom=f"{__name__}:OwnStore"))
    return topology


def own(app, task=0):
    return app.state / f"0_{task}" / "rocksdb" / "own"


@pytest.fixture
def app(settings, admin, unique):
    """Of each task's custom store one key is in no changelog."""
    made = CountingApp(settings, admin, unique("owning"), topology=with_own_store, source=SeenTwice)
    made.feed(600)
    made.run()
    for task in range(PARTITIONS):
        with opened(own(made, task)) as store:
            value = next(value for _, value in store.items(WHOLE))
            store.put_many([Writes(WHOLE, [WITNESS], [value])], store.checkpoint, None)
    return made


def counted(app):
    """What the custom stores hold, witnesses left out."""
    return Counter(
        {key: n for key, n in counts_of(app, lambda task: own(app, task)).items() if key != WITNESS.decode()}
    )


def test_should_keep_an_up_to_date_custom_store_and_continue_with_it(app):
    said = []
    before = [items_of(own(app, task)) for task in range(PARTITIONS)]
    assert all(WITNESS in dict(items) for items in before)
    _, workspace = planned(app, SourceOfState.CHANGELOG)
    assert any("own: custom, kept" in line for line in workspace.plan().not_rebuilt)
    restore(app, SourceOfState.CHANGELOG, said=said)
    assert [items_of(own(app, task)) for task in range(PARTITIONS)] == before
    assert not [line for line in said if "/own" in line]
    app.feed(400)
    app.run()
    assert counted(app) == app.expected
    assert all(WITNESS in dict(items_of(own(app, task))) for task in range(PARTITIONS))


@pytest.mark.parametrize("harm", ["behind", "unreadable"])
def test_should_restore_a_custom_store_from_its_changelog_when_it_is_not_up_to_date(app, harm):
    said = []
    if harm == "behind":
        with opened(own(app)) as store:
            store.put_many([], replace(store.checkpoint, batch=0), None)
    else:
        (own(app) / "unreadable").touch()
    restore(app, SourceOfState.CHANGELOG, said=said)
    (line,) = [line for line in said if "/own" in line]
    assert line.startswith("store 0_0/own is custom and ")
    assert line.endswith("the instance that opens it rebuilds it from its changelog")
    assert not own(app).exists()
    assert WITNESS in dict(items_of(own(app, 1)))
    app.run()
    assert counted(app) == app.expected
    assert WITNESS not in dict(items_of(own(app)))
