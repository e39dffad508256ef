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

.PHONY: help demo docs console-pictures picture test test-slow test-all test-django6 test-again test-matrix test-pipeline test-fleets fuzz fuzz-million coverage lint bench bench-fair bench-pipeline bench-pipeline-week bench-limits bench-kafka bench-sharded bench-ordered bench-alerts bench-cost bench-fleet bench-open-transaction bench-failover bench-pooler soak services clean postgresql pgbouncer java redis chromium bench-actions bench-console

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

soak: $(STAMP) postgresql  ## run for long: a whole trace, kill -9 at full size, a million tasks
	@$(BIN)/python bench/soak.py
	@$(BIN)/python bench/memory.py

bench-fair: $(STAMP) postgresql java  ## measure fairness and its cost: a real trace, limits, drain rates, long backlogs, lost owners
	@$(BIN)/python bench/newcomers.py; $(BIN)/python bench/lcg_limits.py; $(BIN)/python bench/deep_backlog.py
	@$(BIN)/python bench/fairness.py; $(BIN)/python bench/lcg.py --plot docs/fair-lcg.svg
	@$(BIN)/python bench/ownership.py nodes; $(BIN)/python bench/ownership.py cassandra; $(BIN)/python bench/ownership.py rivals
	@$(BIN)/python bench/fairness.py --backlog 5000000 --only postgres
	@$(BIN)/python bench/fairness.py --backlog 5000000 --only postgres --idle-transaction

bench-pipeline: $(STAMP) postgresql java  ## measure the pipeline: ten million attempts, bulk submit, a real trace
	@$(BIN)/python bench/pipeline.py; $(BIN)/python bench/pipeline_submit.py; $(BIN)/python bench/pipeline_lcg.py; $(BIN)/python bench/pipeline_replay.py

bench-pipeline-week: $(STAMP)  ## measure a lake with a year of hours and a commit a minute for a week; half an hour
	@$(BIN)/python bench/pipeline_week.py

bench-limits: $(STAMP) java  ## measure cluster-wide limits while workers are killed and stopped; two minutes
	@$(BIN)/python bench/limits.py

bench-kafka: $(STAMP) postgresql java  ## measure triggers through Kafka: latency, drain, priorities, an outage; half an hour
	@$(BIN)/python bench/kafka.py

bench-sharded: $(STAMP) redis  ## measure the sharded queue against bare Redis commands; five minutes
	@$(BIN)/python bench/sharded.py

bench-ordered: $(STAMP) java  ## measure ordered queues on SQLite and on Kafka with Cassandra; hours
	@for run in trace kills million steady; do $(BIN)/python bench/ordered.py $$run; $(BIN)/python bench/ordered.py $$run --servers; done
	@$(BIN)/python bench/ordered.py outage --servers

bench-alerts: $(STAMP) java  ## measure how soon an alert is sent, and false alerts; fifteen minutes
	@$(BIN)/python bench/alerts.py

bench-cost: $(STAMP)  ## measure shares of worker-seconds: counts, tuned weights, cost="runtime"; ten minutes
	@$(BIN)/python bench/cost.py; $(BIN)/python bench/cost.py --shuffle

bench-fleet: $(STAMP) postgresql  ## measure fleets: 1 to 8 workers, granted tasks, kill -9 under load, many queues, held keys; half an hour
	@$(BIN)/python bench/queues.py; $(BIN)/python bench/ordering_keys.py; $(BIN)/python bench/ordering_keys.py --keys 100000 --head DUE; for fault in stop backends restart idle; do $(BIN)/python bench/faults.py $$fault; done; $(BIN)/python bench/fleet.py scale; $(BIN)/python bench/fleet.py latency; $(BIN)/python bench/fleet.py kills; $(BIN)/python bench/fleet.py kills --store postgres

bench-actions: $(STAMP) postgresql  ## measure a bulk retry of 1,000,000 tasks: rate, memory, interruption; ten minutes
	@$(BIN)/python bench/actions.py

bench-console: $(STAMP) postgresql  ## measure the web console beside 5,000,000 tasks and 50,000,000 attempts; two hours and 60 GB
	@for store in postgres sqlite; do $(BIN)/python bench/console.py --store $$store; done

bench-open-transaction: $(STAMP) postgresql  ## measure PostgreSQL beside a transaction open for 30 minutes, at 800 and at 5,000 tasks/s, and its peers; over two hours
	@for rate in 800 5000; do $(BIN)/python bench/open_transaction.py --rate $$rate --beside 1800; done
	@$(BIN)/python bench/open_transaction.py --ordering 6000
	@$(BIN)/python bench/open_transaction_peers.py --beside 1800

bench-failover: $(STAMP) postgresql  ## measure ten failovers of PostgreSQL under load, with synchronous replication and without; ten minutes
	@for run in "synchronous" "asynchronous" "asynchronous --lag 0.5"; do $(BIN)/python bench/failover.py $$run; done

bench-pooler: $(STAMP) postgresql pgbouncer  ## measure submits and a worker through PgBouncer, beside direct connections; three minutes
	@$(BIN)/python bench/pooler.py

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
