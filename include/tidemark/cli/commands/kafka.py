"""Run Kafka's own tools on the running stack."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidemark.cli.arguments import examples

# Everything after the tool's name belongs to the tool, `--help` included.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

EPILOG = examples("tidemark kafka consumer-groups --list", "tidemark kafka topics --describe --topic clicks")


def kafka(
    context: typer.Context,
    tool: Annotated[str, typer.Argument(help="such as consumer-groups, topics, transactions, dump-log")],
) -> None:
    """Run Kafka's own tool against the settings' brokers, as in `tidemark kafka consumer-groups --list`."""
    from tidemark.kafka.tools import MAIN_CLASSES, kafka_tool

    if tool.removeprefix("kafka-") not in MAIN_CLASSES:
        raise typer.BadParameter(f"no Kafka tool named {tool}; the tools are {', '.join(MAIN_CLASSES)}")
    code, _ = kafka_tool(tool, *context.args)
    sys.exit(code)
