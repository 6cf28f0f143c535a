"""Streams in Airflow: launch or adopt an instance, watch it without a worker slot, relaunch it, and stop it."""

from tidemark.atomic_file import keep_files_private

# Airflow imports this package in every process that runs a Tidemark task or trigger. The processes that these launch
# inherit the setting.
keep_files_private()
