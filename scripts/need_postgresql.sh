# Check for PostgreSQL's server programs; install them, or print how to get them.
set -eu
have() { command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing PostgreSQL (apt-get install postgresql)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null
    have && exit 0
fi
echo "PostgreSQL's server is missing: apt-get install postgresql (or put its bin folder, with initdb, into PATH)" >&2
exit 1
