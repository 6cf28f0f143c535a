# One way in: `make help` lists the commands.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
CASES ?= hot,wide,latency
N ?= 60
KEYS ?= 1000000,10000000
RECORDS ?= 1000000
RATE ?= 10000
SEED ?= 1
# Tests often wait for brokers, so four workers keep two cores busy. Each has a broker and Spark, 2 GB, and up to 5 GB more in the
# tests that start whole systems: with less than 20 GB, of the machine or of its container, there are three.
MEMORY := /proc/meminfo /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes
WORKERS ?= $(shell cat $(MEMORY) 2>/dev/null | \
	awk '/^MemTotal/ {kb = $$2} /^[0-9]+$$/ && $$1 / 1024 < kb {kb = $$1 / 1024} END {print (kb > 20e6 ? 4 : 3)}')
export PYTHONUNBUFFERED := 1
# Where it is set, as in many images, every process would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup jars quix demo stop smoke crash chaos cluster audit-faults audit-cost letters restores change drill oncall registry page page-demo failover peers fuzz test unit docs nightly bench restore-bench latency-bench reads-bench standby-bench fmt lint browser promtool

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## the Python environment in .venv, from the hash-locked requirements.txt and requirements-dev.txt

.venv/.ready: requirements.txt requirements-dev.txt requirements-tools.txt .ci/setup
	@bash .ci/setup requirements-dev.txt

jars: setup
	@$(BIN)/tidemark jars kafka spark

# Quix Streams, the other side of a benchmark, needs other versions of what Tidemark needs.
QUIX := .tools/quix
quix: $(QUIX)/.ready

$(QUIX)/.ready: bench/quix/requirements.txt .venv/.ready
	@.tools/bin/uv venv --quiet --clear --python $(BIN)/python $(QUIX)
	@.tools/bin/uv pip sync --quiet --require-hashes --python $(QUIX)/bin/python bench/quix/requirements.txt
	@touch $@

demo: setup ## broker, Airflow and the three examples, live; the address of the page and the login are printed
	@$(BIN)/tidemark demo

# Without `setup`, which would change the packages of what still runs, and needs the network.
stop: ## end exactly what demo (or `tidemark up`) started
	@if [ -x $(BIN)/tidemark ]; then $(BIN)/tidemark down; else echo "nothing was set up here, so nothing runs"; fi

smoke: jars ## 300 000 events through the whole stack, compared with an independent count
	@$(BIN)/python tests/system/smoke/run.py

crash: jars ## kill the instance at every step of a commit, and compare everything with a recomputation
	@$(BIN)/python -m tests.system.crash.run

chaos: MINUTES = 60
chaos: SEED = 1
chaos: GUARANTEE = exactly_once
chaos: jars ## MINUTES=60 SEED=1 GUARANTEE=exactly_once all that a stream stands on fails under load; compared with a recomputation
	@$(BIN)/python -m tests.system.chaos.run --minutes $(MINUTES) --seed $(SEED) --guarantee $(GUARANTEE)

cluster: jars ## a stream on a Spark standalone cluster with two workers; an executor, a worker, the instance, the broker killed
	@$(BIN)/python -m tests.system.cluster.run

audit-faults: jars ## faults planted in topics and code, each caught by its expectation; healthy runs with crashes pass
	@$(BIN)/python -m tests.system.audit.run

audit-cost: jars ## RECORDS=1000000 RATE=10000 what an audit costs, and the rate that the stream beside it keeps
	@$(BIN)/python -m tests.system.audit.cost --stream --records $(RECORDS) --rate $(RATE)

letters: jars ## a million records at once that cannot be read, on a heap of 1 GB: one dead letter each
	@$(BIN)/python -m tests.system.dead_letters.run

restores: jars ## N=60 restores and faults drawn at random, each compared with a recomputation
	@$(BIN)/python -m tests.system.restores.run --n $(N)

drill: jars ## the drill DAG on a running stream: healthy, tampered with, and empty, idle or purged
	@$(BIN)/python -m tests.system.drill.run

page: jars browser ## how fast the Streams page is with 20 streams and a month of history
	@$(BIN)/python -m tests.system.page.run

page-demo: browser ## every view of the Streams page of a running demo, in a browser; then sends it bad records, kills an instance, pauses the broker
	@$(BIN)/python -m tests.system.page.demo

oncall: jars ## restores and approvals through a real Airflow's REST API; its parts and each step of a restore killed
	@$(BIN)/python -m tests.system.oncall.run

registry: setup ## REGISTRY=http://127.0.0.1:8081 what tests take for a schema registry's answers, compared with those of a real one
	@test -n "$(REGISTRY)" || { echo "which registry? make registry REGISTRY=http://127.0.0.1:8081"; exit 2; }
	@REGISTRY_UNDER_TEST="$(REGISTRY)" $(BIN)/python -m pytest -p no:xdist tests/integration/kafka/test_schema_registry.py

failover: jars ## an instance or its machine lost, or stopped: how long until its tasks commit, and who answers; beside Kafka Streams
	@$(BIN)/tidemark jars bench
	@$(BIN)/python -m tests.system.failover.run --report var/failover.md

change: jars ## from 4 to 8 to 3 tasks and to another version, each killed at every step, input arriving, compared with a recomputation
	@$(BIN)/python -m tests.system.change.run

peers: jars ## eighteen topologies on Kafka Streams and on Tidemark, compared value by value
	@$(BIN)/tidemark jars bench
	@$(BIN)/python tests/system/peers/run.py

fuzz: CASES = 10000
fuzz: setup ## CASES=10000 SEED=1 drawn topologies and inputs on Kafka Streams' TopologyTestDriver and on Tidemark's tasks, compared
	@$(BIN)/tidemark jars bench
	@$(BIN)/python tests/system/fuzz/run.py --cases $(CASES) --seed $(SEED)

test: jars quix browser promtool lint ## lint, then every test, on real brokers
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

nightly: jars ## every harness that `make test` leaves out, one after the other, and one table
	@$(BIN)/python -m tests.system.nightly.run

unit: setup ## the tests without a broker, Spark or a running Airflow, with fewer examples than `make test`
	@$(BIN)/python -m pytest tests/unit --numprocesses 3 --hypothesis-profile brief

docs: setup ## the documentation as a site in var/site; a link that leads nowhere fails
	@umask 077 && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: jars quix ## CASES=hot,wide,latency against Kafka Streams in the same run
	@$(BIN)/tidemark jars bench
	@$(BIN)/python bench/run.py --cases $(CASES)

restore-bench: jars ## KEYS=1000000,10000000 a lost state from each source, beside Kafka Streams
	@$(BIN)/tidemark jars bench
	@$(BIN)/python bench/restore.py --keys $(KEYS)

latency-bench: jars ## the time from an event to the first committed output that contains it, beside Kafka Streams
	@$(BIN)/tidemark jars bench
	@$(BIN)/python bench/latency.py

reads-bench: INSTANCES = 1 3
reads-bench: jars ## INSTANCES="1 3" reads of a store over HTTP while its stream runs, beside Kafka Streams
	@$(BIN)/tidemark jars bench
	@$(BIN)/python bench/reads.py --instances $(INSTANCES) --report var/reads.md

standby-bench: jars ## how far the copies of a standby lag while an instance works off a backlog
	@$(BIN)/python bench/standby_lag.py

fmt: setup ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

browser:
	@bash .ci/browser

promtool:
	@bash .ci/promtool

lint: setup docs ## ruff, mypy --strict, the layers, and the links of the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
