"""JVMs that live for seconds."""

BRIEF = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Their environment: they end before the optimising compiler pays, and take a third less processor time without it."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of Spark for small data: to compile a query's code takes longer than to interpret it."""
