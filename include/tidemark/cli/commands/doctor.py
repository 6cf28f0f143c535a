"""Is this machine fit to run Tidemark?"""

from __future__ import annotations

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark doctor", "tidemark doctor --json | jq '.lines[] | select(.health != \"ok\")'")


def doctor(as_json: AsJson = False) -> None:
    """Show what this machine needs and lacks: settings, Python and its packages, Java, jars, ports, disk, brokers, Airflow.

    Each line is ok, a warning, or a problem, and says what to do. Changes nothing. Ends with 1 if there is a problem.
    """
    from tidemark.cli.doctor import show_diagnoses
    from tidemark.cli.output import Output

    show_diagnoses(Output(as_json=as_json))
