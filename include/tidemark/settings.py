"""Every setting of Tidemark, in one table: environment (`TIDEMARK_…`), then `tidemark.toml`, then the default.

`docs/settings.md` is printed from this table, with the Kafka Streams name of each setting; a test compares the two.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tidemark.errors import InvalidSettings
from tidemark.settings_names import (
    file_entries,
    flat_options,
    is_service_address,
    refuse_password,
    refuse_secrets,
    refuse_unknown,
    variable_of,
)


def project_root() -> Path:
    """Return the absolute path of the checkout: the folder that holds `include/`, or the one that `TIDEMARK_HOME` names."""
    home = os.environ.get("TIDEMARK_HOME")
    return Path(home).resolve() if home else Path(__file__).resolve().parents[2]


def settings_file() -> Path:
    """Return the settings file: `tidemark.toml` in the project, or the file that `TIDEMARK_CONFIG` names."""
    return Path(os.environ.get("TIDEMARK_CONFIG") or project_root() / "tidemark.toml")


def _folder(path: str | Path) -> Path:
    """Return the folder that a setting names: relative ones are in the project, `~` is the user's."""
    return project_root() / Path(path).expanduser()


def stack_file(var_dir: Path) -> Path:
    """Return the path of the file that records what `tidemark up` started."""
    return var_dir / "stack.json"


class _StackSource(PydanticBaseSettingsSource):
    """Reads the ports and addresses that `tidemark up` chose, so that every command finds the running stack by itself."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        default = self.settings_cls.model_fields["var_dir"].default
        file = stack_file(_folder(self.current_state.get("var_dir", default)))
        try:
            recorded = json.loads(file.read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return {}
        if not isinstance(recorded, dict):
            raise InvalidSettings(f"{file} does not hold what `tidemark up` writes: remove it")
        return cast(dict[str, Any], recorded.get("settings", {}))


LONGEST_SESSION_MS = 300_000
"""The most for `session_timeout_ms`, and the time in which a member must poll: a client refuses a longer session."""

SQL_MEMORY_BYTES = 128 << 20
"""The default of `sql_memory_bytes`."""


Options = Annotated[dict[str, str], BeforeValidator(flat_options)]
"""Options of a client by their dotted names."""


def _driver_heap(size: str) -> str:
    """Refuse what the option `-Xmx` of a JVM does not take, and a number of bytes, which is never meant."""
    if not re.fullmatch("[1-9][0-9]*[kKmMgGtT]", size):
        raise PydanticCustomError("heap", "write a number and its unit, one of k, m, g and t, such as 1g")
    return size


def _executor_heap(size: str) -> str:
    """Refuse what Spark does not take for the memory of an executor. A number without a unit counts MiB."""
    if not re.fullmatch("[1-9][0-9]*[kKmMgGtTpP]?[bB]?", size):
        raise PydanticCustomError("heap", "write a number and its unit, one of b, k, m, g, t and p, such as 1g")
    return size


def setting(
    default: Any,
    description: str,
    streams: str = "",
    *,
    least: int | None = None,
    most: int | None = None,
    pattern: str | None = None,
) -> Any:
    """Return a field that also holds its name in Kafka Streams or Kafka. A value outside of these bounds is refused."""
    return Field(
        default, description=description, json_schema_extra={"streams": streams}, ge=least, le=most, pattern=pattern
    )


class Settings(BaseSettings):
    """The settings of one process, frozen. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="TIDEMARK_", frozen=True, extra="forbid")

    bootstrap_servers: str = setting(
        "127.0.0.1:9092", "Kafka brokers, `host:port` with commas", "bootstrap.servers", pattern=r"\S"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "protocol of connections to the brokers", "security.protocol"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = setting(
        "SCRAM-SHA-512", "used with `SASL_…`", "sasl.mechanism"
    )
    sasl_username: str = setting("", "used with `SASL_…`; with `OAUTHBEARER` the client's id", "sasl.jaas.config")
    sasl_password: SecretStr = setting(
        SecretStr(""),
        "used with `SASL_…`; with `OAUTHBEARER` the client's secret; environment only",
        "sasl.jaas.config",
    )
    oauth_token_url: str = setting(
        "", "address of the token endpoint, with `OAUTHBEARER`", "sasl.oauthbearer.token.endpoint.url"
    )
    oauth_scope: str = setting("", "scope of the tokens, with `OAUTHBEARER`", "sasl.jaas.config")
    ssl_ca_location: str = setting(
        "",
        "PEM file of the certificate authorities of the brokers, and of the token endpoint",
        "ssl.truststore.location",
    )
    ssl_certificate_location: str = setting(
        "",
        "PEM file of this client's private key (PKCS #8, not encrypted) and certificate chain, readable by its owner alone",
        "ssl.keystore.location",
    )
    schema_registry_url: str = setting(
        "", 'address of the schema registry, for topics with `value_serde="avro"`', "schema.registry.url"
    )
    schema_registry_user: str = setting("", "user of the schema registry, if it asks for one", "basic.auth.user.info")
    schema_registry_password: SecretStr = setting(
        SecretStr(""), "password of `schema_registry_user`; environment only", "basic.auth.user.info"
    )
    schema_registry_ca_location: str = setting(
        "",
        "PEM file of the certificate authorities of the schema registry; if empty, well-known ones",
        "schema.registry.ssl.truststore.location",
    )
    kafka: Options = setting(
        {},
        "more options of Kafka clients, by librdkafka's names, as a JSON object or a table; those that Java clients also have "
        "apply to Spark's source and Kafka's tools, too",
        "",
    )
    kafka_java: Options = setting({}, "more options of Spark's source and of Kafka's tools, by their Java names", "")

    commit_interval_ms: int = setting(1000, "minimum time between commits", "commit.interval.ms", least=0)
    max_batch_records: int = setting(1_000_000, "maximum number of records in one batch", "max.poll.records", least=1)
    cache_max_bytes: int = setting(
        256 << 20,
        "maximum bytes of updates in one batch, keys and values; after a larger batch the next ones are smaller and commit "
        "earlier",
        "statestore.cache.max.bytes",
        least=1,
    )
    max_batch_bytes: int = setting(
        256 << 20,
        "maximum bytes of Spark's result for one batch, in the driver's memory; after a larger one, batches become smaller",
        "",
        least=1 << 20,
    )
    auto_offset_reset: Literal["earliest", "latest"] = setting(
        "earliest", "where a new application starts reading", "auto.offset.reset"
    )
    replication_factor: int = setting(
        -1,
        "replication factor of topics that Tidemark creates; -1: the broker's default",
        "replication.factor",
        least=-1,
    )
    num_partitions: int = setting(
        4, "partitions of sources and sinks that Tidemark creates (`topics create`, demo)", "num.partitions", least=1
    )
    session_timeout_ms: int = setting(
        10_000,
        "time without a heartbeat after which the group removes a member; the brokers set bounds, too",
        "session.timeout.ms",
        least=1,
        most=LONGEST_SESSION_MS,
    )
    transaction_timeout_ms: int = setting(
        10_000,
        "time after which the broker aborts an open transaction; must be longer than the longest commit",
        "transaction.timeout.ms",
        least=1,
    )
    max_timestamp_ahead_ms: int = setting(
        3_600_000,
        "maximum time by which an event may be later than its record's Kafka timestamp; a later one makes a dead letter",
        "(timestamp extractor)",
        least=0,
    )
    commit_record_retention_ms: int = setting(
        604_800_000, "audit window: `min.compaction.lag.ms` of `<app>-commits`", "", least=0
    )
    repartition_purge_interval_ms: int = setting(
        30_000,
        "how often committed records are deleted from repartition topics",
        "repartition.purge.interval.ms",
        least=1,
    )
    broker_timeout_ms: int = setting(
        15_000, "how long to wait for a broker before giving up", "request.timeout.ms", least=1
    )

    var_dir: Path = setting(
        Path("var"), "folder of logs, facts and records of running processes; relative to the project", ""
    )
    facts_url: SecretStr = setting(
        SecretStr(""),
        "SQLAlchemy URL of the SQL database of events and other facts; if empty, SQLite in `<var_dir>/facts.db`; with a "
        "password, in the environment only",
        "",
    )
    listeners: list[str] = setting(
        [], "your own listeners, classes as `package.module:Name`, as a JSON list", "KafkaStreams.setStateListener"
    )
    facts_kept_days: int = setting(
        90,
        "days for which `history_cleanup` keeps events, verdicts, audited ranges and sizes of stores; 0: for ever",
        "",
        least=0,
    )
    pages_kept_days: int = setting(
        90, "days for which pages, quarantined rows and lineage of audits are kept; 0: for ever", "", least=0
    )
    logs_kept_days: int = setting(
        30,
        "days for which logs of instances and tasks, and runs in Airflow's database, are kept; 0: for ever",
        "",
        least=0,
    )
    rto_s: int = setting(
        300,
        "seconds for which a stream may not run, or not commit, before an alert is raised; 0: no alert",
        "",
        least=0,
    )
    alert_callback: str = setting(
        "",
        "your own function, as `package.module:function`, that is called with each alert; if empty, alerts are only logged",
        "",
    )
    trace_endpoint: str = setting(
        "",
        "URL to which instances send traces of their batches (OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`); "
        "https unless it is on loopback; if empty, none are sent",
        "",
    )
    instance_queue: str = setting(
        "",
        "Airflow queue of the tasks that launch instances, and of operations, which act on instances; if empty, Airflow's "
        "`default_queue`; the DAG processor's setting counts",
        "",
    )
    standby_queue: str = setting(
        "",
        "Airflow queue of the tasks that launch standbys: the machine that serves it runs them; if empty, that of instances; "
        "the DAG processor's setting counts, and each standby warns if it shares a rack with the instance of a task",
        "",
    )
    state_dir: Path = setting(Path("var/state"), "folder of task directories; relative to the project", "state.dir")
    savepoint_location: str = setting(
        "",
        "folder or fsspec URL of savepoints, such as `s3://…`, without a password; a folder is relative to the project; if "
        "empty, `savepoints` in `var_dir`",
        "",
    )
    savepoints_kept: int = setting(5, "complete savepoints that `tidemark savepoint expire` keeps", "", least=1)
    last_savepoint_timeout_ms: int = setting(
        10_000, "how long taking a last savepoint may take when Airflow stops a stream; 0: none is taken", "", least=0
    )
    query_port: int = setting(
        0,
        "port on which each instance and standby answers queries over HTTP; 0: any free port, which its run file names; -1: "
        "queries are not answered",
        "application.server",
        least=-1,
        most=65_535,
    )
    query_host: str = setting("127.0.0.1", "address on which queries are answered", "application.server")
    query_advertised_host: str = setting(
        "",
        "host name at which other instances reach this one's queries; if empty, `query_host`, or the machine's name if that is "
        "`0.0.0.0` or `::`",
        "application.server",
    )
    rack: str = setting(
        "",
        "label of what fails together with this machine (a rack, a zone); if empty, the host name; `tidemark state metadata` "
        "shows which tasks have no standby in another one",
        "client.tag.rack",
    )
    query_tokens: SecretStr = setting(
        SecretStr(""),
        "tokens of queries and their scopes as a JSON object, by application; if empty, the file "
        "`<var_dir>/query-tokens/<application>.json`, which is made; environment only",
        "",
    )
    query_token: SecretStr = setting(
        SecretStr(""),
        "token with which `tidemark state` asks; if empty, the first one of the file above; environment only",
        "",
    )
    query_tls_certificate: str = setting(
        "", "PEM file of the certificate chain with which queries are answered over TLS; if empty, without TLS", ""
    )
    query_tls_key: str = setting(
        "",
        "PEM file of its private key, not encrypted, which others than owner and group cannot read; if empty, the file above",
        "",
    )
    query_tls_ca: str = setting(
        "",
        "PEM file of the certificate authorities that those who ask trust, the other processes among them; if empty, the "
        "usual ones",
        "",
    )
    query_page_records: int = setting(10_000, "maximum number of results in one page of a query", "", least=1)
    query_requests_per_second: int = setting(
        200, "queries that each token may send to one process per second; 0: no limit", "", least=0
    )
    query_timeout_ms: int = setting(5_000, "how long one query may read before it is ended", "", least=1)
    query_streams: int = setting(
        16, "watches, exports and streams of events that one process serves at the same time", "", least=1
    )
    query_stall_ms: int = setting(
        10_000, "how long such a stream waits for a client that does not read, before it is disconnected", "", least=1
    )
    query_threads: int = setting(4, "queries that one process answers at the same time", "", least=1)
    audit_time_share: Annotated[float, Field(gt=0, le=1)] = setting(
        0.7, "share of one core's time that an audit uses while it reads (above 0; 1: no pauses)", ""
    )
    audit_records_at_once: int = setting(200_000, "offsets that an audit reads between two pauses", "", least=1)
    audit_batches: int = setting(2000, "maximum number of batches of each task that one audit examines", "", least=1)
    oncall_approvers: list[str] = setting(
        [],
        "ids of the Airflow users who may approve restores, changes and topic settings, as a JSON list; if empty, every user "
        "who may run the DAG",
        "",
    )
    approval_by_another: bool = setting(
        False, "whether the user who triggered a restore, a change or a change of topic settings may not approve it", ""
    )
    oncall_response_timeout_ms: int = setting(
        1_800_000,
        "time after which a restore that was not approved, or whose approval was not used, is not carried out",
        "",
        least=1,
    )
    restore_threads: int = setting(4, "partitions restored in parallel", "num.stream.threads", least=1)
    restore_process_offsets: int = setting(
        300_000,
        "offsets from which on a changelog partition is loaded by its own process; a shorter one is loaded by a thread",
        "",
        least=1,
    )
    verify_memory_bytes: int = setting(
        512 << 20,
        "memory of DuckDB for each store that is compared with its changelog (`restore_threads` at a time); larger data "
        "is written to disk next to the store",
        "",
        least=128 << 20,
    )
    sql_memory_bytes: int = setting(
        SQL_MEMORY_BYTES,
        "memory of DuckDB for each SQL step after a stateful node, per task; a batch that needs more is computed in parts",
        "",
        least=16 << 20,
    )
    store_cache_bytes: int = setting(64 << 20, "RocksDB block cache of one instance", "rocksdb.config.setter", least=0)
    store_write_buffer_bytes: int = setting(
        32 << 20, "RocksDB memtable of each open segment of a store", "rocksdb.config.setter", least=1
    )

    spark_master: str = setting("local[*]", "any Spark master", "num.stream.threads")
    spark_driver_host: str = setting(
        "127.0.0.1",
        "address on which the Spark driver listens and executors of a cluster reach it",
        "",
    )
    spark_driver_memory: Annotated[str, AfterValidator(_driver_heap)] = setting(
        "1g", "heap of the Spark driver, with its unit: `k`, `m`, `g` or `t`", ""
    )
    spark_executor_memory: Annotated[str, AfterValidator(_executor_heap)] = setting(
        "1g", "heap of each executor on a cluster, as Spark reads it; without a unit it is in MiB", ""
    )
    spark_cores_max: int = setting(
        0, "cores of a standalone cluster for one instance; 0: all that are free", "", least=0
    )
    spark_authenticate_secret: SecretStr = setting(
        SecretStr(""), "secret shared by a cluster's master, workers and drivers; environment only", ""
    )
    spark_shuffle_partitions: int = setting(
        4, "tasks after a shuffle of Spark; the statements of batches have none", "", least=1
    )
    spark_extra_conf: Options = setting({}, "more Spark settings, as a JSON object", "")
    cache_dir: Path = setting(Path("~/.cache/tidemark"), "folder of verified jars, outside the project", "")

    @property
    def uses_sasl(self) -> bool:
        """True if clients log in with a user or a token."""
        return self.security_protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def has_own_standby_queue(self) -> bool:
        """True if standbys are to run on another machine than instances."""
        return self.standby_queue not in ("", self.instance_queue)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=settings_file()),
            _StackSource(settings_cls),
        )

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Read environment, file and the running stack, and make relative folders absolute.

        Raises `InvalidSettings` naming the setting, what is wrong with its value, and the remedy. For an unknown name it
        suggests the nearest one.
        """
        cls._check_names()
        try:
            read = cls(**overrides)
        except SettingsError as error:
            raise InvalidSettings(cls._not_json(error)) from None
        except ValidationError as error:
            first = error.errors()[0]
            # An element of a list or table has no variable of its own.
            name = str(first["loc"][0])
            if is_service_address(os.environ.get(variable_of(name), "")):
                raise InvalidSettings(
                    f"setting {name}: Kubernetes has set {variable_of(name)} for one of its Services: set enableServiceLinks: "
                    "false in the pod's spec, or give the Service another name"
                ) from None
            raise InvalidSettings(
                f"setting {name}: {first['msg']}; set {variable_of(name)} or `{name}` in tidemark.toml "
                f"(docs/settings.md lists them)"
            ) from None
        named = {name: str(getattr(read, name)) for name in ("var_dir", "state_dir", "cache_dir")}
        for name in (name for name, folder in named.items() if folder == "."):
            raise InvalidSettings(f"setting {name}: names no folder; set {variable_of(name)} to one, or unset it")
        folders = {name: _folder(folder) for name, folder in named.items()}
        refuse_password(
            "savepoint_location",
            # File systems can be chained.
            read.savepoint_location.split("::"),
            'set it in the environment as an option of fsspec, for an sftp URL FSSPEC_SFTP=\'{"password": "…"}\' '
            "(docs/savepoints.md)",
        )
        refuse_password(
            "schema_registry_url",
            # Several addresses have a comma before the next scheme; a password may have one, too.
            re.split(r",\s*(?=[A-Za-z]+://)", read.schema_registry_url),
            "set TIDEMARK_SCHEMA_REGISTRY_USER and TIDEMARK_SCHEMA_REGISTRY_PASSWORD",
        )
        savepoints = read.savepoint_location or str(folders["var_dir"] / "savepoints")
        if "://" not in savepoints:
            savepoints = str(_folder(savepoints))
        return read.model_copy(update={**folders, "savepoint_location": savepoints})

    @classmethod
    def _not_json(cls, error: SettingsError) -> str:
        """Return the message for a list or a mapping that is not JSON. The value may be a secret, so it is not shown."""
        # The name is only in the text of the error.
        name = next(name for name in cls.model_fields if f'"{name}"' in str(error))
        is_list = isinstance(cls.model_fields[name].get_default(call_default_factory=True), list)
        what = 'list, such as ["alice"]' if is_list else 'object, such as {"name": "value"}'
        return f"setting {name}: {variable_of(name)} is not JSON; write a JSON {what} (docs/settings.md lists them)"

    @classmethod
    def _check_names(cls) -> None:
        file = settings_file()
        entries = file_entries(file, required=bool(os.environ.get("TIDEMARK_CONFIG")))
        refuse_unknown(cls.model_fields, os.environ, entries, file)
        refuse_secrets({n for n, f in cls.model_fields.items() if f.annotation is SecretStr}, entries, file)

    def as_environment(self) -> dict[str, str]:
        """Return these settings as environment variables, for a child process. They contain the passwords."""
        environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                text = value.get_secret_value()
            elif isinstance(value, dict | list):
                text = json.dumps(value)
            else:
                text = str(value)
            environment[variable_of(name)] = text
        return environment
