package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// appends writes the time into files for a minute, in two processes: the second one has no parent,
// session and environment of the command, and heeds no signal that asks.
const appends = `cat >append <<'END'
trap "" TERM HUP INT
for i in $(seq 2000); do date +%s%N >>$1.log; sleep 0.02; done
END
(setsid env -i PATH=/usr/bin:/bin bash append hidden &)
exec bash append plain`

// lastTime is when something was last appended.
func lastTime(t *testing.T, log string) time.Time {
	t.Helper()
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	lines := bytes.Fields(content)
	require.NotEmpty(t, lines)
	nanoseconds, err := strconv.ParseInt(string(lines[len(lines)-1]), 10, 64)
	require.NoError(t, err)
	return time.Unix(0, nanoseconds)
}

// appending has a worker run appends, and returns the files. Nobody waits for the result.
func (a *abused) appending(t *testing.T) []string {
	t.Helper()
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: protocol.NewSessionID(), Tool: "bash", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: "sandbox/one", Access: protocol.Exclusive}}, Delivery: protocol.Idempotent,
		IssuedAt: time.Now(), RunTimeout: protocol.MillisOf(time.Hour), Payload: protocol.CommandRun{Command: appends},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.dispatcher.Dispatch(ctx, []protocol.Call{call}, func(loop.Update) {})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	logs := []string{a.awaitFile(t, "plain.log"), a.awaitFile(t, "hidden.log")}
	for _, log := range logs {
		waitUntil(t, func() bool { info, err := os.Stat(log); return err == nil && info.Size() > 0 })
	}
	return logs
}

// TestLease_NothingRunsBeyondIt: what runs for a worker ends before the lease does, though the
// worker was killed or stopped.
func TestLease_NothingRunsBeyondIt(t *testing.T) {
	t.Parallel()
	for _, driver := range []struct {
		name, level string
		uid         int
	}{{"ns", "full", os.Geteuid()}, {"landlock", "paths", 65534}, {"process", "none", 65534}} {
		for name, stops := range map[string]bool{"killed": false, "stopped": true} {
			t.Run(driver.name+" "+name, func(t *testing.T) {
				t.Parallel()
				uid := driver.uid
				if os.Geteuid() != 0 {
					uid = os.Geteuid()
				}
				a := startWith(t, driver.name, driver.level, uid, "--lease", lease.String())
				logs := a.appending(t)
				if stops {
					sandboxtest.Freeze(t, a.cmd.Process)
				} else {
					a.signal(t, syscall.SIGKILL)
				}
				ended := time.Now()
				waitUntil(t, func() bool { return time.Since(ended) > 3*lease/2 })
				for _, log := range logs {
					require.Less(t, lastTime(t, log).Sub(ended), lease, "%s: the next holder may have the lane by then", filepath.Base(log))
				}
				if stops {
					a.signal(t, syscall.SIGCONT)
					a.kill(t)
				}
			})
		}
	}
}
