# Make a virtual environment of the given Python in the given folder, unless it exists.
set -eu
python=$1 venv=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    there=$("$python" --version 2>/dev/null) || there="not there"
    echo "Python 3.11 or later is needed, $python is $there; name another: make PYTHON=python3.12" >&2
    exit 1
fi
"$venv/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
rm -rf "$venv"
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing python3-venv (apt-get install python3-venv)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
fi
"$python" -m venv "$venv" || {
    rm -rf "$venv"
    echo "$python cannot make a virtual environment: apt-get install python3-venv" >&2
    exit 1
}
