# Check for Graphviz; install it, or print how to get it.
set -eu
have() { command -v dot >/dev/null 2>&1; }
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Graphviz (apt-get install graphviz)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends graphviz >/dev/null
    have && exit 0
fi
echo "Graphviz is missing: apt-get install graphviz" >&2
exit 1
