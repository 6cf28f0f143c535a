"""One alert of patient monitoring, as its sink topic has it."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class PatientAlert:
    """A patient with a high pulse and a high temperature within a minute."""

    patient: str
    ward: str
    window_start_ms: int
    pulses: int
    celsius: float

    @classmethod
    def of(cls, value: bytes) -> PatientAlert:
        """Parse the value of a record of `alerts`."""
        said = json.loads(value)
        return cls(
            str(said["patient_id"]),
            str(said["ward"]),
            int(said["window_start"]),
            int(said["pulses"]),
            float(said["celsius"]),
        )
