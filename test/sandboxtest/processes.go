//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// survivors are ways to outlive a command. Each script leaves processes that hold
// the file "fifo", ignore signals and write "ready" when they do.
var survivors = map[string]string{
	"background child":                `HOLD & WAIT`,
	"background child and its output": `sh -c "$hold" & WAIT`,
	"nohup":                           `nohup sh -c "$hold" >/dev/null 2>&1 & WAIT`,
	"new session":                     `setsid sh -c "$hold" >/dev/null 2>&1 & WAIT`,
	"double fork":                     `(setsid sh -c "$hold" >/dev/null 2>&1 &) ; WAIT`,
	"double fork with children":       `(setsid sh -c "(setsid sh -c '$hold' &); $hold" >/dev/null 2>&1 &) ; WAIT`,
	"no signal of the parent's end":   `(setsid $(command -v setpriv >/dev/null && echo setpriv --pdeathsig clear) sh -c "$hold" >/dev/null 2>&1 &) ; WAIT`,
	"double fork without environment": `(env -i /usr/bin/setsid /bin/sh -c "$hold" >/dev/null 2>&1 &) ; WAIT`,
}

// survivor is a script that leaves processes behind and ends.
func survivor(script string) string {
	return strings.NewReplacer(
		"HOLD", `sh -c "$hold" >/dev/null 2>&1`,
		"WAIT", `while [ ! -e ready ]; do sleep 0.01; done; echo end`,
	).Replace(`hold='trap "" TERM HUP INT; exec 3>fifo; : >ready; /bin/sleep 1000; /bin/sleep 1000'; ` + script)
}

func testProcesses(t *testing.T, s suite) {
	for name, script := range survivors {
		t.Run("dead when the command has ended: "+name, func(t *testing.T) {
			t.Parallel()
			b := s.open(t, sandbox.Limits{})
			w := b.newWitness(t)
			start := time.Now()
			require.Equal(t, "end\n", b.sh(t, survivor(script)))
			require.Less(t, time.Since(start), patience)
			w.requireDead(t)
		})
	}
	s.run(t, map[string]func(*testing.T, *box){
		"dead after a timeout":         processesTimeout,
		"many":                         processesMany,
		"a fork bomb that is not fast": processesForking,
		"the end of one command leaves those of others alone": processesOthers,
	})
}

func processesTimeout(t *testing.T, b *box) {
	w := b.newWitness(t)
	cmd := shell(survivor(survivors["double fork"]) + "; sleep 1000")
	cmd.Limits = sandbox.Limits{Wall: 500 * time.Millisecond, Grace: 100 * time.Millisecond}
	require.Equal(t, sandbox.ReasonTimeout, b.exec(t, cmd).Reason)
	w.requireDead(t)
}

func processesMany(t *testing.T, b *box) {
	w := b.newWitness(t)
	b.sh(t, `exec 3>fifo; i=0; while [ $i -lt 100 ]; do setsid sleep 1000 & sleep 1000 & i=$((i+1)); done`)
	w.requireDead(t)
}

// processesForking has processes that go on making new ones while they are killed.
func processesForking(t *testing.T, b *box) {
	w := b.newWitness(t)
	b.sh(t, `exec 3>fifo; loop='while :; do sleep 0.02 & sleep 0.005; done'
		for i in 1 2 3; do (setsid sh -c "$loop" >/dev/null 2>&1 &); done; sleep 0.1`)
	w.requireDead(t)
}

func processesOthers(t *testing.T, b *box) {
	w := b.newWitness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := shell(survivor(survivors["double fork"]) + "; echo up; sleep 1000")
	cmd.Limits.Grace = 50 * time.Millisecond
	up := make(chan struct{}, 10)
	cmd.Live = func(sandbox.Stream, []byte) { up <- struct{}{} }
	done := b.async(ctx, t, cmd)
	receive(t, up)
	for range 5 {
		b.sh(t, "(setsid true &); true")
	}
	w.requireAlive(t)
	cancel()
	receive(t, done)
	w.requireDead(t)
}
