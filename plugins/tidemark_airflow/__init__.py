"""Streams in Airflow: launch or adopt an instance, watch it without a worker slot, relaunch it, stop it."""

from tidemark.files import keep_files_private

# Airflow imports this package in every process that runs one of our tasks or triggers, also for what it launches.
keep_files_private()
