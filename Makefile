# `make` prints what it can do. Stamp files in .venv keep a second call quick.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
KERNELS := $(wildcard parser/*.py parser/protocols/*.py worker/lake/parquet/*.py)
JARS := $(shell find spark_jobs/logstore/src/main -name '*.java') spark_jobs/pom.xml spark_jobs/logstore/pom.xml
DEMO_SECONDS ?= 60
MINUTES ?= 5
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadscope
UPGRADE ?= --upgrade
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PLATFORM = $(if $(PLATFORMS),--platform $(PLATFORMS))
PUSH ?= --load

help: ## print what make can do
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.warm ## make .venv from the lock file, install pcaplake in it, compile the kernels

$(VENV)/.locked: requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install it, or name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no venv: on Debian install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.warm: $(VENV)/.installed $(KERNELS)
	$(BIN)/python -m worker.warm
	@touch $@

$(VENV)/.jars: $(VENV)/.installed $(JARS)
	$(BIN)/python -m spark_jobs.jars
	@touch $@

$(VENV)/.tools: .ci/tools
	@.ci/tools tshark strace prometheus chromium chromedriver=chromium-driver
	@touch $@

jars: $(VENV)/.jars ## fetch the jars for Spark, compile its log store (docs/spark.md)

demo: setup ## make a sample drive, ingest it, show what is in the lake and how to query it
	rm -rf demo
	$(BIN)/pcaplake sample demo/drive --mix drive --seconds $(DEMO_SECONDS)
	$(BIN)/pcaplake ingest demo/drive --lake demo/lake --profile demo/drive/profile.yaml
	$(BIN)/pcaplake tables --lake demo/lake
	@$(BIN)/python docs/examples/query.py demo/lake

demo-fleet: setup ## S3, SQS and DynamoDB on loopback, three workers, one killed; every row once
	$(BIN)/python -m tools.demo_fleet

test: setup $(VENV)/.tools $(VENV)/.jars lint types architecture ## everything CI runs
	$(PYTEST)

check: setup $(VENV)/.jars lint types architecture ## lint, types, import rules and the quick tests
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed ## mypy, strict
	$(BIN)/mypy

architecture: $(VENV)/.installed ## imports point down only
	$(BIN)/lint-imports --no-logo

bench: setup $(VENV)/.tools ## captures to committed rows, by stage, beside other tools (docs/benchmarks.md)
	$(BIN)/python -m bench

bench-commit: setup ## CPU of a commit at 0 to 1 M live files
	$(BIN)/python -m bench.commit

bench-parquet: setup ## the Parquet writer beside pyarrow
	$(BIN)/python -m bench.parquet

bench-fleet: setup ## commits, adds, messages, lag and cost on local services, beside deltalake (docs/benchmarks-fleet.md)
	$(BIN)/python -m bench.fleet

bench-spark: setup $(VENV)/.jars ## what Spark's jobs cost beside a fleet (docs/benchmarks-spark.md)
	$(BIN)/python -m bench.spark

torture: setup $(VENV)/.tools $(VENV)/.jars ## an ingest killed at 200 random moments; a fleet under every fault, on both local engines
	$(BIN)/pytest tests/worker/test_kill.py tests/worker/test_fleet_model.py --moments 200 --schedules 20000
	$(BIN)/pytest tests/integration --torture
	$(BIN)/pytest tests/spark --torture
	PCAPLAKE_TEST_AWS=localstack $(BIN)/pytest tests/integration --torture

soak: setup ## a fleet under everything at once: lost messages, failing services, killed workers (MINUTES=5)
	$(BIN)/python -m tests.integration.soak --minutes $(MINUTES)

soak-spark: setup $(VENV)/.jars ## workers commit while Spark compacts, Z-orders, vacuums and reads; both are killed (MINUTES=5)
	$(BIN)/python -m tests.spark.soak_spark --minutes $(MINUTES)

k8s-bin: .k8s/bin ## etcd, Kubernetes and Helm for the tests on a cluster, from Go's module proxy (long)

.k8s/bin: $(wildcard tools/k8s/binaries/*)
	tools/k8s/binaries/build $@
	@touch $@

test-k8s: setup ## the chart on a real control plane, pods as processes; needs root, kubectl and make k8s-bin
	$(BIN)/pytest tests/k8s --torture -rs

fuzz: setup ## the decoder on mutated captures, guided by coverage, for ten minutes
	$(BIN)/python -m tests.fuzz --seconds 600

local-up: ## S3, SQS and DynamoDB on loopback, without Docker
	@$(PYTHON) -m tools.local up

local-down: ## stop them, forget what they hold
	@$(PYTHON) -m tools.local down

docs: setup ## pages that are made from the code
	$(BIN)/python -m worker.fleet_settings > docs/settings.md
	$(BIN)/python -m worker.telemetry.metrics > docs/metrics.md
	$(BIN)/python -m tools.chart

images: ## both container images, by docker buildx (REGISTRY=host/path, PUSH=--push, PLATFORMS=linux/amd64,linux/arm64)
	docker buildx build --target worker --tag $(REGISTRY)pcaplake:$(VERSION) $(PLATFORM) $(PUSH) .
	docker buildx build --target spark --tag $(REGISTRY)pcaplake-spark:$(VERSION) $(PLATFORM) $(PUSH) .

lock: ## pin every dependency again, with hashes (UPGRADE= keeps the pins that still fit)
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet pyproject.toml --extra aws --extra otel --extra spark --extra cluster --extra dev --generate-hashes --no-header \
		--no-emit-index-url --python-version 3.11 $(UPGRADE) --output-file requirements.lock

clean: ## delete what was made, but not lakes and captures of yours
	rm -rf $(VENV) build dist demo bench-data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf *.egg-info
	find parser worker tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup images demo demo-fleet docs test check lint types architecture bench bench-commit bench-parquet bench-fleet bench-spark jars torture soak soak-spark fuzz local-up local-down lock clean
