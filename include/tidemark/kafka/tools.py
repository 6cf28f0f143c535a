"""Kafka's own command-line tools, run from the verified jars, so that results can be checked without our code."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tidemark.kafka import class_data, jars, java
from tidemark.kafka.clients import java_properties, java_system_properties
from tidemark.kafka.properties import as_properties, log4j_properties
from tidemark.settings import Settings

MAIN_CLASSES = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
_WITHOUT_BROKER = {"dump-log"}
_CLIENT_OPTION = "--command-config"
# Options that a caller may give instead, including the older ones.
_CLIENT_OPTIONS = (_CLIENT_OPTION, "--consumer.config", "--producer.config")


def kafka_tool(name: str, *arguments: str, settings: Settings | None = None, capture: bool = False) -> tuple[int, str]:
    """Run `kafka-<name>` against the settings' brokers; adds `--bootstrap-server` if it is not given. Blocks.

    Returns its exit code, and its output if `capture` is set; otherwise it prints to this terminal. Raises
    `KeyError` for a tool that is not in `MAIN_CLASSES`, `PreflightFailed` if Java or the jars are missing.
    """
    main = MAIN_CLASSES[name.removeprefix("kafka-")]
    known = settings or Settings.load()
    with tempfile.TemporaryDirectory(prefix="tidemark-") as scratch:
        folder = Path(scratch)
        log4j = folder / "log4j2.properties"
        log4j.write_text(log4j_properties(folder / "tool.log"))
        class_path = jars.ensure("kafka", known)
        command = [
            str(java.find().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log4j}",
            *class_data.java_options(class_data.kafka_archive(class_path)),
            *(f"-D{name}={value}" for name, value in java_system_properties(known).items()),
            "-cp", os.pathsep.join(str(jar) for jar in class_path), main,
            *_connection(name.removeprefix("kafka-"), list(arguments), known, folder), *arguments,
        ]  # fmt: skip
        done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE if capture else None)
        return done.returncode, done.stdout or ""


def tool_rows(said: str) -> list[dict[str, str]]:
    """Parse a table that a tool printed, with tabs between columns and a line of headings; return a dictionary per row."""
    lines = [[cell.strip() for cell in line.split("\t")] for line in said.splitlines() if "\t" in line]
    return [dict(zip(lines[0], cells, strict=False)) for cells in lines[1:]]


def _connection(name: str, arguments: list[str], settings: Settings, folder: Path) -> list[str]:
    added: list[str] = []
    if name in _WITHOUT_BROKER:
        return added
    if not any(argument.startswith(("--bootstrap-server", "--bootstrap-controller")) for argument in arguments):
        added += ["--bootstrap-server", settings.bootstrap_servers]
    if not any(argument.startswith(_CLIENT_OPTIONS) for argument in arguments):
        file = folder / "client.properties"
        file.touch(mode=0o600)
        file.write_text(as_properties(java_properties(settings)))
        added += [_CLIENT_OPTION, str(file)]
    return added
