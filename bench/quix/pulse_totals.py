"""The topology `pulse_totals` written for Quix Streams.

`python pulse_totals.py BOOTSTRAP GROUP SOURCE SINK STATE_FOLDER COMMIT_INTERVAL_MS` runs in the environment of the file
`requirements.txt` beside it, where Tidemark is not installed.
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application
from quixstreams.state import State


def totals(pulse: dict[str, Any], state: State) -> dict[str, Any]:
    """Add one pulse, and return how many the patient has had so far and the sum of their intervals."""
    known = state.get("totals") or {"pulses": 0, "total_ms": 0}
    row = {"pulses": known["pulses"] + 1, "total_ms": known["total_ms"] + pulse["ibi_ms"]}
    state.set("totals", row)
    return {"patient_id": pulse["patient_id"], "beat_ms": pulse["beat_ms"], **row}


def main(bootstrap: str, group: str, source: str, sink: str, state_folder: str, commit_interval_ms: str) -> None:
    """Run until SIGTERM, exactly once. Settings not named here have their defaults."""
    application = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=int(commit_interval_ms) / 1000,
        state_dir=state_folder,
        auto_create_topics=True,
    )
    pulses = application.dataframe(application.topic(source, value_deserializer="json"))
    pulses.apply(totals, stateful=True).to_topic(application.topic(sink, value_serializer="json"))
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
