"""Nodes of the task loop, one kind per module; each implements `tidemark.tasks.operator.Operator`."""
