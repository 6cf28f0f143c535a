# The one image of the project: Airflow's parts, Spark's master and workers, and the drivers that Airflow launches.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/tidemark
COPY requirements.txt requirements-tools.txt requirements-postgres.txt ./
COPY .ci/setup .ci/setup
# Compiled here, because containers would compile anew what they import.
RUN UV_COMPILE_BYTECODE=1 bash .ci/setup && .tools/bin/uv pip install --no-cache --require-hashes --python .venv/bin/python -r requirements-postgres.txt
COPY . .
ENV PATH=/opt/tidemark/.venv/bin:$PATH TIDEMARK_CACHE_DIR=/opt/jars TIDEMARK_HOME=/opt/tidemark
# Jars are fetched into the image, so that no container needs a network beyond its own.
RUN python -m compileall -q include plugins dags spark_jobs && tidemark jars spark kafka
