# Every target makes what it needs: a virtual environment of this checkout, and PostgreSQL for what talks to it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait more than they compute: three at a time use two cores. They start the servers that they need.
JOBS ?= 3
SEEDS ?= --new-seeds
TESTS = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=10

.PHONY: demo test test-all test-again test-matrix test-pipeline coverage lint bench bench-fair bench-pipeline bench-limits bench-kafka bench-redis bench-sharded bench-ordered bench-alerts bench-cost soak services clean postgresql java redis

demo: $(STAMP)  ## a workload of several tenants flows through one SQLite file
	@$(BIN)/fairlead demo

test: $(STAMP) postgresql java redis  ## every behaviour once, in minutes: fixed seeds, real servers that it starts itself
	@$(TESTS) -m 'not full and not spark'

test-all: test-matrix test-pipeline  ## everything, in hours: all stores and channels, all seeds and new ones, all of Spark

test-matrix: $(STAMP) postgresql java redis  ## everything but Spark: all stores and channels, outages, new seeds; half an hour
	@$(TESTS) $(SEEDS) -m 'not spark'

test-again: $(STAMP)  ## what failed in the last run, alone
	@$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

test-pipeline: $(STAMP) postgresql java  ## what needs a real Spark; half an hour and more
	@FAIRLEAD_REQUIRE_POSTGRES=1 FAIRLEAD_REQUIRE_ICEBERG=1 $(BIN)/python -m pytest -q --new-seeds --durations=10 -m spark

coverage: $(STAMP) postgresql java redis  ## lines and branches that `make test` runs, by file, and in coverage.json
	@$(TESTS) -m 'not full and not spark' --cov=fairlead --cov-branch --cov-report=term --cov-report=json

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP) postgresql  ## ourselves beside the peers, in one run
	@$(BIN)/python bench/run.py

soak: $(STAMP) postgresql  ## the long runs: the whole trace if it is there, kill -9 at full size, a million tasks
	@$(BIN)/python bench/soak.py
	@$(BIN)/python bench/memory.py

bench-fair: $(STAMP) postgresql java  ## what fairness gives and costs: a real trace, drain rates, long backlogs, owners that die
	@$(BIN)/python bench/fairness.py; $(BIN)/python bench/lcg.py --plot docs/fair-lcg.svg
	@$(BIN)/python bench/ownership.py nodes; $(BIN)/python bench/ownership.py cassandra; $(BIN)/python bench/ownership.py rivals
	@$(BIN)/python bench/fairness.py --backlog 5000000 --only postgres
	@$(BIN)/python bench/fairness.py --backlog 5000000 --only postgres --idle-transaction

bench-pipeline: $(STAMP) postgresql java  ## the pipeline: ten million attempts beside DuckDB, bulk submit beside COPY, a real trace
	@$(BIN)/python bench/pipeline.py; $(BIN)/python bench/pipeline_submit.py; $(BIN)/python bench/pipeline_lcg.py; $(BIN)/python bench/pipeline_replay.py

bench-limits: $(STAMP) java  ## cluster-wide limits while workers are killed and stopped, counted from outside; two minutes
	@$(BIN)/python bench/limits.py

bench-kafka: $(STAMP) postgresql java  ## triggers through Kafka: latency, drain, priorities, a broker that goes away; half an hour
	@$(BIN)/python bench/kafka.py

bench-redis: $(STAMP) postgresql redis  ## triggers through Redis beside the database's: latency and drain; ten minutes
	@$(BIN)/python bench/redis_channel.py

bench-sharded: $(STAMP) redis  ## the sharded queue beside bare commands of Redis, and what its scripts cost the server; five minutes
	@$(BIN)/python bench/sharded.py

bench-ordered: $(STAMP) java  ## ordered queues on SQLite and on Kafka + Cassandra: a real trace, kills, servers away, a million due at once; hours
	@for run in trace kills million steady; do $(BIN)/python bench/ordered.py $$run; $(BIN)/python bench/ordered.py $$run --servers; done
	@$(BIN)/python bench/ordered.py outage --servers

bench-alerts: $(STAMP) java  ## how soon alerts are told, and that none is while all goes well; fifteen minutes
	@$(BIN)/python bench/alerts.py

bench-cost: $(STAMP)  ## Jain's index of worker-seconds on a real trace: tasks counted, tuned weights, cost="runtime"; ten minutes
	@$(BIN)/python bench/cost.py; $(BIN)/python bench/cost.py --shuffle

services: $(STAMP) postgresql java redis  ## the real servers, on loopback, until Ctrl-C
	@$(BIN)/python -m services

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage coverage.json dist

$(STAMP): pyproject.toml constraints.txt
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

postgresql:
	@sh scripts/need_postgresql.sh

java:
	@sh scripts/need_java.sh

redis:
	@sh scripts/need_redis.sh
