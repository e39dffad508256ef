# Run the tests of a tier: sh scripts/run_tests.sh PYTHON PROCESSES EXPRESSION [OPTION_OF_PYTEST...]
#
# Tests on Spark share one session, in a process of their own beside the others. Tests of Django run in
# processes of their own, because a process has one set of Django's settings. Each group has a cache of
# its own, where `--last-failed` finds what failed.
set -u
python=$1 processes=$2 tier=$3
shift 3
spark_log=$(mktemp) && trap 'rm -f "$spark_log"' EXIT
failed=0

# Run one group, named like its cache. A group without a test is no failure.
run() {
    group=$1
    shift
    "$python" -m pytest -q --durations=10 -o cache_dir=".pytest_cache/$group" "$@"
    status=$?
    [ "$status" = 0 ] || [ "$status" = 5 ]
}

run spark -m "spark and ($tier)" --ignore=tests/django "$@" >"$spark_log" 2>&1 &
spark=$!
run main -n "$processes" --dist worksteal -m "not spark and ($tier)" --ignore=tests/django "$@" || failed=1
run django -n "$processes" --dist worksteal -m "$tier" tests/django "$@" || failed=1
tail -n +1 -f --pid="$spark" "$spark_log"
wait "$spark" || failed=1
exit "$failed"
