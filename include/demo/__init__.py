"""The parts of `tidemark demo`."""
