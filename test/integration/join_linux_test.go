package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// twoMachines makes another network, joined to its own by a cable, in which the variable far runs
// commands; then it runs the script that follows.
const twoMachines = `
set -eu
ip link set lo up
unshare --net sleep 600 & machine=$!
until [ "$(readlink /proc/$machine/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add near type veth peer name far netns $machine
ip addr add 10.77.0.1/24 dev near; ip link set near up
far="nsenter -t $machine -n"
$far sh -c 'ip link set lo up; ip addr add 10.77.0.2/24 dev far; ip link set far up'
end() { kill $machine ${serving:-} ${working:-} 2>/dev/null || true; }
trap end EXIT
`

// fiveMinutes is what docs/operations/second-machine.md has a person do, as a script.
const fiveMinutes = twoMachines + `
coordinator=$1 worker=$2 model=$3 dir=$4
seen() { for i in $(seq 600); do grep -q "$1" "$2" 2>/dev/null && return; sleep 0.1; done; cat "$2" >&2; exit 1; }
mkdir -p "$dir/near" "$dir/far"
HOME=$dir/near $coordinator serve --model "$model" --listen 0.0.0.0:4222 2>"$dir/serve" & serving=$!
seen 'reach it with' "$dir/serve"
token=$(sed -n 's/^worker --join //p' "$dir/serve")
if HOME=$dir/far $far $worker --nats nats://10.77.0.1:4222 --sandbox process; then echo "it came in without a token"; exit 1; fi
if HOME=$dir/far $far $worker --nats tls://10.77.0.1:4222 --sandbox process; then echo "it came in without a token"; exit 1; fi
HOME=$dir/far $far $worker --join "$token" --sandbox process 2>"$dir/work" & working=$!
seen 'takes calls of pool default' "$dir/work"
flags=$(sed -n 's/.*other commands reach it with: //p' "$dir/serve")
HOME=$dir/near $coordinator call $flags bash '{"command":"cat /proc/net/fib_trie"}'
`

// aYear is what may happen to the server afterwards: it starts again, at the same address and at
// another one, and its data directory is lost.
const aYear = fiveMinutes + `
call() { HOME=$dir/near $coordinator call $flags bash "{\"command\":\"echo $1\"}"; }
serve() {
	kill $serving; wait $serving || true; mv "$dir/serve" "$dir/serve.$1"
	HOME=$dir/near $coordinator serve --model "$model" --listen "$2" 2>"$dir/serve" & serving=$!
	seen 'reach it with' "$dir/serve"
	flags=$(sed -n 's/.*other commands reach it with: //p' "$dir/serve")
}
joins() { HOME=$dir/$1 $far $worker --join "$2" --sandbox process 2>"$dir/$1.work" & working="$working $!"; seen 'takes calls of pool default' "$dir/$1.work"; }
mkdir -p "$dir/far2" "$dir/far3" "$dir/far4"
joins far2 "$token"
serve 1 0.0.0.0:4222
call again
kill $working; working=
serve 2 0.0.0.0:4333
if HOME=$dir/far $far timeout 20 $worker --join "$token" --sandbox process; then echo "nothing is at the old address"; exit 1; fi
moved=$(HOME=$dir/near $coordinator join-token add --address 10.77.0.1:4333)
joins far3 "$moved"
call moved
kill $working; working=
rm -rf "$dir/near"; mkdir "$dir/near"
serve 3 0.0.0.0:4333
if HOME=$dir/far3 $far $worker --join "$moved" --sandbox process 2>"$dir/lost"; then echo "it trusts another authority"; exit 1; fi
grep 'its authority is another one' "$dir/lost"
joins far4 "$(sed -n 's/^worker --join //p' "$dir/serve")"
call new
`

// TestJoin_TwoMachines: from two machines that know nothing of each other to a call on the second
// one. Workers come back to a server that was started again, also two that have one token. A new
// token is needed at another address, and by a server that has lost its data directory.
func TestJoin_TwoMachines(t *testing.T) {
	t.Parallel()
	apart := []string{"--user", "--map-root-user", "--net", "--mount", "--propagation", "private", "sh", "-c"}
	probe := execute(t, "unshare", launch{args: append(apart, twoMachines, "sh"), group: true})
	if probe.code != 0 {
		processtest.Unavailable(t, "no process here has networks of its own: "+probe.stderr)
	}
	got := execute(t, "unshare", launch{
		args: append(apart, aYear, "sh", coordinator, worker, script(t, say("Done.")), filepath.Join(t.TempDir(), "machines")), group: true,
	})
	require.Zero(t, got.code, got)
	require.Less(t, patience, 5*time.Minute, "execute bounds all of it by patience")
	require.Contains(t, got.stdout, "10.77.0.2")
	require.NotContains(t, got.stdout, "10.77.0.1/32 host LOCAL", "the call ran on the second machine")
	require.Contains(t, got.stdout, "its authority is another one")
	for _, said := range []string{`"stdout":"again\n"`, `"stdout":"moved\n"`, `"stdout":"new\n"`} {
		require.Contains(t, got.stdout, said)
	}
}
