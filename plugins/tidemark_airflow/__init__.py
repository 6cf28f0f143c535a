"""Streams in Airflow: launch or adopt an instance, watch it without a worker slot, relaunch it, stop it."""
