"""Building of a store's folder, from nothing or from a copy, until it is up to date with Kafka."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Cache

from tidemark.errors import CopyUnusable, OutcomeUnknown, TaskCorrupted, TidemarkError
from tidemark.names import TaskId
from tidemark.recovery.candidates import RecoveryCandidate
from tidemark.recovery.copy_source import CopySource
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore.loader_pool import load_apart
from tidemark.restore.restorer import RestoreJob, Restorer
from tidemark.settings import Settings
from tidemark.stores.directory import folder_of
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Store
from tidemark.stores.rocksdb import RocksStore
from tidemark.tasks.code import code_failed, load_code
from tidemark.topology.plan import StoreSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreOpener:
    """Opens stores by their specification. `clock` returns epoch milliseconds."""

    settings: Settings
    cache: Cache
    clock: Callable[[], int]

    def open(self, folder: Path, spec: StoreSpec) -> Store:
        """Open or create a store. A RocksDB folder with damaged contents is moved aside, and an empty store is opened.

        Raises `StoreFailed` if the folder cannot be opened for another reason: it stays where it is. Raises `UserCodeFailed`
        if a custom store cannot be created.
        """
        if spec.in_memory:
            return MemoryStore()
        if spec.custom is not None:
            folder.mkdir(parents=True, exist_ok=True)
            make: Callable[[Path], Store] = load_code(spec.custom, f"store {spec.name}")
            try:
                return make(folder)
            except (TidemarkError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                raise code_failed(f"store {spec.name}: {spec.custom}", f"creating it in {folder}", error) from error
        try:
            return self.rocks(folder)
        except TaskCorrupted as error:
            broken = folder.with_name(f"{folder.name}.corrupt-{self.clock()}")
            log.warning("%s; moved to %s, the state is rebuilt from the next source", error, broken)
            folder.rename(broken)
            return self.rocks(folder)

    def rocks(self, folder: Path) -> RocksStore:
        """Open or create a RocksDB store. Raises what `RocksStore` raises when it opens."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        return RocksStore(folder, write_buffer_bytes=self.settings.store_write_buffer_bytes, cache=self.cache)

    def bulk(self, folder: Path) -> RocksStore:
        """Create a RocksDB store for bulk loading, which is closed when the load is finished."""
        return RocksStore(folder, write_buffer_bytes=self.settings.store_write_buffer_bytes, bulk=True)


def whole_changelog(job: RestoreJob) -> RecoveryCandidate:
    """Return the whole changelog as the source of a store, without comparing it with other sources."""
    return RecoveryCandidate(SourceOfState.CHANGELOG, None, job.low_offset, job.target.changelog_offset, None, 0.0)


@dataclass(frozen=True)
class StoreBuilder:
    """Builds one store from its chosen source.

    `recomputed` holds stores that were computed again, laid out as a state folder.
    """

    opener: StoreOpener
    restorer: Restorer
    copies: Sequence[CopySource]
    recomputed: Path | None = None

    def bring_level(
        self,
        task: TaskId,
        job: RestoreJob,
        candidate: RecoveryCandidate,
        store: Store,
        folder: Path,
        building: Path,
        should_continue: Callable[[], bool],
    ) -> Store:
        """Return the store in `folder`, brought up to date with `job.target`. `store` is open, and is closed if it is replaced.

        A new folder is built in `building` and renamed, so that a crash leaves the old one. Blocks. Raises
        `RestoreSuspended`, and `CopyUnusable`, which leaves `folder` as it was and `store` closed.
        """
        if candidate.kind is SourceOfState.LOCAL and candidate.copy is not None:
            if not candidate.is_ready:
                since_ms = candidate.copy.checkpoint.commit_time_ms
                try:
                    self.restorer.replay_tail(job, candidate.from_offset, store, should_continue, since_ms=since_ms)
                except CopyUnusable as error:
                    store.close()
                    raise CopyUnusable(f"{candidate.location}: {error}") from error
            return store
        store.close()
        if not job.spec.is_rocksdb:
            # Emptied first: a key whose tombstone is compacted away must not stay.
            shutil.rmtree(folder, ignore_errors=True)
            empty = self.opener.open(folder, job.spec)
            try:
                self.restorer.replay_tail(job, job.low_offset, empty, should_continue, since_ms=self.opener.clock())
            except BaseException as error:
                # Also when the task is given away meanwhile: the store may hold a lock, which a later start needs.
                empty.close()
                if isinstance(error, CopyUnusable):
                    raise OutcomeUnknown(f"{error}; the next start restores it again") from error
                raise
            return empty
        self.build(task, job, candidate, building, should_continue)
        shutil.rmtree(folder, ignore_errors=True)
        self.restorer.probe("restore-before-rename")
        building.rename(folder)
        return self.opener.rocks(folder)

    def build(
        self,
        task: TaskId,
        job: RestoreJob,
        candidate: RecoveryCandidate,
        building: Path,
        should_continue: Callable[[], bool],
    ) -> None:
        """Build a RocksDB folder in `building`, up to date with `job.target`. Removes what was there before. Blocks.

        Raises `CopyUnusable`, `RestoreSuspended`; then the caller removes what was built so far. Raises `StoreFailed` if this
        machine's disk is full.
        """
        shutil.rmtree(building, ignore_errors=True)
        building.parent.mkdir(parents=True, exist_ok=True)
        if candidate.kind is SourceOfState.SOURCE:
            self._take_recomputed(task, job, building)
            return
        if candidate.copy is None:
            self._build_whole(job, building, should_continue)
            return
        copy = candidate.copy
        source = next(source for source in self.copies if source.kind is candidate.kind)
        try:
            source.fetch(copy, task, job.spec.name, building)
            fetched = self.opener.rocks(building)
        except TaskCorrupted as error:
            raise CopyUnusable(f"{copy.location}: {error}") from error
        try:
            checkpoint = fetched.checkpoint
            # A copy that advances may be further than it was when it was listed, never less.
            if checkpoint is None or checkpoint.changelog_offset < copy.checkpoint.changelog_offset:
                raise CopyUnusable("its store is older than its description says")
            if candidate.is_ready:
                # A copy that lacks nothing may be older than the last commit: a standby's names no batch and no offsets.
                fetched.put_many([], job.target, job.first_live_segment)
            else:
                since_ms = checkpoint.commit_time_ms
                self.restorer.replay_tail(job, checkpoint.changelog_offset, fetched, should_continue, since_ms=since_ms)
        except CopyUnusable as error:
            raise CopyUnusable(f"{copy.location}: {error}") from error
        finally:
            fetched.close()

    def _build_whole(self, job: RestoreJob, building: Path, should_continue: Callable[[], bool]) -> None:
        settings = self.opener.settings
        offsets = job.target.changelog_offset - job.low_offset
        if job.spec.source_topic is None and offsets >= settings.restore_process_offsets:
            load_apart(self.restorer, job, building, settings.store_write_buffer_bytes, should_continue)
        else:
            self.restorer.build_whole(job, building, self.opener.bulk, should_continue)

    def _take_recomputed(self, task: TaskId, job: RestoreJob, building: Path) -> None:
        if self.recomputed is None:
            raise CopyUnusable(f"task {task}: the source topics have not been processed again")
        folder_of(self.recomputed, task, job.spec.name).rename(building)
        with closing(self.opener.rocks(building)) as store:
            store.put_many([], job.target, job.first_live_segment)
