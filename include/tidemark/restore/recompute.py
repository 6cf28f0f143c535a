"""State that is computed again from the start of the source topics, by the stream's own plan and task loop, in a Spark job."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.operator_acls import Command
from tidemark.names import TaskId, TopicPartition
from tidemark.registry.operator_rights import verify_operator
from tidemark.restore.listener import RestoreListener, RestoreProgress
from tidemark.restore.restorer import RestoreSuspended
from tidemark.settings import Settings
from tidemark.spark_submit import job_lines
from tidemark.temporary_folder import temporary_folders
from tidemark.topology.plan import TopologyPlan

_SCRIPT = Path("spark_jobs") / "recompute.py"


@dataclass(frozen=True)
class Recomputation:
    """The request to the job: these stores of every task in `folder`, from offset 0 to `ends`, next offsets by source topic."""

    plan: TopologyPlan
    stores: frozenset[str]
    ends: Mapping[TaskId, Mapping[str, int]]
    folder: Path

    @property
    def job_name(self) -> str:
        """The name of the Spark application that computes it."""
        return f"{self.plan.application_id}-recompute"

    @classmethod
    def read(cls, descriptor: int) -> Recomputation:
        """Read the request that `recompute` passed in a file that the job inherits, which no other process can have written."""
        with os.fdopen(descriptor, "rb") as file:
            asked: Recomputation = pickle.load(file)
        return asked


def recompute(
    asked: Recomputation, settings: Settings, listener: RestoreListener, should_continue: Callable[[], bool]
) -> None:
    """Run the job, after removing what is in the folder. Blocks as long as the job takes, a Spark start at least.

    Raises `OutcomeUnknown` with the message of a job that fails, `RestoreSuspended` if `should_continue` returns False, and
    `PreflightFailed` if the user may not read the sources. The job ends when its caller does.
    """
    verify_operator(Command.FROM_SOURCE, asked.plan, settings, AdminClient(librdkafka_config(settings)))
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    request, temporary = pickle.dumps(asked), temporary_folders(settings.state_dir, asked.job_name)
    with closing(
        job_lines(_SCRIPT, [], settings, "computing the state again", request=request, temporary=temporary)
    ) as lines:
        _follow(lines, asked, listener, should_continue)


def _follow(
    lines: Iterable[str], asked: Recomputation, listener: RestoreListener, should_continue: Callable[[], bool]
) -> None:
    """Report the job's progress: it writes a line of JSON per batch and source partition."""
    started = time.monotonic()
    summary: dict[TopicPartition, RestoreProgress] = {}
    stores = ", ".join(sorted(asked.stores))
    for task, ends in asked.ends.items():
        for topic, end in ends.items():
            place = TopicPartition(topic, task.partition)
            summary[place] = RestoreProgress(stores, place, 0, 0, end, 0, 0.0)
            listener.on_restore_start(summary[place])
    for line in lines:
        if not should_continue():
            for progress in summary.values():
                listener.on_restore_suspended(progress)
            raise RestoreSuspended("aborted while the state was computed again")
        topic, partition, next_offset = json.loads(line)
        place = TopicPartition(topic, partition)
        elapsed_s = time.monotonic() - started
        summary[place] = replace(summary[place], next_offset=next_offset, records=next_offset, elapsed_s=elapsed_s)
        listener.on_batch_restored(summary[place])
    for progress in summary.values():
        listener.on_restore_end(progress)
