#!/usr/bin/env bash
# check.sh: what make sdk-python runs. PYTHON names an interpreter. Without Python or PyPI it skips, loudly.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
skip() { echo "sdk-python: SKIPPED: $1" >&2; exit 0; }
"$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || skip "$python: is missing, older than 3.10, or without venv"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/tests"
"$work/tests/bin/pip" install -q uv 2>"$work/log" || { cat "$work/log" >&2; skip "PyPI does not answer"; } # it installs in a tenth of the time
"$work/tests/bin/uv" pip install -q --python "$work/tests/bin/python" . 'mcp>=2.3,<3' 'openai-agents>=0.24' 'langchain-core>=1' 'langgraph>=1' langchain-openai pydantic-ai-slim claude-agent-sdk pytest mypy build
"$work/tests/bin/mypy"
"$work/tests/bin/python" -m build -q --installer uv --outdir "$work/dist" .
wheel=$(echo "$work"/dist/*.whl)
[ -e "$work"/dist/*.tar.gz ]
TOOLFLEET_WHEEL=$wheel "$work/tests/bin/python" -m pytest -q -p no:cacheprovider "$@"
# The laws of calls, by the test that handlers in Go are held against, while workers, the server and the tool are killed.
# The tool runs in sandboxes, which see the Python of the system.
mkdir "$work/tools"
if /usr/bin/python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  /usr/bin/python3 -m venv "$work/tools/venv"
  "$work/tests/bin/uv" pip install -q --python "$work/tools/venv/bin/python" "$wheel[mcp]"
  cp ../../test/blackbox/testdata/effects.py "$work/tools/effects-$$.py"
  (cd ../.. && go test ./test/blackbox -run TestRun_LawsHoldForTools -count=1 -v -args -bin="$PWD/bin" -tools="$work/tools" \
    -serve='["{tools}/venv/bin/python", "-m", "toolfleet", "serve", "{tools}/effects-'$$'.py"]')
else
  echo "sdk-python: THE LAWS ARE NOT CHECKED: /usr/bin/python3 is missing, older than 3.10, or without venv" >&2
fi
# The wheel alone, in an empty environment.
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install -q "$wheel"
mkdir "$work/workspace"
said=$(cd "$work" && XDG_STATE_HOME="$work/state" TOOLFLEET_COORDINATOR="$OLDPWD/../../bin/coordinator" "$work/fresh/bin/python" -c '
from toolfleet import Client
with Client.from_embedded(workspace="workspace") as client:
    print(client.call("bash", {"command": "echo hi"}).text, end="")')
[ "$said" = hi ] || { echo "sdk-python: the wheel said: $said" >&2; exit 1; }
echo "sdk-python: passed, $(basename "$wheel") is good"
