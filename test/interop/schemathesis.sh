#!/bin/sh
# Tries the HTTP API of a coordinator for some seconds with requests that schemathesis makes of its
# description: no answer may be a server error, or one that the description does not have. Objects that
# the examples name are made before, and most requests name them. It cannot make the lines of JSON of an import, and no archives.
set -eu
coordinator=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "skipped: there is no python3" >&2; exit 0; }
folder=$(mktemp -d)
pid=
trap 'test -z "$pid" || { kill "$pid"; wait "$pid" || true; }; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install schemathesis==4.32.5 || { echo "skipped: schemathesis does not install" >&2; exit 0; }
echo '{"steps": [{"text": "I look.", "tool_calls": [{"id": "c1", "name": "list", "arguments": {}}]}, {"text": "Done."}]}' >"$folder/model.json"
HOME=$folder "$coordinator" http --data "$folder/data" --model "script:$folder/model.json" --ask-for list --http-rate 0 >"$folder/out" &
pid=$!
until test -s "$folder/out"; do sleep 0.2; kill -0 "$pid"; done
url=$(sed 's/.*"url":"\([^"]*\)".*/\1/' "$folder/out")
token=$(cat "$(sed 's/.*"token_file":"\([^"]*\)".*/\1/' "$folder/out")")
"$folder/venv/bin/python" "$here/testdata/schemathesis.py" "$url" "$token" >"$folder/schemathesis.toml"
failed=
for phases in examples,coverage,stateful fuzzing; do # the last phase of a run gets what time the others leave
  "$folder/venv/bin/schemathesis" --config-file "$folder/schemathesis.toml" run "$url/openapi.json" -H "Authorization: Bearer $token" --phases "$phases" --max-time $((seconds / 2)) \
    --continue-on-failure --request-timeout 90 --exclude-operation-id import-session --exclude-operation-id unpack-archive \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,ignored_auth,unsupported_method || failed=1
done
test -z "$failed"
