# Every target makes what it needs: a virtual environment in this checkout, and the servers of its tests.
.DEFAULT_GOAL := demo
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests mostly wait: four processes use two cores.
JOBS ?= 4
SEEDS ?= --new-seeds
# A machine may forbid to keep compiled modules: then each test process and each command that a test
# starts would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
# The order of sets of texts is part of a simulation, so that a seed repeats it.
export PYTHONHASHSEED ?= 0
# Tests of Django run in processes of their own: a process has one set of Django's settings.
TESTS = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=10 --ignore=tests/django
QUICK = not slow and not full and not spark
SLOW = slow and not full and not spark
DJANGO_CACHE = -o cache_dir=.pytest_cache/django
DJANGO_TESTS = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(DJANGO_CACHE) tests/django

.PHONY: help demo docs console-pictures picture test test-slow test-all test-django6 test-again test-matrix test-pipeline test-fleets fuzz fuzz-million coverage lint bench bench-fair bench-pipeline bench-cost bench-fleet services clean postgresql pgbouncer java redis chromium

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

demo: $(RUNTIME)  ## run the tasks of several tenants through one SQLite file; needs the package only
	@$(BIN)/fairlead demo

test: $(STAMP) postgresql pgbouncer redis  ## test the library in minutes, with fixed seeds; start the servers it needs
	@failed=0; $(TESTS) -m '$(QUICK)' || failed=1; $(DJANGO_TESTS) -m '$(QUICK)' || failed=1; exit $$failed

test-slow: $(STAMP) postgresql pgbouncer java redis chromium  ## test the rest once: Kafka, Cassandra, ZooKeeper, browsers, processes, the pipeline
	@failed=0; $(TESTS) -m '$(SLOW)' || failed=1; $(DJANGO_TESTS) -m '$(SLOW)' || failed=1; exit $$failed

test-all: test-matrix test-pipeline  ## test everything, in hours: all stores, channels and seeds, and all of Spark

test-matrix: $(STAMP) postgresql pgbouncer java redis chromium  ## test all stores and channels without Spark, with outages and new seeds; half an hour
	@failed=0; $(TESTS) $(SEEDS) -m 'not spark' || failed=1; $(DJANGO_TESTS) $(SEEDS) -m 'not spark' || failed=1; exit $$failed

test-django6: postgresql  ## test the Django integration on Django 6, in a virtual environment of its own; needs Python 3.12 or newer
	@sh scripts/test_django6.sh $(VENV)/.django6

test-again: $(STAMP)  ## run the tests that failed in the last run
	@failed=0; $(BIN)/python -m pytest -q --ignore=tests/django --last-failed --last-failed-no-failures none || [ $$? = 5 ] || failed=1; \
	$(BIN)/python -m pytest -q $(DJANGO_CACHE) tests/django --last-failed --last-failed-no-failures none || [ $$? = 5 ] || failed=1; exit $$failed

test-pipeline: $(STAMP) postgresql java  ## run the tests that need Spark; more than half an hour
	@FAIRLEAD_REQUIRE_POSTGRES=1 FAIRLEAD_REQUIRE_ICEBERG=1 $(BIN)/python -m pytest -q --new-seeds --durations=10 -m spark

test-fleets: $(STAMP)  ## simulate forty thousand random fleets on virtual time; half an hour
	@FAIRLEAD_FLEETS=40000 $(TESTS) $(SEEDS) tests/simulation/test_fleet.py

fuzz: $(STAMP) postgresql java redis  ## give each reader of other processes' records 100,000 damaged ones; ten minutes
	@FAIRLEAD_FUZZ=100000 $(TESTS) $(SEEDS) -m fuzz

fuzz-million: $(STAMP)  ## give each reader that needs no server a million damaged records; an hour or more
	@FAIRLEAD_FUZZ=1000000 $(BIN)/python -m pytest -q -s $(SEEDS) -m fuzz tests/unit

coverage: $(STAMP) postgresql pgbouncer java redis chromium  ## measure the lines and branches that `make test test-slow` runs; also write coverage.json
	@$(TESTS) -m 'not full and not spark' --cov=fairlead --cov-branch --cov-report=term --cov-report=json

docs: $(DOCS)  ## build the site into docs/_build/html; a warning is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

console-pictures: $(STAMP) chromium redis  ## take the pictures of the web console for its guide; two minutes
	@$(BIN)/python -m scripts.console_pictures

picture:  ## draw the picture of ARCHITECTURE.md from its text
	@sh scripts/need_graphviz.sh
	@dot -Tsvg docs/explanation/architecture.dot -o docs/explanation/architecture.svg

lint: $(STAMP)  ## check style, types, imports, language and docstrings
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python scripts/check_language.py
	@$(BIN)/python -m scripts.check_docstrings

bench: $(STAMP) postgresql  ## compare Fairlead with other task queues in one run
	@$(BIN)/python bench/run.py

bench-fair: $(STAMP) postgresql  ## measure fair queues: a real trace under limits, drain rates, newcomers, a long backlog
	@for each in lcg_limits fairness newcomers "deep_backlog --equal"; do set -- $$each; $(BIN)/python bench/$$1.py $$2; done

bench-pipeline: $(STAMP) postgresql java  ## measure the pipeline: a real trace, submitted, run, built and reported
	@$(BIN)/python bench/pipeline_lcg.py

bench-cost: $(STAMP)  ## measure shares of worker-seconds: counts, tuned weights, cost="runtime"; ten minutes
	@$(BIN)/python bench/cost.py; $(BIN)/python bench/cost.py --shuffle

bench-fleet: $(STAMP) postgresql  ## measure fleets: 1 to 8 workers, granted tasks, kill -9 under load; ten minutes
	@for run in scale latency kills "kills --store postgres"; do $(BIN)/python bench/fleet.py $$run; done

services: $(STAMP) postgresql java redis  ## start the real servers on loopback until Ctrl-C
	@$(BIN)/python -m services

clean:  ## remove the virtual environment, caches and built files
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage coverage.json dist docs/_build

$(RUNTIME): pyproject.toml constraints.txt
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(PIP) -e .
	@touch $@

$(STAMP): $(RUNTIME)
	@$(PIP) -e '.[dev]'
	@touch $@

$(DOCS): $(STAMP)
	@$(PIP) -e '.[docs]'
	@touch $@

postgresql:
	@sh scripts/need_postgresql.sh

pgbouncer:
	@sh scripts/need_pgbouncer.sh

java:
	@sh scripts/need_java.sh

redis:
	@sh scripts/need_redis.sh

chromium:
	@sh scripts/need_chromium.sh
