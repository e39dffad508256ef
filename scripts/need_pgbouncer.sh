# Check for PgBouncer; install it, or print how to get it. Its tests are skipped without it.
set -eu
have() { PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null 2>&1; }
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing PgBouncer (apt-get install pgbouncer)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pgbouncer >/dev/null || true
    have && exit 0
fi
echo "PgBouncer is missing, so its tests are skipped: apt-get install pgbouncer" >&2
