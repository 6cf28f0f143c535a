"""Benchmarks against Kafka Streams. They are not part of the package; see `python bench/run.py --help`."""
