"""Every metric. `docs/metrics.md` has the same table, and a test compares them.

Names are those of Kafka Streams where it has the metric, with base units and `_total` as Prometheus wants them. Kafka Streams'
averages and rates are not metrics of their own: `rate()` of a counter gives them for any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.metrics.metric import Metric, MetricSource, MetricType


def _metric(
    type_: MetricType, source: MetricSource, name: str, unit: str, meaning: str, labels: tuple[str, ...]
) -> Metric:
    return Metric(f"tidemark_{name}", type_, unit, source, labels, meaning)


def _counted(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return _metric(MetricType.COUNTER, MetricSource.INSTANCE, name, unit, meaning, labels)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return _metric(MetricType.GAUGE, MetricSource.INSTANCE, name, unit, meaning, labels)


def _of_store(name: str, unit: str, meaning: str) -> Metric:
    return _metric(MetricType.GAUGE, MetricSource.INSTANCE_AND_STANDBY, name, unit, meaning, ("task", "store"))


def _of_airflow(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return _metric(MetricType.GAUGE, MetricSource.AIRFLOW, name, unit, meaning, labels)


# Instances
TOPOLOGY_INFO = _gauge("topology_info", "info", "always 1; the version of the topology", "topology_version")
STATE = _gauge("state", "boolean", "1 for the present state, 0 for the others", "state")
STATE_SINCE = _gauge("state_since_timestamp_seconds", "seconds", "when the present state began")
TASKS = _gauge("tasks", "tasks", "active tasks that the instance holds")
REBALANCES = _counted(
    "rebalances_total", "rebalances", "assignments by the consumer group that the instance has followed"
)
LAST_REBALANCE = _gauge("last_rebalance_timestamp_seconds", "seconds", "when the last assignment was followed")

BROKER_REACHABLE = _gauge(
    "broker_reachable",
    "boolean",
    "1 if the leaders of the instance's topics answered during the scrape, within seconds",
)
WAITING_FOR_BROKERS = _gauge("waiting_for_brokers", "boolean", "1 while a commit waits for brokers")
BROKER_WAITS = _counted("broker_waits_total", "waits", "waits for brokers that are over")
BROKER_WAIT = _counted("broker_wait_seconds_total", "seconds", "time spent in those waits")

COMMITS = _counted(
    "commits_total", "commits", "transactions by the kind of their commit records: start, batch, tick", "kind"
)
COMMIT_ABORTS = _counted(
    "commit_aborts_total", "commits", "transactions that were aborted, and tried again or given up"
)
COMMIT_LATENCY = _counted(
    "commit_latency_seconds_total",
    "seconds",
    "duration of all transactions, from their begin until the stores are written",
)
COMMIT_LATENCY_MAX = _gauge(
    "commit_latency_max_seconds", "seconds", "the longest of them in the last minute, or in the last two"
)
LAST_COMMIT = _gauge("last_commit_timestamp_seconds", "seconds", "when the last transaction ended")
BATCH_RECORDS = _gauge("batch_size_records", "records", "maximum number of source records in the next batch")

# Tasks
PROCESS_BATCHES = _counted(
    "process_batches_total", "batches", "batches and ticks of the task that were committed", "task"
)
PROCESS_RECORDS = _counted(
    "process_records_total",
    "records",
    "source records processed: the commit records' rows, filtered and bad ones",
    "task",
)
PROCESS_LATENCY = _counted(
    "process_latency_seconds_total",
    "seconds",
    "time in which the task's operators computed what batches change",
    "task",
)
STATE_ROWS = _counted(
    "state_rows_total", "records",
    "rows that reached the stateful nodes, late ones included. `1 - store_put_records_total / state_rows_total` is the share "
    "that the record cache saves",
    "task",
)  # fmt: skip
DROPPED_RECORDS = _counted(
    "dropped_records_total",
    "records",
    "records without a result: `late`, or `bad` and so a dead letter",
    "task",
    "reason",
)
FILTERED_RECORDS = _counted(
    "filtered_records_total", "records", "records that a filter of the topology removed", "task"
)
DEAD_LETTERS = _counted("dead_letters_total", "records", "dead letters written, by their reason", "task", "reason")
PRODUCED_RECORDS = _counted(
    "produced_records_total", "records", "records written to sinks, repartition topics and the topic of dead letters",
    "task", "topic",
)  # fmt: skip
COMMITTED_OFFSET = _gauge(
    "committed_offset", "offset", "the next offset of the task's partition of a source topic", "task", "topic"
)
RECORDS_LAG = _gauge(
    "records_lag", "offsets", "end offset minus committed offset; transaction markers count. Missing if brokers do not answer",
    "task", "topic",
)  # fmt: skip
STREAM_TIME = _gauge(
    "stream_time_timestamp_seconds",
    "seconds",
    "stream time of the task: the newest event. Missing before the first",
    "task",
)

# Stores
STORE_PUTS = _counted(
    "store_put_records_total", "records", "keys written to the store, each once in a batch", "task", "store"
)
STORE_PUT_LATENCY = _counted(
    "store_put_latency_seconds_total", "seconds", "time of writing them to the store", "task", "store"
)
STORE_PUT_CALLS = _counted("store_put_calls_total", "calls", "batches that were written to the store", "task", "store")
STORE_GETS = _counted(
    "store_get_records_total", "records", "keys looked up in the store; not those of the running batch", "task", "store"
)
STORE_GET_LATENCY = _counted("store_get_latency_seconds_total", "seconds", "time of looking them up", "task", "store")
STORE_GET_CALLS = _counted("store_get_calls_total", "calls", "lookups of any number of keys", "task", "store")
STORE_RANGES = _counted("store_range_calls_total", "calls", "scans of a range of keys", "task", "store")
STORE_KEYS = _of_store("store_keys", "keys", "keys in the store, as RocksDB estimates them; exact for stores in memory")
CHANGELOG_OFFSETS = _gauge(
    "changelog_offsets", "offsets",
    "end offset minus first offset of the changelog partition: what a restore reads at most. Transaction markers and compacted "
    "records count",
    "task", "store",
)  # fmt: skip
ROCKSDB: Mapping[str, Metric] = {
    "rocksdb.total-sst-files-size": _of_store(
        "rocksdb_total_sst_files_bytes", "bytes", "bytes on disk in RocksDB's files"
    ),
    "rocksdb.size-all-mem-tables": _of_store(
        "rocksdb_all_mem_tables_bytes", "bytes", "bytes in memory that are not yet in files"
    ),
    "rocksdb.estimate-table-readers-mem": _of_store(
        "rocksdb_table_readers_bytes", "bytes", "memory of indexes and filters, without the block cache"
    ),
    "rocksdb.estimate-pending-compaction-bytes": _of_store(
        "rocksdb_pending_compaction_bytes", "bytes", "bytes that compactions still have to rewrite"
    ),
    "rocksdb.num-running-compactions": _of_store(
        "rocksdb_running_compactions", "compactions", "compactions that run now"
    ),
    "rocksdb.background-errors": _of_store(
        "rocksdb_background_errors", "errors", "errors of RocksDB's own threads since the store was opened"
    ),
}
"""By RocksDB's property. A window store has several column families; their values are added up."""
ROCKSDB_CACHE = _metric(
    MetricType.GAUGE, MetricSource.INSTANCE_AND_STANDBY, "rocksdb_block_cache_bytes", "bytes",
    "bytes in the block cache that all stores of the process share", (),
)  # fmt: skip

# Restores
RESTORES = _counted("restores_total", "restores", "restores of a store that have ended", "store")
RESTORE_RECORDS = _counted("restore_records_total", "records", "changelog records that restores have read", "store")
RESTORE_DURATION = _counted("restore_seconds_total", "seconds", "duration of the restores that have ended", "store")
RESTORE_REMAINING = _gauge(
    "restore_remaining_offsets", "offsets", "offsets that a running restore still has to read", "store", "partition"
)

# Standbys
STANDBY_LAG = _metric(
    MetricType.GAUGE, MetricSource.STANDBY, "standby_lag_offsets", "offsets",
    "end of the changelog minus the copy's offset; transaction markers count", ("task", "store"),
)  # fmt: skip
STANDBY_LAG_TIME = _metric(
    MetricType.GAUGE, MetricSource.STANDBY, "standby_lag_seconds", "seconds",
    "how long ago the copy was last known to be complete. Missing until it has been since it was opened", ("task", "store"),
)  # fmt: skip
STANDBY_RECORDS = _metric(
    MetricType.COUNTER, MetricSource.STANDBY, "standby_update_records_total", "records",
    "changelog records written to the copy", ("task", "store"),
)  # fmt: skip
STANDBY_WHOLE = _metric(
    MetricType.GAUGE, MetricSource.STANDBY, "standby_whole", "boolean",
    "1 if the copy has reached an end of the changelog since it was opened", ("task", "store"),
)  # fmt: skip
STANDBY_FAULT = _metric(
    MetricType.GAUGE, MetricSource.STANDBY, "standby_fault", "boolean",
    "1 if the copy is no longer followed, because its changelog lost records", ("task", "store"),
)  # fmt: skip

# Airflow: topologies, applications, checks, drills, audits, DAGs
TOPOLOGIES_UNLOADABLE = _of_airflow(
    "topologies_unloadable",
    "topologies",
    "topology modules that do not load. Nothing else is known of their applications",
)
APPLICATION_WANTED = _of_airflow(
    "application_wanted", "boolean", "1 if the stream's DAG is on, so that its instances should run", "application"
)
APPLICATION_STATE = _of_airflow(
    "application_state",
    "boolean",
    "1 for the present state on the Streams page, 0 for the others. Missing if the files of its processes cannot be read",
    "application",
    "state",
)
APPLICATION_INSTANCES = _of_airflow(
    "application_instances",
    "instances",
    "instances that are alive. Missing if the files of its processes cannot be read",
    "application",
)
APPLICATION_UNWATCHED = _of_airflow(
    "application_unwatched_instances",
    "instances",
    "instances and standbys that Airflow has launched and no longer watches. Missing if their files cannot be read",
    "application",
)
APPLICATION_LAG = _of_airflow(
    "application_lag_offsets", "offsets", "offsets that wait in all sources. Missing if it is not known", "application"
)
APPLICATION_LAST_COMMIT = _of_airflow(
    "application_last_commit_timestamp_seconds", "seconds", "when the application last committed", "application"
)
FACTS_REACHABLE = _of_airflow(
    "facts_reachable",
    "boolean",
    "1 if the database of facts answers; if 0, checks, drills and audits are missing",
    "application",
)
CHECK_FINDINGS = _of_airflow(
    "check_findings", "findings", "findings of the last run of a check, by verdict", "application", "check", "verdict"
)
CHECK_LAST_RUN = _of_airflow(
    "check_last_run_timestamp_seconds", "seconds", "when the check last ran", "application", "check"
)
DRILLABLE = _of_airflow(
    "drillable", "boolean", "1 if savepoints hold a store of the application, so that it can be drilled", "application"
)
DRILL_VERDICT = _of_airflow(
    "drill_verdict",
    "boolean",
    "1 for the verdict of the last restore drill, 0 for the others",
    "application",
    "verdict",
)
DRILL_LAST_RUN = _of_airflow(
    "drill_last_run_timestamp_seconds", "seconds", "when the last restore drill ended", "application"
)
DRILL_LAST_PASSED = _of_airflow(
    "drill_last_passed_timestamp_seconds",
    "seconds",
    "when the last drill with the verdict ok ended, of the last ten",
    "application",
)
DRILL_RTO = _of_airflow("drill_rto_seconds", "seconds", "RTO that the last drill measured", "application")
DRILL_RPO = _of_airflow("drill_rpo_offsets", "offsets", "RPO that the last drill measured, in offsets", "application")
DRILL_RPO_TIME = _of_airflow("drill_rpo_seconds", "seconds", "RPO that the last drill measured", "application")
DRILL_KEYS = _of_airflow("drill_keys", "keys", "keys that the last drill compared", "application")
DRILL_BYTES = _of_airflow("drill_bytes", "bytes", "bytes that the last drill rebuilt", "application")
AUDIT_VERDICT = _of_airflow(
    "audit_verdict",
    "boolean",
    "1 for the worst verdict of the last audit, 0 for the others",
    "application",
    "verdict",
)
AUDIT_LAST_RUN = _of_airflow(
    "audit_last_run_timestamp_seconds", "seconds", "when the last audit ran that found new batches", "application"
)
SAVEPOINT_TAKEN = _of_airflow(
    "savepoint_taken_timestamp_seconds", "seconds", "when the newest complete savepoint was taken", "application"
)
DAG_ON = _of_airflow("dag_on", "boolean", "1 if the DAG is not paused", "dag_id")
DAG_LAST_RUN = _of_airflow(
    "dag_last_run_timestamp_seconds", "seconds", "when the DAG's last run with this state began", "dag_id", "state"
)

METRICS: tuple[Metric, ...] = (
    *(found for found in list(globals().values()) if isinstance(found, Metric)),
    *ROCKSDB.values(),
)
"""All metrics."""
