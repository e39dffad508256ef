# Every target makes what it needs: a virtual environment in this checkout, and the servers of its tests.
.DEFAULT_GOAL := demo
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
PIPELINE := $(VENV)/.pipeline
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests mostly wait: four processes use two cores.
JOBS ?= 4
# A machine may forbid to keep compiled modules: then each test process and each command that a test
# starts would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
# The order of sets of texts is part of a simulation, so that a seed repeats it.
export PYTHONHASHSEED ?= 0
TESTS = sh scripts/run_tests.sh $(BIN)/python $(JOBS)
SERVERS = postgresql pgbouncer java redis chromium

.PHONY: help demo demo-pipeline docs console-pictures picture test test-nightly test-again test-django6 coverage lint bench bench-fair bench-pipeline bench-cost bench-fleet services clean $(SERVERS)

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

demo: $(RUNTIME)  ## show the four promises on one SQLite file in ten seconds; needs the package only
	@$(BIN)/fairlead demo

demo-pipeline: $(PIPELINE) java  ## take the history of the demo through Spark to a report, in a minute
	@rm -rf demo && mkdir demo
	@echo '+ fairlead demo --keep demo/tasks.db'; $(BIN)/fairlead demo --keep demo/tasks.db --json >demo/promises.json
	@export FAIRLEAD_URL=sqlite:///demo/tasks.db FAIRLEAD_LAKE=demo/lake; \
	echo '+ fairlead pipeline run --out demo/report.html'; $(BIN)/fairlead pipeline run --out demo/report.html
	@printf '%s\n' '' 'The report: demo/report.html. Try next, with --url sqlite:///demo/tasks.db --lake demo/lake:' \
		"   fairlead pipeline sql 'SELECT * FROM gold.fairness'" \
		'   fairlead pipeline tables' '   fairlead pipeline status'

test: $(STAMP) $(SERVERS)  ## run the tests that decide, with fixed seeds, on real servers that it starts
	@$(TESTS) 'not nightly'

test-nightly: $(STAMP) $(SERVERS)  ## run the other tests, with new seeds: more stores and seeds, outages, long runs
	@FAIRLEAD_FUZZ=10000 $(TESTS) 'nightly or fuzz' --new-seeds

test-again: $(STAMP)  ## run the tests that failed in the last run
	@$(TESTS) 'not fuzz or fuzz' --last-failed --last-failed-no-failures none

test-django6: postgresql  ## test the Django integration on Django 6, in a virtual environment of its own; needs Python 3.12 or newer
	@sh scripts/test_django6.sh $(VENV)/.django6

coverage: $(STAMP) $(SERVERS)  ## measure the lines and branches that `make test` runs, without those of Spark; also write coverage.json
	@$(BIN)/python -m pytest -q -n $(JOBS) --ignore=tests/django -m 'not nightly and not spark' --cov=fairlead --cov-branch --cov-report=term --cov-report=json

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
	@rm -rf demo $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage coverage.json dist docs/_build

$(RUNTIME): pyproject.toml constraints.txt
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(PIP) -e .
	@touch $@

$(STAMP): $(RUNTIME)
	@$(PIP) -e '.[dev]'
	@touch $@

$(PIPELINE): $(RUNTIME)
	@echo "installing Spark and the lake's libraries: 60 packages, 1.2 GB"
	@$(PIP) -e '.[pipeline]'
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
