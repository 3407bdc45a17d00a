#!/bin/sh
# Tries the HTTP API of a coordinator for some seconds with requests that schemathesis makes of its
# description: no answer may be a server error, or one that the description does not have. It cannot
# make the lines of JSON that an import has.
set -eu
coordinator=$1
seconds=$2
command -v python3 >/dev/null || { echo "skipped: there is no python3" >&2; exit 0; }
folder=$(mktemp -d)
mkdir "$folder/workspace"
pid=
trap 'test -z "$pid" || { kill "$pid"; wait "$pid" || true; }; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install schemathesis==4.32.5 || { echo "skipped: schemathesis does not install" >&2; exit 0; }
HOME=$folder "$coordinator" http --workspace "$folder/workspace" --data "$folder/data" --http-rate 0 >"$folder/out" &
pid=$!
until test -s "$folder/out"; do sleep 0.2; kill -0 "$pid"; done
url=$(sed 's/.*"url":"\([^"]*\)".*/\1/' "$folder/out")
token=$(cat "$(sed 's/.*"token_file":"\([^"]*\)".*/\1/' "$folder/out")")
"$folder/venv/bin/schemathesis" run "$url/openapi.json" -H "Authorization: Bearer $token" --max-time "$seconds" --continue-on-failure --request-timeout 90 --exclude-operation-id import-session \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,ignored_auth,unsupported_method
