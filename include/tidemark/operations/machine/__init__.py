"""Is this machine fit to run Tidemark: what `tidemark doctor` finds out, and what it makes of it."""
