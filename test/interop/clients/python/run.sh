#!/usr/bin/env bash
# The client that openapi-python-client makes.
set -euo pipefail
skip() { printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2; exit 0; }
python=${PYTHON:-python3}
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "$python: is missing, older than 3.11, or without venv"
made=$(mktemp -d) && trap 'rm -rf "$made"' EXIT
"$python" -m venv "$made/venv"
"$made/venv/bin/pip" -q install openapi-python-client==0.29.1 || skip "PyPI does not answer"
cp config.yaml scenario.py "$made" && cd "$made"
venv/bin/openapi-python-client generate --path "$TOOLFLEET_OPENAPI" --output-path api --meta none --config config.yaml >log
! grep -A8 WARNING log || { echo "something is left out" >&2; exit 1; }
venv/bin/python scenario.py
