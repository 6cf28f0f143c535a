"""Nodes of the task loop, one kind per module. Each implements `tidemark.tasks.operator.Operator`."""
