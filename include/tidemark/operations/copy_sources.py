"""The list of all places that may hold copies of an application's stores."""

from __future__ import annotations

from tidemark.recovery.copy_source import CopySource
from tidemark.restore.local_copies import LocalCopies
from tidemark.savepoints.copies import SavepointCopies
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import Settings
from tidemark.standby.copies import StandbyCopies
from tidemark.topology.plan import TopologyPlan

_ALL = 1_000_000


def copy_sources(plan: TopologyPlan, settings: Settings) -> list[CopySource]:
    """Return the sources for a restore, which include the state folders; an instance opens its own folder itself."""
    app = plan.application_id
    return [
        LocalCopies(settings.state_dir, app),
        StandbyCopies(settings.state_dir, app),
        SavepointCopies(SavepointRepository(settings.savepoint_location, app)),
    ]


def past_sources(plan: TopologyPlan, settings: Settings) -> list[CopySource]:
    """Return the sources for a point in time: every savepoint, however old, and nothing that advances."""
    return [SavepointCopies(SavepointRepository(settings.savepoint_location, plan.application_id), _ALL)]
