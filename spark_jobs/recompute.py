"""State computed again from the source topics' start: `recompute.py REQUEST`, a `Recomputation` as `tidemark` writes it.

A line of JSON per batch and source partition says how far it is: `["pulse-events", 0, 200000]`. No output is written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from rocksdict import Cache

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

from spark_jobs.compile import branch_sql
from spark_jobs.kafka_reading import read_between
from spark_jobs.session import spark_session
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, TidemarkError
from tidemark.local.caller import end_with_caller
from tidemark.names import TopicPartition
from tidemark.restore.building import StoreOpener
from tidemark.restore.recompute import Recomputation
from tidemark.settings import Settings
from tidemark.stores.directory import InstanceDirectory, folder_of
from tidemark.stores.marker import NO_STREAM_TIME
from tidemark.tasks.task import Task, TaskInput
from tidemark.topology.plan import SubTopology

Offsets = Mapping[TopicPartition, int]


def main(request: Path) -> ExitCode:
    """Compute and end; the caller's end is the job's, too."""
    end_with_caller()
    try:
        asked, settings = Recomputation.read(request), Settings.load()
        spark = spark_session(settings, f"{asked.plan.application_id}-recompute")
        for subtopology in asked.plan.subtopologies:
            _recompute(spark, settings, asked, subtopology)
    except TidemarkError as error:
        print(f"tidemark: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


def _recompute(spark: SparkSession, settings: Settings, asked: Recomputation, subtopology: SubTopology) -> None:
    ends = {
        TopicPartition(topic, task.partition): end
        for task, by_topic in asked.ends.items()
        if task.subtopology == subtopology.index
        for topic, end in by_topic.items()
    }
    with ExitStack() as opened:
        tasks = _tasks(settings, asked, subtopology, opened)
        for starts, upto in batches(ends, settings.max_batch_records):
            tables = _partial_results(spark, settings, subtopology, starts, upto)
            for task in tasks:
                own = {p.topic: end for p, end in upto.items() if p.partition == task.id.partition}
                given = [table.filter(pc.equal(table.column("p"), task.id.partition)) for table in tables]
                update = task.prepare(TaskInput(own, given, ()), wall_clock_ms())
                task.apply(update, {p.topic: 0 for p in task.changelogs}, 0)
            for place, end in upto.items():
                print(json.dumps([place.topic, place.partition, end]), flush=True)


def batches(ends: Offsets, records: int) -> Iterator[tuple[Offsets, Offsets]]:
    """From offset 0 to `ends` in steps of about so many records: starts and ends of the partitions that a step reads."""
    share = max(1, records // max(1, len(ends)))
    at = dict.fromkeys(ends, 0)
    while left := {place: start for place, start in at.items() if start < ends[place]}:
        upto = {place: min(ends[place], start + share) for place, start in left.items()}
        yield left, upto
        at |= upto


def _tasks(settings: Settings, asked: Recomputation, subtopology: SubTopology, opened: ExitStack) -> list[Task]:
    """The tasks that are asked for, with empty stores; closed with `opened`."""
    directory = InstanceDirectory(asked.folder, asked.plan.application_id, 0)
    opened.callback(directory.close)
    opener = StoreOpener(settings, Cache(settings.store_cache_bytes), wall_clock_ms)
    tasks: list[Task] = []
    for task_id in sorted(task for task in asked.ends if task.subtopology == subtopology.index):
        task = Task(
            application_id=asked.plan.application_id,
            topology_version=asked.plan.version,
            task_id=task_id,
            epoch=1,
            subtopology=subtopology,
            stores={s.name: opener.open(folder_of(asked.folder, task_id, s.name), s) for s in subtopology.stores},
            directory=directory.open_task(task_id),
            next_offsets=dict.fromkeys(subtopology.source_topics, 0),
            stream_time_ms=NO_STREAM_TIME,
            batch=0,
            sink_partitions=dict.fromkeys(subtopology.sink_topics, 1),
        )
        opened.callback(task.close)
        tasks.append(task)
    return tasks


def _partial_results(
    spark: SparkSession, settings: Settings, subtopology: SubTopology, starts: Offsets, ends: Offsets
) -> list[pa.Table]:
    view = f"recomputed_{subtopology.index}"
    read_between(spark, settings, starts, ends).createOrReplaceTempView(view)
    ahead_ms = settings.max_timestamp_ahead_ms
    return [spark.sql(branch_sql(subtopology, branch, view, ahead_ms)).toArrow() for branch in subtopology.branches]


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
