"""The schema of the database of facts, as scripts that Alembic runs in order."""
