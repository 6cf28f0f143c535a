"""The facts that plans take from drills: suspected copies, and measured rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.drill.test_verdicts import NOW, OTHER, TASK, compared, differs, drill, equal, found, savepoint

from tidemark.database import FactsDatabase
from tidemark.operations.drill_history.history import DrillHistory
from tidemark.operations.drill_history.rates import FEWEST_BYTES, FEWEST_OFFSETS, last_rates, newest_rates, rates_of
from tidemark.operations.drill_history.report import RebuildMethod
from tidemark.operations.drill_history.table import write_drill
from tidemark.recovery.candidates import MEASURED
from tidemark.recovery.evidence import StateCopy
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.settings import Settings
from tidemark.verdict import Verdict

HOUR = 3_600_000


def copy(kind, savepoint_id=""):
    location = f"/saved/app/{savepoint_id}/{TASK}.json" if savepoint_id else f"/state/0/app/{TASK}/rocksdb/n"
    return StateCopy(kind, None, location)


@pytest.mark.parametrize(
    ("kind", "savepoint_id", "suspected"),
    [
        (SourceOfState.LOCAL, "", True),
        (SourceOfState.STANDBY, "", False),
        (SourceOfState.SAVEPOINT, savepoint(NOW - HOUR), False),
        (SourceOfState.SAVEPOINT, savepoint(NOW), False),
        (SourceOfState.SAVEPOINT, savepoint(NOW + HOUR // 2), True),
        (SourceOfState.SAVEPOINT, savepoint(NOW + HOUR), True),
        (SourceOfState.SAVEPOINT, savepoint(NOW + 2 * HOUR), True),
    ],
)
def test_should_suspect_copies_made_from_a_store_since_it_was_last_found_correct(kind, savepoint_id, suspected):
    history = DrillHistory(found(equal(NOW), differs(NOW + HOUR)), MEASURED, "")
    why = history.suspicion(TASK, "n", copy(kind, savepoint_id))
    assert (why is not None) == suspected
    if why is not None:
        assert f"the drill d{NOW + HOUR} (" in why
        assert "found 3 keys that differ between it and its changelog" in why
        assert f"only when `{kind.value}` is asked for" in why
    assert history.suspicion(OTHER, "n", copy(kind, savepoint_id)) is None
    assert history.suspicion(TASK, "m", copy(kind, savepoint_id)) is None
    right = DrillHistory(found(differs(NOW), equal(NOW + HOUR)), MEASURED, "")
    assert right.suspicion(TASK, "n", copy(kind, savepoint_id)) is None


# --- rates


def rebuilt(offsets, seconds, **more):
    return compared(**{"from_offset": 5, "end_offset": 5 + offsets, "seconds": seconds, "keys": 4, **more})


@pytest.mark.parametrize(
    ("stores", "fetched", "rates"),
    [
        ([], [], {}),
        ([rebuilt(FEWEST_OFFSETS - 1, 1.0)], [(FEWEST_BYTES - 1, 1.0)], {}),
        (
            [rebuilt(FEWEST_OFFSETS, 0.5)],
            [(FEWEST_BYTES, 0.25)],
            {"changelog_offsets_per_s": 2 * FEWEST_OFFSETS, "copied_bytes_per_s": 4 * FEWEST_BYTES},
        ),
        (
            [rebuilt(30_000, 1.0), rebuilt(10_000, 3.0), rebuilt(99_999, 0.1, way=RebuildMethod.SAVEPOINT)],
            [(1_000_000, 1.0), (5_000_000, 1.0)],
            {"changelog_offsets_per_s": 10_000.0, "copied_bytes_per_s": 3_000_000.0},
        ),
        # Nothing came of it, so it took no time either.
        ([rebuilt(FEWEST_OFFSETS, 0.01, keys=0, verdict=Verdict.FAILED)], [], {}),
        ([rebuilt(FEWEST_OFFSETS, 0.0)], [(FEWEST_BYTES, 0.0)], {}),
    ],
)
def test_should_measure_a_rate_only_when_there_was_enough_to_measure(stores, fetched, rates):
    assert rates_of(stores, fetched) == rates


def measured(at_ms, **rates):
    return replace(drill(at_ms, compared()), rates=rates)


def test_should_take_each_rate_from_the_newest_drill_that_measured_it_and_name_the_drill(tmp_path):
    settings = Settings.load(var_dir=tmp_path)
    assumed = last_rates(settings, "app")
    assert assumed == newest_rates([])
    assert assumed.rates == MEASURED
    assert assumed.summary == (
        "250,000 changelog offsets/s and 200.0 MB/s of a savepoint (assumed, no drill has measured it)"
    )
    facts = FactsDatabase(settings)
    for report in (
        measured(NOW, changelog_offsets_per_s=10.0, copied_bytes_per_s=2e6),
        measured(NOW + 2 * HOUR, changelog_offsets_per_s=1234.5),
        replace(measured(NOW + 3 * HOUR, copied_bytes_per_s=9.0), application_id="other"),
        measured(NOW + 4 * HOUR),
    ):
        write_drill(facts, report)
    facts.close()
    found_rates = last_rates(settings, "app")
    assert found_rates.rates == replace(MEASURED, changelog_offsets_per_s=1234.5, copied_bytes_per_s=2e6)
    assert f"1,234 changelog offsets/s (measured by the drill d{NOW + 2 * HOUR}, " in found_rates.summary
    assert f"2.0 MB/s of a savepoint (measured by the drill d{NOW}, " in found_rates.summary
