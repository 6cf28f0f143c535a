"""`tidemark acls`: the ACLs that the user who runs an application needs on secured brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.arguments import AsJson, TopologyName, examples

EPILOG = examples(
    "tidemark acls clicks --principal User:streams", "tidemark acls clicks --principal User:ana --operator --running"
)


def acls(
    topology: TopologyName,
    principal: Annotated[str, typer.Option(help="the Kafka principal of the instances, such as User:streams")],
    instances: Annotated[int, typer.Option(min=1, help="the largest number of instances")] = 1,
    audits: Annotated[bool, typer.Option("--audits", help="include what audits, drills and checks need")] = False,
    running: Annotated[
        bool,
        typer.Option("--running", help="ask the brokers for the topic names of a rescaled or upgraded application"),
    ] = False,
    operator: Annotated[
        bool,
        typer.Option("--operator", help="print the ACLs of the commands that change the stopped application instead"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the smallest set of ACLs for an application's instances, as calls of `kafka-acls.sh`; changes nothing.

    With --operator, print those for a person who uses `restore`, `rewind`, `reset`, `rescale`, `upgrade`, `repair`,
    `topics` and `dlq`.
    """
    from tidemark.cli.acls import show_acls
    from tidemark.cli.output import Output

    if operator and audits:
        raise typer.BadParameter(
            "these are the rights of different users; print them one by one", param_hint="--operator"
        )
    output = Output(as_json=as_json)
    show_acls(topology, principal, instances, output, audits=audits, running=running, operator=operator)
