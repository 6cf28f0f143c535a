"""How fast state is rebuilt here: rates that drills measured, for the estimates of restore plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.drill.report import StoreDrill, Way
from tidemark.facts.database import FactsDatabase
from tidemark.facts.drills import past_drills
from tidemark.restore.when import told_time
from tidemark.settings import Settings
from tidemark.start.ways import MEASURED, Rates

FEWEST_OFFSETS = 10_000
FEWEST_BYTES = 1_000_000
"""What a drill must have read to say anything of more: of less, most of the time is that of connecting and opening."""

_OFFSETS, _BYTES = "changelog_offsets_per_s", "copied_bytes_per_s"


@dataclass(frozen=True)
class MeasuredRates:
    """Rates of one application, and in a line where each comes from."""

    rates: Rates
    told: str


def rates_of(stores: Iterable[StoreDrill], fetched: Iterable[tuple[int, float]]) -> dict[str, float]:
    """The fields of `Rates` that a drill has measured. `fetched` are bytes of a savepoint's store and the seconds they took.

    Stores are rebuilt side by side, so each rate is that of one store while others are at work.
    """
    whole = [store for store in stores if store.way is Way.CHANGELOG and store.keys]
    measured = {
        _OFFSETS: _rate(
            [(store.end_offset - store.from_offset, store.seconds) for store in whole], fewest=FEWEST_OFFSETS
        ),
        _BYTES: _rate(list(fetched), fewest=FEWEST_BYTES),
    }
    return {name: rate for name, rate in measured.items() if rate is not None}


def _rate(measured: Sequence[tuple[int, float]], *, fewest: int) -> float | None:
    """All of it per second; None where it is too little to tell."""
    amount, seconds = sum(one for one, _ in measured), sum(seconds for _, seconds in measured)
    return round(amount / seconds, 1) if amount >= fewest and seconds > 0 else None


def newest_rates(reports: Iterable[Mapping[str, Any]]) -> MeasuredRates:
    """`last_rates` of drill reports as JSON, the newest first. Reads nothing."""
    found: dict[str, tuple[float, str]] = {}
    for report in reports:
        for name, rate in report.get("rates", {}).items():
            found.setdefault(
                name, (rate, f"measured by the drill {report['drill_id']}, {told_time(report['ended_ms'])}")
            )
    rates = replace(MEASURED, **{name: rate for name, (rate, _) in found.items()})
    sources = [found[name][1] if name in found else "assumed, no drill has measured it" for name in (_OFFSETS, _BYTES)]
    return MeasuredRates(rates, told_rates(rates, *sources))


def told_rates(rates: Rates, offsets_from: str, bytes_from: str) -> str:
    """What an estimate rests on, in a line."""
    offsets = f"{rates.changelog_offsets_per_s:,.0f} changelog offsets/s"
    copied = f"{rates.copied_bytes_per_s / 1e6:,.1f} MB/s of a savepoint"
    if offsets_from == bytes_from:
        return f"{offsets} and {copied} ({offsets_from})"
    return f"{offsets} ({offsets_from}), {copied} ({bytes_from})"


def last_rates(settings: Settings, application_id: str) -> MeasuredRates:
    """The newest rates that drills of an application measured, `MEASURED` where none has. Blocks. Raises `FactsUnavailable`."""
    facts = FactsDatabase(settings)
    try:
        return newest_rates([drill.report for drill in past_drills(facts, application_id)])
    finally:
        facts.close()
