#!/usr/bin/env bash
# Starts compose.yaml by podman-compose and shows what it promises: commands run at level full, without the worker's
# password; when the worker that has a session is removed with its volume, the other one goes on with the workspace.
# With CLUSTER=1 there are three NATS servers, and one of them is removed, too. As root or as an ordinary user.
#
# It pulls nothing: the images are made of bin/, and of BASE with bash, which debootstrap makes where none can be pulled:
#   debootstrap --variant=minbase trixie DIR && tar -C DIR -c . | podman import - localhost/base
# Jaeger and Prometheus, which are pulled, are not started.
set -euo pipefail
cd "$(dirname "$0")"
bin=$(realpath ../../bin) base=${BASE:-localhost/base} project=toolfleet-proof
nats=(nats) files=(-f compose.yaml)
if [ "${CLUSTER:-}" ]; then nats+=(nats-2 nats-3) files+=(-f compose.cluster.yaml); fi
dir=$(mktemp -d)
chmod 755 "$dir"
FLEET_PASSWORD=tf-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') WORKER_PASSWORD=tf-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') READER_PASSWORD=tf-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export FLEET_PASSWORD WORKER_PASSWORD READER_PASSWORD TOOLFLEET_MODEL=script:/script.json

compose() { podman-compose -p "$project" "${files[@]}" -f "$dir/proof.yaml" "$@"; }
containers() { podman ps -aq --filter "label=io.podman.compose.project=$project"; }
container() { podman ps -q --filter "label=io.podman.compose.project=$project" --filter "label=com.docker.compose.service=$1"; }
coordinator() { podman exec "$(container coordinator)" coordinator "$@"; }
fail() {
  echo "FAILED: $*" >&2
  for c in $(containers); do podman logs --tail 5 "$c" >&2 || true; done
  exit 1
}
end() {
  containers | xargs -r podman rm -f -v >"$dir/down.log" 2>&1 || cat "$dir/down.log" # down leaves volumes without a name
  compose down --volumes >"$dir/down.log" 2>&1 || cat "$dir/down.log"
  rm -rf "$dir"
}
trap end EXIT

cat >"$dir/Dockerfile" <<EOF
FROM $base AS worker
RUN groupadd --gid 10001 worker && useradd --uid 10001 --gid worker --create-home worker && install -d -o worker -g worker -m 0700 /data
COPY worker /usr/local/bin/
USER 10001:10001
VOLUME /data
ENTRYPOINT ["worker"]
FROM $base AS coordinator
COPY coordinator /usr/local/bin/
USER 10001:10001
ENTRYPOINT ["coordinator"]
FROM $base AS nats
RUN install -d -o 10001 -g 10001 -m 0700 /data
COPY nats-server /usr/local/bin/
COPY nats.conf accounts.conf /etc/nats/
USER 10001:10001
VOLUME /data
ENTRYPOINT ["nats-server", "--config", "/etc/nats/nats.conf"]
EOF
CGO_ENABLED=0 go -C check build -trimpath -o "$dir/nats-server" github.com/nats-io/nats-server/v2
cp "$bin/worker" "$bin/coordinator" nats.conf ../nats/accounts.conf "$dir"
for image in worker coordinator nats; do
  podman build -q --network none --target "$image" -t "toolfleet/$image:local" "$dir" >/dev/null
done

# The second turn begins behind the second step.
cat >"$dir/script.json" <<'EOF'
{"steps": [
  {"tool_calls": [{"id": "c1", "name": "bash", "arguments": {"command": "echo kept >note; if cat /proc/[0-9]*/environ 2>/dev/null | grep -a worker:tf- || ls /data 2>/dev/null; then exit 1; fi; echo uid $(id -u), processes $(ls /proc | grep -c '^[0-9]'), interfaces $(tail -n +3 /proc/net/dev | cut -d: -f1 | xargs)"}}]},
  {"text": "Written."},
  {"tool_calls": [{"id": "c2", "name": "bash", "arguments": {"command": "cat note"}}]},
  {"text": "Read."}
]}
EOF
openssl genpkey -algorithm ed25519 -out "$dir/calls.key"
openssl pkey -in "$dir/calls.key" -pubout -out "$dir/calls.pub"
chmod 644 "$dir"/*.json "$dir"/calls.*
# By default podman asks for more open files and processes than an ordinary user may have.
{
  echo "services:"
  for service in "${nats[@]}" coordinator worker; do
    echo "  $service: { ulimits: { nofile: $(ulimit -Hn), nproc: 30000 } }"
  done
  echo "secrets: { calls.key: { file: $dir/calls.key }, calls.pub: { file: $dir/calls.pub } }"
} | sed "s|^  coordinator: {|& volumes: [\"$dir/script.json:/script.json:ro\"],|" >"$dir/proof.yaml"

compose up -d "${nats[@]}" coordinator worker >"$dir/up.log" 2>&1 || { cat "$dir/up.log"; fail "podman-compose up"; }
for _ in $(seq 120); do
  coordinator workers >"$dir/workers" 2>&1 || true
  [ "$(grep -c ' full' "$dir/workers")" = 2 ] && break
  sleep 0.5
done
cat "$dir/workers"
[ "$(grep -c ' full' "$dir/workers")" = 2 ] || fail "there are no two workers of level full"

# turn NUMBER ARGUMENT...: runs a turn of the session, shows its commands' results, and says which worker ran them.
turn() {
  coordinator submit --json "${@:2}" >"$dir/turn$1" 2>/dev/null || fail "turn $1: $(cat "$dir/turn$1")"
  worker=$(sed -n 's/.*"tool_result".*"status":"ok".*"worker_id":"\([^"]*\)".*/\1/p' "$dir/turn$1")
  [ "$worker" ] || fail "turn $1: $(cat "$dir/turn$1")"
  sed -n "s/.*\"tool_result\".*\"content\":\(.*\),\"worker_id\".*/turn $1 on $worker: \1/p" "$dir/turn$1"
}

turn 1 "Keep a note."
session=$(sed -n 's/.*"session_started","session_id":"\([^"]*\)".*/\1/p' "$dir/turn1")
first=$worker
podman rm -f -v "${first%%-*}" >/dev/null # the name of its host is the container's id
echo "worker $first is removed, and its volume"
if [ "${CLUSTER:-}" ]; then
  podman rm -f "$(container nats-2)" >/dev/null 2>&1
  echo "server nats-2 is removed"
fi
turn 2 --session "$session" "Read the note."
grep -q '"content":"kept' "$dir/turn2" || fail "the note is gone"
[ "$worker" != "$first" ] || fail "a removed worker has answered"

# What cannot be proven is refused: the same worker under the default filter of system calls.
if podman run --rm --read-only --tmpfs /tmp:exec --cap-drop ALL --ulimit "nofile=$(ulimit -Hn)" --ulimit nproc=30000 \
  toolfleet/worker:local --data /data --nats nats://127.0.0.1:1 --min-level full 2>"$dir/refused"; then fail "a worker without the profile starts"; fi
grep -q -- '--min-level full: driver landlock proves level paths here' "$dir/refused" || fail "$(cat "$dir/refused")"
sed 's/^/refused: /' "$dir/refused"
echo "all of it holds ($(podman --version), $(id -un), ${#nats[@]} NATS)"
