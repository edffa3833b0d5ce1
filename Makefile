# `make` lists the targets. Stamp files in .venv avoid repeated work.
unexport PYTHONDONTWRITEBYTECODE # else each process that a test starts compiles all modules, and pytest all tests, again
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
KERNEL_SOURCES := setup.py $(wildcard tools/kernels/* parser/*.py parser/*/*.py parser/*/*/*.py signals/someip/kernels/*.py lake/parquet/kernels/*.py)
JARS := $(shell find spark_jobs/logstore/src/main -name '*.java') spark_jobs/pom.xml spark_jobs/logstore/pom.xml
DEMO_SECONDS ?= 60
MINUTES ?= 5
HISTORIES ?= 1000
PROCESSES ?= 2
PYTEST = $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadscope
LONG := $(BIN)/pytest -o faulthandler_timeout=0
UPGRADE ?= --upgrade
VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' common/__init__.py)
PYTHONS ?= $(PYTHON)
PLATFORM = $(if $(PLATFORMS),--platform $(PLATFORMS))
PUSH ?= --load

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.kernels ## create .venv from the lock file, install pcaplake, compile the kernels

$(VENV)/.locked: requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install it, or choose another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "cannot create .venv: on Debian, install python3-venv" >&2; exit 1; }
	@$(BIN)/python deploy/docker/needed.py --only uv >$(VENV)/uv.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --require-hashes --python $(BIN)/python -r requirements.lock || \
		$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock # uv does not read pip.conf
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	KERNELS=none $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.kernels: $(VENV)/.installed $(KERNEL_SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@

$(VENV)/.jars: $(VENV)/.installed $(JARS)
	$(BIN)/python -m pcaplake.spark_jobs.jars
	@touch $@

$(VENV)/.tools: .ci/tools
	@.ci/tools tshark strace prometheus chromium chromedriver=chromium-driver
	@touch $@

jars: $(VENV)/.jars ## download the jars for Spark and compile its log store (docs/spark.md)

demo: setup ## create a sample drive, ingest it, decode its signals, show the tables, a query and a plot
	rm -rf demo
	$(BIN)/pcaplake sample demo/drive --mix drive --seconds $(DEMO_SECONDS)
	$(BIN)/pcaplake ingest demo/drive --lake demo/lake --profile demo/drive/profile.yaml
	$(BIN)/pcaplake signals --lake demo/lake --databases demo/drive/databases.yaml
	$(BIN)/pcaplake tables --lake demo/lake
	@$(BIN)/python docs/examples/query.py demo/lake
	@$(BIN)/python docs/examples/plot_signal.py demo/lake VehicleSpeed

demo-fleet: setup ## three workers on local S3, SQS and DynamoDB; one is killed, and every row arrives exactly once
	$(BIN)/python -m tools.demo_fleet

test: PROCESSES = 3 # on two cores: tests of services often wait
test: setup $(VENV)/.tools $(VENV)/.jars lint types architecture ## everything that CI runs
	$(PYTEST)

unit: setup ## the quick tests that need only Python: no JVM, no services, no network
	$(PYTEST) --dist worksteal -m "unit and not slow" --ignore tests/integration --ignore tests/k8s # they have none

check: setup $(VENV)/.jars lint types architecture ## lint, types, import rules and the quick tests
	$(PYTEST) -m "not slow"

lint: $(VENV)/.installed ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed ## mypy, strict
	$(BIN)/mypy

architecture: $(VENV)/.installed ## import rules (import-linter)
	$(BIN)/lint-imports --no-logo

bench: setup $(VENV)/.tools ## throughput from captures to committed rows, by step, compared with other tools (docs/benchmarks.md)
	$(BIN)/python -m bench

bench-guard: setup ## compare bytes per row and calls per row with the recorded ones
	$(BIN)/python -m bench.guard

bench-commit: setup ## CPU time of a commit with 0 to 1 M live files
	$(BIN)/python -m bench.commit

bench-parquet: setup ## the Parquet writer compared with pyarrow
	$(BIN)/python -m bench.parquet

bench-fleet: setup ## commits, adds, messages, lag and cost on local services, compared with deltalake (docs/benchmarks-fleet.md)
	$(BIN)/python -m bench.fleet

bench-spark: setup $(VENV)/.jars ## cost of the Spark jobs while a fleet runs (docs/benchmarks-spark.md)
	$(BIN)/python -m bench.spark

torture: setup $(VENV)/.tools $(VENV)/.jars ## kill an ingest at 200 random moments; run a fleet with every fault on both local AWS engines
	$(LONG) tests/worker/test_kill.py tests/worker/test_fleet_model.py tests/lake/commit/test_model.py --torture --moments 200 --schedules 20000
	$(LONG) tests/derived/signals --torture --moments 50
	$(MAKE) histories
	$(LONG) tests/integration --torture
	$(LONG) tests/spark_jobs --torture
	PCAPLAKE_TEST_AWS=localstack $(LONG) tests/integration --torture

histories: setup ## random histories over all commands on one machine, with kills and statements of other programs (HISTORIES=1000)
	$(BIN)/python -m tests.worker.histories --count $(HISTORIES) --processes $(PROCESSES)

test-stores: setup ## kill an ingest 30 times on Azurite, MinIO and the local S3; builds MinIO from Go's module proxy (takes minutes)
	CI=1 $(LONG) tests/integration/test_object_stores.py --torture --moments 30

soak: setup ## run a fleet with lost messages, failing services and killed workers at the same time (MINUTES=5)
	$(BIN)/python -m tests.integration.soak --minutes $(MINUTES)

soak-spark: setup $(VENV)/.jars ## workers commit while Spark compacts, Z-orders, vacuums and reads; both get killed (MINUTES=5)
	$(BIN)/python -m tests.spark_jobs.soak_spark --minutes $(MINUTES)

k8s-bin: .k8s/bin ## build etcd, Kubernetes and Helm for `make test-k8s`, from Go's module proxy (takes long)

.k8s/bin: $(wildcard tools/k8s/binaries/*)
	tools/k8s/binaries/build $@
	@touch $@

test-k8s: setup ## test the chart on a real control plane, with pods as processes; needs root, kubectl and `make k8s-bin`
	$(LONG) tests/k8s --torture -rs

fuzz: setup ## run the decoder on mutated captures for ten minutes, guided by coverage, with kernels that check every access
	$(BIN)/python -m tests.fuzz --seconds 300
	$(BIN)/python -m tests.fuzz --seconds 300 --interpreted

local-up: ## start S3, SQS, SNS and DynamoDB on loopback, without Docker
	@$(PYTHON) -m tools.local up

local-down: ## stop these services and delete their data
	@$(PYTHON) -m tools.local down

docs: setup ## generate the pages and chart files that come from the code
	$(BIN)/python -m tools.settings_page > docs/settings.md
	$(BIN)/python -m tools.metrics_page > docs/metrics.md
	$(BIN)/python -m tools.data_dictionary > docs/tables.md
	$(BIN)/python -m tools.protocols_page > docs/protocols.md
	$(BIN)/python -m tools.retries_page > docs/retries.md
	$(BIN)/python -m tools.chart
	$(BIN)/python -m tools.terraform

images: ## build both container images with docker buildx (REGISTRY=host/path, PUSH=--push, PLATFORMS=linux/amd64,linux/arm64)
	docker buildx build --target worker --tag $(REGISTRY)pcaplake:$(VERSION) $(PLATFORM) $(PUSH) .
	docker buildx build --target spark --tag $(REGISTRY)pcaplake-spark:$(VERSION) $(PLATFORM) $(PUSH) .

dist: $(VENV)/.installed ## build the sdist and, from it, the wheels for x86_64 and aarch64, in dist/ (docs/releasing.md)
	$(BIN)/python -m tools.release build

try-dist: ## try the wheel in dist/ on each of PYTHONS, and its sdist without a compiler, as a user without a home
	$(PYTHON) tools/try_dist.py $(PYTHONS)

release-check: setup ## check that all files state the version of common/__init__.py and nothing is uncommitted
	$(BIN)/python -m tools.release check

lock: ## pin all dependencies again, with hashes (UPGRADE= keeps pins that are still valid)
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet pyproject.toml --extra aws --extra otel --extra query --extra spark --extra cluster --extra dev --generate-hashes --no-strip-extras --no-header \
		--no-emit-index-url --python-version 3.11 $(UPGRADE) --output-file requirements.lock

clean: ## delete all build products and demo data, but not your lakes and captures
	rm -rf $(VENV) build dist core/*.so demo bench-data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf *.egg-info
	find parser signals common lake ingest derived worker spark_jobs src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup unit k8s-bin test-k8s test-stores dist try-dist release-check images demo demo-fleet docs test check lint types architecture bench bench-guard bench-commit bench-parquet bench-fleet bench-spark jars torture histories soak soak-spark fuzz local-up local-down lock clean
