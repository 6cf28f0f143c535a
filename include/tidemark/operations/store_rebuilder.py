"""Building of an application's stores from the evidence about them, and their comparison with their changelogs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Cache

from tidemark.errors import CopyUnusable, StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.cluster import topic_configs
from tidemark.kafka.committed_reader import first_record_ms, stalled_after
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.clients import Clients
from tidemark.operations.evidence_reader import EvidenceReader, Found
from tidemark.recovery.candidates import MEASURED, Rates
from tidemark.recovery.copy_source import CopySource
from tidemark.recovery.restore_plan import TaskCandidates
from tidemark.restore.bounds import Beginning, EvidenceBounds, Keeping, bounds_of
from tidemark.restore.listener import RestoreListener
from tidemark.restore.restorer import RestoreJob, Restorer
from tidemark.restore.store_builder import StoreBuilder, StoreOpener
from tidemark.restore.table_reader import NoTableReader
from tidemark.restore.task_opener import restore_job
from tidemark.restore.verify import Differing, StoreVerification, verify_folder
from tidemark.topology.plan import StoreSpec


@dataclass(frozen=True)
class StoreRebuilder:
    """Builds stores, each in a folder of its own, and verifies them."""

    clients: Clients
    evidence: EvidenceReader

    def builder(
        self, listener: RestoreListener, probe: Probe, copies: Sequence[CopySource], recomputed: Path | None = None
    ) -> StoreBuilder:
        """Return a builder of this application's stores from `copies`, changelogs, or what has been `recomputed`."""
        settings, clock = self.clients.settings, self.clients.clock
        opener = StoreOpener(settings, Cache(settings.store_cache_bytes), clock)
        stalled_after_s = stalled_after(settings)
        restorer = Restorer(self.clients.client_config, stalled_after_s, listener, probe, NoTableReader(), clock)
        return StoreBuilder(opener, restorer, copies, recomputed)

    def build(
        self,
        builder: StoreBuilder,
        found: Found,
        candidates: TaskCandidates,
        spec: StoreSpec,
        folder: Path,
        should_continue: Callable[[], bool],
        pass_over: Callable[[CopyUnusable], None],
        *,
        rates: Rates = MEASURED,
        may_be_gone: bool = False,
    ) -> RestoreJob:
        """Build one store from the source in `candidates`, or from the best of the others if that copy is unusable. Blocks.

        Returns the job that was done. `pass_over` is called with the error of an unusable copy, and may raise. `rates`
        and `may_be_gone` are as in `EvidenceReader.candidates`. Raises `StartRefused`, `RestoreSuspended`.
        """
        task = found.facts.task
        spoiled: list[str] = []
        while True:
            job = restore_job(self.evidence.plan, found.facts, spec, candidates.committed, self.clients.clock())
            try:
                builder.build(task, job, candidates.candidates[spec.name], folder, should_continue)
                return job
            except CopyUnusable as error:
                pass_over(error)
                spoiled.append(candidates.candidates[spec.name].location)
                others = self.evidence.candidates(
                    found, None, spoiled, stores=[spec.name], rates=rates, may_be_gone=may_be_gone
                )
                if others is None:
                    raise StartRefused(
                        f"task {task} has lost its commit record and offsets during the restore; try again"
                    ) from error
                candidates = others

    def verify(
        self,
        task: TaskId,
        job: RestoreJob,
        folder: Path,
        should_continue: Callable[[], bool],
        differing: Differing | None = None,
    ) -> StoreVerification:
        """Compare a built store with its changelog, see `verify_folder`. Blocks."""
        settings = self.clients.settings
        return verify_folder(
            self.clients.client_config,
            str(task),
            job,
            self._bounds(job, should_continue),
            folder,
            stalled_after_s=stalled_after(settings),
            memory_bytes=settings.verify_memory_bytes,
            should_continue=should_continue,
            differing=differing,
        )

    def beginning(
        self, spec: StoreSpec, changelog: TopicPartition, low: int, end: int, should_continue: Callable[[], bool]
    ) -> Beginning:
        """Return where a store's changelog begins. The first record's time is read only if the store has windows. Blocks."""
        if low == 0 or spec.segment_ms is None:
            return Beginning(low)
        stalled_after_s = stalled_after(self.clients.settings)
        return Beginning(
            low,
            first_record_ms(
                self.clients.client_config,
                changelog,
                low,
                end,
                stalled_after_s=stalled_after_s,
                should_continue=should_continue,
            ),
        )

    def _bounds(self, job: RestoreJob, should_continue: Callable[[], bool]) -> EvidenceBounds:
        """Return which keys of a built store can be compared with its changelog. Blocks."""
        topic, spec, target = job.changelog.topic, job.spec, job.target
        keeping = Keeping.of(topic, topic_configs(self.clients.admin, [topic], self.clients.settings)[topic])
        return bounds_of(
            spec,
            target.stream_time_ms,
            keeping.retention_ms,
            self.beginning(spec, job.changelog, job.low_offset, target.changelog_offset, should_continue),
            self.clients.settings.max_timestamp_ahead_ms,
            self.clients.clock(),
        )
