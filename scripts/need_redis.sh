# Check for Redis' server; install it, or print how to get it.
set -eu
have() { command -v redis-server >/dev/null 2>&1; }
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Redis (apt-get install redis-server)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server >/dev/null
    have && exit 0
fi
echo "Redis' server is missing: apt-get install redis-server" >&2
exit 1
