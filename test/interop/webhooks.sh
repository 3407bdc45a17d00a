#!/bin/sh
# Runs the receivers of docs/webhooks.md, word for word, with the libraries of Standard Webhooks for
# Python and TypeScript: each must get a test event of a coordinator, and the end of a call, and
# accept their signatures.
set -eu
coordinator=$1
page=$(dirname "$0")/../../docs/webhooks.md
command -v python3 >/dev/null || { echo "skipped: there is no python3" >&2; exit 0; }
folder=$(mktemp -d)
mkdir "$folder/workspace" "$folder/node"
pid=
receiver=
trap 'for p in $receiver $pid; do kill "$p" && wait "$p" || true; done; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install standardwebhooks==1.1.0 || { echo "skipped: standardwebhooks does not install" >&2; exit 0; }
HOME=$folder "$coordinator" http --workspace "$folder/workspace" --data "$folder/data" --webhook-host '127.0.0.1:*' --webhook-plain >"$folder/out" &
pid=$!
until test -s "$folder/out"; do sleep 0.2; kill -0 "$pid"; done
url=$(sed 's/.*"url":"\([^"]*\)".*/\1/' "$folder/out")
token=$(cat "$(sed 's/.*"token_file":"\([^"]*\)".*/\1/' "$folder/out")")
ask() { curl -sSf -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$@"; }
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$page" | sed '1d;$d'; }
hook=$(ask "$url/v1/webhooks" -d '{"url": "http://127.0.0.1:9000/"}')
id=$(echo "$hook" | sed 's/.*"webhook_id":"\([^"]*\)".*/\1/')
WEBHOOK_SECRET=$(echo "$hook" | sed 's/.*"secret":"\([^"]*\)".*/\1/')
export WEBHOOK_SECRET

# received COMMAND: a receiver that is started by a command gets both events.
received() {
  "$@" >"$folder/got" 2>&1 &
  receiver=$!
  ask -X POST "$url/v1/webhooks/$id/test?wait_ms=60000" | grep '"delivered":true' || { cat "$folder/got"; exit 1; }
  ask "$url/v1/calls?wait_ms=60000" -d '{"tool": "bash", "arguments": {"command": "echo hi"}}' >/dev/null
  n=0
  until grep -q call.ended "$folder/got"; do n=$((n + 1)); test $n -lt 300 || { cat "$folder/got"; exit 1; }; sleep 0.2; done
  grep -q webhook.test "$folder/got"
  kill "$receiver" && wait "$receiver" || true
  receiver=
}

block python >"$folder/receiver.py"
received "$folder/venv/bin/python" "$folder/receiver.py"
echo "the receiver in Python has both events"
command -v npm >/dev/null || { echo "skipped in TypeScript: there is no npm" >&2; exit 0; }
block typescript >"$folder/node/receiver.mts"
(cd "$folder/node" && npm install --silent --no-fund --no-audit standardwebhooks typescript@5 @types/node@20 >/dev/null) || { echo "skipped in TypeScript: the packages do not install" >&2; exit 0; }
(cd "$folder/node" && npx tsc --strict --module nodenext --target es2022 --skipLibCheck --types node receiver.mts)
received node "$folder/node/receiver.mjs"
echo "the receiver in TypeScript has both events"
