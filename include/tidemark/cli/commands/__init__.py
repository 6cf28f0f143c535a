"""The declarations of all commands: each module is a command, with its arguments, its options and its help.

A module has a function of its own name, or a `typer.Typer` named `app` with the verbs of a noun: `upgrade.py` declares
`tidemark upgrade plan` and `tidemark upgrade run`. `plan` shows what would happen and changes nothing; `run` does it.

These modules import only what a declaration needs. What a command works with is imported in its function, usually from the
module of the same name in `tidemark.cli`, so that neither help nor completion waits for Kafka's client or for a database.
"""
