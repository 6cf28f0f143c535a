"""The audit's declarations, which Spark executes: ranges of batches, expectations, contracts."""
