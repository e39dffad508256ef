# Check for Chromium, which the tests of the web console drive; install it, or print how to get it.
set -eu
have() { command -v chromium >/dev/null 2>&1; }
have && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Chromium (apt-get install chromium)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    have && exit 0
fi
echo "Chromium is missing: apt-get install chromium" >&2
exit 1
