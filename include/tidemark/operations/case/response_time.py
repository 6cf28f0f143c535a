"""How long the plan of a change waits for an answer. Imports nothing, because DAG files load it."""

CHANGE_RESPONSE_MS = 3_600_000
"""Time after which a change that was not approved is not carried out; that of a restore is a setting."""
