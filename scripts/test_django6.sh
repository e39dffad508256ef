#!/bin/sh
# Test the Django integration on Django 6, in the virtual environment $1, which is made if needed.
set -e
newer() {
    for python in "${PYTHON6:-}" python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[234].*/bin/python; do
        # A shim of pyenv is found also where its Python is not chosen, so each one is tried.
        if [ -n "$python" ] && "$python" -c "import venv" 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    echo "Django 6 needs Python 3.12 or newer: install one, or name one in PYTHON6" >&2
    exit 1
}
if [ ! -e "$1/.installed" ] || [ pyproject.toml -nt "$1/.installed" ]; then
    python=$(newer)
    "$python" -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt \
        -e '.[postgres,web,reload]' hypothesis psycopg-pool pytest pytest-asyncio pytest-timeout pytest-xdist
    "$1/bin/pip" install --quiet --disable-pip-version-check 'django>=6,<7'
    touch "$1/.installed"
fi
exec "$1/bin/python" -m pytest -q tests/django
