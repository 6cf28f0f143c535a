"""Interactive queries: reading the stores of running tasks and standbys over HTTP."""
