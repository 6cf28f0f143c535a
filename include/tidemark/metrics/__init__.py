"""Metrics of all processes, in Prometheus's form."""
