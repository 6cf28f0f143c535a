"""Dead letters after they were written: read, replayed, purged (docs/dead-letters.md)."""
