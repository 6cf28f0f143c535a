"""An application of which other versions are deployed while plans wait: clicks, beside the ward's patients."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.support.truth.topics import committed_offsets, end_offsets
from tests.system.change.run import ChangeBench
from tests.system.oncall.scene import Scene, expect
from tests.system.oncall.versions import CLICKS

from tidemark.kafka.topics import partition_counts
from tidemark.processes import wait_until
from tidemark.registry.reader import resolved_plan

STREAM_OF_CLICKS = f"stream__{CLICKS}"


class Clicks(ChangeBench):
    """Two partitions; its instance is launched by its DAG."""

    topology = CLICKS

    def __init__(self, bootstrap: str, folder: Path, seed: int, deployed: Path) -> None:
        self.topology_path = deployed
        super().__init__(bootstrap, folder, seed)

    def renew(self) -> None:
        """Take the version that is deployed by now for the application's."""
        sys.modules.pop(f"topologies.{CLICKS}", None)
        importlib.invalidate_caches()
        self.plan = self.load()

    def committed(self) -> dict[tuple[str, int], int | None]:
        """The group's committed offset in every partition that is read now."""
        plan, counts = resolved_plan(self.plan, self.settings, self.admin), partition_counts(self.admin, self.settings)
        places = [(t, n) for s in plan.subtopologies for t in s.source_topics for n in range(counts[t])]
        found = committed_offsets(self.bootstrap, self.application_id, places)
        return {place: found.get(place) for place in places}

    def wait_drained(self, timeout_s: float = 180) -> None:
        """Until the group's committed offsets are the sources' ends."""

        def drained() -> bool:
            found = self.committed()
            return found == end_offsets(self.bootstrap, list(found), "read_uncommitted")

        # Twice: what is read of the first topics may be sent on to the others.
        for _ in range(2):
            expect(wait_until(drained, timeout_s, every_s=0.5), f"not everything is committed after {timeout_s} s")


def begun(scene: Scene) -> None:
    """The clicks have been counted, and their instance runs."""
    scene.airflow.api.wait_for_dag(STREAM_OF_CLICKS, 120)
    scene.airflow.api.unpause(STREAM_OF_CLICKS)
    scene.await_running(180)
    if all(offset in (None, -1, 0) for offset in scene.bench.committed().values()):
        scene.bench.feed(2000)
    scene.bench.wait_drained()
