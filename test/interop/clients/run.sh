#!/usr/bin/env bash
# Clients that generators of others make of docs/openapi.json, and the SDKs, run one scenario against a coordinator: each
# folder has a run.sh, which gets the address and the token as variables. Folders as arguments; default: all.
set -euo pipefail
coordinator=$(realpath "$1")
shift
cd "$(dirname "$0")"
state=$(mktemp -d)
pid=
trap 'test -z "$pid" || { kill "$pid" && wait "$pid" || true; }; rm -rf "$state"' EXIT
echo '{"steps": [{"text": "I write.", "tool_calls": [{"id": "c1", "name": "write", "arguments": {"path": "made.txt", "content": "by the model"}}]}, {"text": "Done."}]}' >"$state/model.json"
HOME=$state "$coordinator" http --data "$state/data" --model "script:$state/model.json" >"$state/out" &
pid=$!
until test -s "$state/out"; do sleep 0.2; kill -0 "$pid"; done
TOOLFLEET_URL=$(sed 's/.*"url":"\([^"]*\)".*/\1/' "$state/out")
TOOLFLEET_TOKEN=$(cat "$(sed 's/.*"token_file":"\([^"]*\)".*/\1/' "$state/out")")
TOOLFLEET_OPENAPI=$(realpath ../../../docs/openapi.json)
export TOOLFLEET_URL TOOLFLEET_TOKEN TOOLFLEET_OPENAPI
failed=
for folder in ${*:-*/}; do
  echo "=== ${folder%/}"
  (cd "$folder" && ./run.sh) || failed="$failed ${folder%/}"
done
test -z "$failed" || { echo "failed:$failed" >&2; exit 1; }
