"""What `tidemark demo` shows."""
