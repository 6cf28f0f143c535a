"""Computes state again from the beginning of the source topics: `recompute.py DESCRIPTOR`.

DESCRIPTOR is the number of an open file that contains a `Recomputation`. The job prints one JSON line per batch and source
partition with the next offset: `["pulse-events", 0, 200000]`. It writes no outputs, and calls only the user's functions that
compute the stores.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from rocksdict import Cache

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

from spark_jobs.bounded_read import BoundedReader
from spark_jobs.session import spark_session
from tidemark.atomic_file import keep_files_private
from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, TidemarkError
from tidemark.instance.slices import Slices
from tidemark.names import TopicPartition
from tidemark.parent_death import end_with_caller
from tidemark.recovery.recomputable import recomputed_part
from tidemark.restore.recompute import Recomputation
from tidemark.restore.store_builder import StoreOpener
from tidemark.settings import Settings
from tidemark.stores.directory import InstanceDirectory, folder_of
from tidemark.stream_times import StreamTimes
from tidemark.supervision.instance_log import error_lines
from tidemark.tasks.partials import rows_of_partition
from tidemark.tasks.task import Task, TaskInput
from tidemark.temporary_folder import temporary_folders, use_temporary_folder
from tidemark.topology.plan import SubTopology


def main(request: int) -> ExitCode:
    """Compute the state and return the exit code. The job also ends if its caller ends."""
    keep_files_private()
    end_with_caller()
    try:
        asked, settings = Recomputation.read(request), Settings.load()
        use_temporary_folder(temporary_folders(settings.state_dir, asked.job_name))
        spark = spark_session(settings, asked.job_name)
        for subtopology in asked.plan.subtopologies:
            _recompute(spark, settings, asked, subtopology)
    except TidemarkError as error:
        print(error_lines(error), file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


def _recompute(spark: SparkSession, settings: Settings, asked: Recomputation, subtopology: SubTopology) -> None:
    ends = {
        TopicPartition(topic, task.partition): end
        for task, by_topic in asked.ends.items()
        if task.subtopology == subtopology.index
        for topic, end in by_topic.items()
    }
    part = recomputed_part(subtopology, asked.stores)
    reader = BoundedReader(spark, settings, subtopology, asked.job_name)
    slices = Slices(subtopology, dict.fromkeys(ends, 0), settings.max_batch_records, reader.times)
    with ExitStack() as opened:
        tasks = _tasks(settings, asked, part.subtopology, opened)
        while slices.unread(ends):
            taken = slices.next(ends)
            tables = reader.tables(taken.starts, taken.ends)
            for task in tasks:
                own = {p.topic: end for p, end in taken.ends.items() if p.partition == task.id.partition}
                given = [rows_of_partition(tables[number], task.id.partition) for number in part.pipelines]
                update = task.prepare(TaskInput(own, given, ()), wall_clock_ms())
                task.apply(update, {p.topic: 0 for p in task.changelogs}, 0)
            for place, end in taken.ends.items():
                if end > taken.starts[place]:
                    print(json.dumps([place.topic, place.partition, end]), flush=True)


def _tasks(settings: Settings, asked: Recomputation, subtopology: SubTopology, opened: ExitStack) -> list[Task]:
    """Create the requested tasks with empty stores. They are closed with `opened`."""
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
            stream_times=StreamTimes.none(),
            batch=0,
            sink_partitions=dict.fromkeys(subtopology.sink_topics, 1),
            wall_ms=wall_clock_ms(),
            sql_memory_bytes=settings.sql_memory_bytes,
        )
        opened.callback(task.close)
        tasks.append(task)
    return tasks


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
