# Prerequisites: Python 3.10 or newer with venv, and Java 17.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin

# The Python of Spark's workers and of its search for data sources.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
# SPARK_HOME takes precedence over the Spark in the environment.
unexport SPARK_HOME

# The editable install links file by file: repeat it when dependencies or the set of files change, not for new contents.
FILES := $(shell { cat setup.cfg pyproject.toml; find spark_log datasource jobs conf -type f -not -name '*.pyc' | LC_ALL=C sort; } 2>/dev/null | sha256sum | cut -c1-16)
# ALL: everything that tests and benchmarks need.  RUN: the half of it that runs a job.
ALL := $(VENV)/installed-all-$(FILES)
RUN := $(VENV)/installed-run-$(FILES)
LINKED := $(if $(wildcard build/__editable__*),,links-are-gone)
PIP_INSTALL = rm -rf $(VENV)/installed-* build && $(BIN)/python -m pip install --disable-pip-version-check --editable

.PHONY: setup quickstart test test-kafka test-s3 test-gcs test-azure test-sparks test-matrix test-standalone test-yarn check sim chaos chaos-flow bench bench-kafka bench-clients pictures flames drill release-check docs docs-site promises clean links-are-gone

setup: $(ALL)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

links-are-gone:

# pip shows its progress when it downloads, and is quiet when it only repeats the links.
$(ALL): QUIET := $(if $(wildcard $(VENV)/installed-all-*),--quiet)
$(ALL): $(VENV)/bin/python $(LINKED)
	@$(if $(QUIET),,echo "Installing pylog, and all that its tests need, in $(VENV): 1.9 GB")
	@$(PIP_INSTALL) '.[spark,s3,server,dev,examples]' $(QUIET)
	@touch $(ALL) $(RUN)

$(RUN): QUIET := $(if $(wildcard $(VENV)/installed-*),--quiet)
$(RUN): $(VENV)/bin/python $(LINKED)
	@$(if $(QUIET),,echo "Installing pylog, Spark and the quickstart's events in $(VENV): 0.9 GB")
	@$(PIP_INSTALL) '.[spark,server,examples]' $(QUIET)
	@touch $(RUN)

quickstart: $(RUN)
	SPARK_CONF_DIR=$(CURDIR)/conf $(BIN)/python jobs/quickstart.py

# One process runs the tests that share a Spark session, the others the rest, which wait about half of their time:
# see tests/conftest.py.
test: setup
	$(BIN)/python -m pytest --numprocesses 4

# With a real Kafka broker.  The first run downloads its jars (60 MB) into .pylog/kafka.
test-kafka: setup
	$(BIN)/python -m pytest -m kafka tests/kafka

# On two S3 servers, versitygw and SeaweedFS, which Go builds the first time into ~/.cache/pylog-tests.
# Example: `make test-s3 SERVER=seaweed`.
test-s3: setup
	$(BIN)/python -m pytest -m s3 $(if $(SERVER),-k $(SERVER)) tests/servers tests/spark/test_spark_s3.py

# On fake-gcs-server, which Go builds the first time.  gcsfs would ask for the kind of a bucket by gRPC with TLS.
test-gcs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gcs]'
	GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false $(BIN)/python -m pytest -m gcs tests/servers

# With Azurite, which npm downloads.
test-azure: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[abfs]'
	$(BIN)/python -m pytest -m azure tests/store/test_azure.py

# On the Spark versions that pylog supports, which pip downloads (400 MB each) into ~/.cache/pylog-tests.
test-sparks: setup
	$(BIN)/python -m pytest -m sparks tests/spark/test_spark_versions.py

# Each Spark and each Python once, in environments that pip makes (0.9 GB each, one at a time).  Example:
# `make test-matrix MATRIX=all`, `make test-matrix MATRIX="4.0@3.13 /path/of/a/nightly/pyspark-4.4.0.dev0.tar.gz@3.12"`.
test-matrix: setup
	$(BIN)/python -m pytest -m matrix -o faulthandler_timeout=3600 tests/spark/test_spark_matrix.py

# On a standalone cluster of Spark, whose master and workers are in its package for pip: 13 minutes.
test-standalone: setup
	$(BIN)/python -m pytest -m standalone tests/spark/test_spark_standalone.py

# On Hadoop's YARN, whose servers (60 MB) are fetched the first time; pip fetches an environment to ship (100 MB).
test-yarn: setup
	$(BIN)/python -m pytest -m yarn tests/servers/test_yarn.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py tests/docs/test_prose.py

sim: setup
	$(BIN)/python -m simulation.log_sim --seeds 20000 --jobs 2
	$(BIN)/python -m simulation.replica_sim --seeds 2000 --jobs 2
	$(BIN)/python -m simulation.quorum_sim --seeds 5000 --jobs 2
	$(BIN)/python -m simulation.coordinator_sim --seeds 2000 --jobs 2
	$(BIN)/python -m simulation.flow_sim --seeds 500 --jobs 2
	$(BIN)/python -m simulation.gateway_sim --seeds 2000 --jobs 2
	$(BIN)/python -m simulation.month

# Random runs of a stream over a log, compared with a model: first Spark's calls without a JVM, then real Spark.
# Last, coordinators on a quorum and their clients under random faults.  Example: `make chaos SEEDS=1000 SPARK_SEEDS=5 QUORUM_ROUNDS=200`.
chaos: setup
	$(BIN)/python -m tests.spark.random_runs --jobs 2 --seeds $(or $(SEEDS),200)
	$(BIN)/python -m tests.spark.random_runs --engine spark --seeds $(or $(SPARK_SEEDS),2)
	QUORUM_ROUNDS=$(or $(QUORUM_ROUNDS),50) $(BIN)/python -m pytest -q tests/chaos/test_quorum_coordinators.py tests/chaos/test_quorum_clients.py -k random

# Kill and stop processes of flows, writers and a coordinator at random, with a checker on the output; then Spark's workers.
# Example: `make chaos-flow FLOW_TROUBLES=20`, which are twenty without a coordinator and twenty with one.
chaos-flow: setup
	FLOW_TROUBLES=$(or $(FLOW_TROUBLES),500) $(BIN)/python -m pytest -q tests/chaos/test_killed_flow.py -k storm
	FLOW_KILLS=$(or $(FLOW_KILLS),50) $(BIN)/python -m pytest -q tests/spark/test_spark_flow.py -k killed

bench: setup
	set -e; for file in benchmarks/[!_]*.py; do echo "== $$file"; $(BIN)/python $$file; done

# Measure how cost grows, what an object store costs, a busy month and a million commits (an hour); write docs/pictures
# and the tables of docs/measurements.md.  Then take pictures of the console (eight minutes; needs Chromium).
pictures: setup
	$(BIN)/python benchmarks/growth.py --json docs/pictures/figures.json
	$(BIN)/python benchmarks/object_store.py --json docs/pictures/figures.json
	$(BIN)/python benchmarks/busy_month.py --json docs/pictures/figures.json
	$(BIN)/python benchmarks/million_commits.py --json docs/pictures/figures.json
	$(BIN)/python benchmarks/_pictures.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/_console_pictures.py

# Compare pylog with Spark's Kafka connector and a real broker.
# Example: `make bench-kafka ROWS=1000000 BENCH="--parts write,read"`.  Three replicas: `BENCH="--parts write --replicas 3"`.
bench-kafka: setup
	$(BIN)/python -m benchmarks.beside_kafka $(if $(ROWS),--rows $(ROWS)) $(BENCH)

# Compare the clients with librdkafka and kafka-python, one message at a time, with a real broker.
bench-clients: setup
	$(BIN)/python benchmarks/clients.py --peers librdkafka,kafka-python $(if $(ROWS),--rows $(ROWS)) $(BENCH)

# Profile a write and a read in Spark's JVM: shares of CPU time, and flame graphs in .pylog/flames.
flames: setup
	$(BIN)/python benchmarks/_flames.py

# Lose checkpoints, an object, a whole log and a coordinator: the drill of docs/operations.md, on a scratch log.
drill: setup
	$(BIN)/python -m pytest -q tests/cli/test_drill.py

# Build what is published, check it, and try it in a bare environment.  Example: `make release-check URL=https://host/pylog`.
release-check: $(VENV)/bin/python
	deploy/release_check.sh $(BIN)/python $(URL)

docs: setup
	$(BIN)/python docs/generate.py

# The pages as a site with a sidebar and search, in .pylog/site.  A link that leads nowhere is an error.
docs-site: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python docs/site.py

# The promises of the pages, by section, with the tests that fail if one is broken.
promises: setup
	$(BIN)/python -m tests.promises

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
