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

# fail REASON FILE: the end of the file says more.
fail() {
  echo "fleet-demo: $1; the end of $2:" >&2
  tail -n 30 "$2" >&2 || true
  exit 1
}

# wait_for PROCESS FILE PATTERN WHAT: until a line of the file matches. It ends with the process, not
# at a time that a slow machine does not meet; half an hour is for a process that hangs.
wait_for() {
  local since=$SECONDS said=
  until grep -q "$3" "$2" 2>/dev/null; do
    kill -0 "$1" 2>/dev/null || grep -q "$3" "$2" || fail "the process ended before $4" "$2"
    ((SECONDS - since < 1800)) || fail "gave up after 30 minutes of waiting until $4" "$2"
    if [ -z "$said" ] && ((SECONDS - since >= 5)); then
      said=yes
      echo "... waiting until $4" >&2
    fi
    sleep 0.1
  done
}

bin/coordinator serve --model script:examples/wordstats.script.json --listen 127.0.0.1:0 --data "$dir/serve" 2>"$dir/serve.log" &
pids+=($!)
wait_for $! "$dir/serve.log" 'NATS is at' 'the server listens'
url=$(sed -n 's/.*NATS is at \([^;]*\);.*/\1/p' "$dir/serve.log")
fleet=(--nats "$url" --creds "$dir/serve/nats/nats.token")
echo "server   $url"

declare -A worker
for n in 1 2; do
  bin/worker "${fleet[@]}" --data "$dir/workers" --lease 5s --env GOTOOLCHAIN=local --env GOWORK=off 2>"$dir/worker$n.log" &
  pids+=($!)
  wait_for $! "$dir/worker$n.log" 'takes calls' "worker $n takes calls"
  worker[$(sed -n 's/^worker: \([^ ]*\) takes calls.*/\1/p' "$dir/worker$n.log")]=$!
done
echo "workers  ${!worker[*]}"
echo "The session's first command compiles Go's packages in its sandbox, and so does the one after the kill: on a slow machine each takes a minute or two."

bin/coordinator run "${fleet[@]}" --model script:examples/wordstats.script.json --workspace "$dir/wordstats" \
  "The tests of this project fail. Find out why, repair it, and show that they pass." 2> >(tee "$dir/session.log" >&2) &
session=$!
pids+=("$session")
wait_for "$session" "$dir/session.log" '^\[5.1 bash\] ▸ running on' 'the tests run for the last time'
victim=$(sed -n 's/^\[5.1 bash\] ▸ running on \([^ ,]*\).*/\1/p' "$dir/session.log" | head -1)
echo "!!! kill -9 of worker $victim" >&2
kill -9 "${worker[$victim]}"
wait "$session" || fail "the session ended with $?" "$dir/session.log"
(cd "$dir/wordstats" && GOWORK=off go test ./... >../tests.log 2>&1) || fail "the session has ended, but the tests in $dir/wordstats fail" "$dir/tests.log"
echo
echo "What came back into the workspace:"
if diff -u examples/wordstats/text/split.go "$dir/wordstats/text/split.go"; then
  fail 'nothing came back into the workspace' "$dir/session.log"
fi
