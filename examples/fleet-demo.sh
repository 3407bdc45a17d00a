#!/usr/bin/env bash
# A fleet on this machine: one NATS server, two workers, and the session of `make demo`
# over them. While the tests run for the last time, the worker that runs them is
# killed with SIGKILL; when its lease has ended, the other one runs the call again.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=.toolfleet/fleet-demo
rm -rf "$dir"
mkdir -p "$dir"
cp -R examples/wordstats "$dir/wordstats"
git init -q "$dir/wordstats" || true # else its git is that of this repository, which sandboxes do not have
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true' EXIT

# wait_for FILE PATTERN: until a line of the file matches.
wait_for() {
  for _ in $(seq 300); do
    grep -q "$2" "$1" 2>/dev/null && return
    sleep 0.1
  done
  echo "no line that matches '$2' in $1:" >&2
  cat "$1" >&2
  exit 1
}

bin/coordinator serve --model script:examples/wordstats.script.json --listen 127.0.0.1:0 --data "$dir/serve" 2>"$dir/serve.log" &
pids+=($!)
wait_for "$dir/serve.log" 'NATS is at'
url=$(sed -n 's/.*NATS is at \([^;]*\);.*/\1/p' "$dir/serve.log")
fleet=(--nats "$url" --creds "$dir/serve/nats/nats.token")
echo "server   $url"

declare -A worker
for n in 1 2; do
  bin/worker "${fleet[@]}" --data "$dir/workers" --lease 2s --env GOTOOLCHAIN=local --env GOWORK=off 2>"$dir/worker$n.log" &
  pids+=($!)
  wait_for "$dir/worker$n.log" 'takes calls'
  worker[$(sed -n 's/^worker: \([^ ]*\) takes calls.*/\1/p' "$dir/worker$n.log")]=$!
done
echo "workers  ${!worker[*]}"

(
  wait_for "$dir/session.log" '^\[5.1 bash\] ▸ running on'
  victim=$(sed -n 's/^\[5.1 bash\] ▸ running on \([^ ,]*\).*/\1/p' "$dir/session.log" | head -1)
  echo "!!! kill -9 of worker $victim" >&2
  kill -9 "${worker[$victim]}"
) &
pids+=($!)

bin/coordinator run "${fleet[@]}" --model script:examples/wordstats.script.json --workspace "$dir/wordstats" \
  "The tests of this project fail. Find out why, repair it, and show that they pass." 2> >(tee "$dir/session.log" >&2)
echo
echo "What came back into the workspace:"
diff -u examples/wordstats/text/split.go "$dir/wordstats/text/split.go" && exit 1
exit 0
