"""The command that a plan names can be typed as it is."""

from __future__ import annotations

import shlex

from tidemark.cli.arguments import command_to_run, repeated


def test_should_name_the_topology_and_every_given_option_as_a_shell_reads_them():
    options = [*repeated("--drop", []), *repeated("--add", ['n.city="-"', "n.most"])]
    command = command_to_run("upgrade", "clicks", *options)
    words = shlex.split(command.strip("`"))
    assert words == ["tidemark", "upgrade", "run", "clicks", "--add", 'n.city="-"', "--add", "n.most"]
