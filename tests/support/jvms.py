"""JVMs that live for seconds."""

BRIEF = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Their environment: they end before the optimising compiler pays, and take a third less processor time without it."""
