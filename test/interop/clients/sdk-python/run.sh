#!/usr/bin/env bash
# The SDK for Python of this repository.
set -euo pipefail
skip() { printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2; exit 0; }
python=${PYTHON:-python3}
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || skip "$python: is missing, older than 3.10, or without venv"
made=$(mktemp -d) && trap 'rm -rf "$made"' EXIT
"$python" -m venv "$made"
"$made/bin/pip" -q install ../../../../sdk/python || skip "PyPI does not answer"
"$made/bin/python" scenario.py
