"""The scripts, one for each change of the schema."""
