package integration

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// calling is a call that is under way.
type calling struct {
	result chan protocol.Result
}

// begin sends a script to a sandbox of its own.
func (a *abused) begin(t *testing.T, box, script string, wall time.Duration) calling {
	t.Helper()
	c := calling{result: make(chan protocol.Result, 1)}
	go func() { c.result <- a.call(t.Context(), t, box, protocol.CommandRun{Command: script}, wall) }()
	return c
}

// end waits for the result.
func (c calling) end(t *testing.T) (protocol.Result, protocol.Execution) {
	t.Helper()
	select {
	case r := <-c.result:
		value, _ := r.Value.(protocol.CommandRunResult) // none when it was lost
		return r, value.Execution
	case <-time.After(patience):
		require.FailNow(t, "no result")
		return protocol.Result{}, protocol.Execution{}
	}
}

// find returns where a file of some workspace is on the host; "" when it is nowhere.
func (a *abused) find(name string) (found string) {
	_ = filepath.WalkDir(filepath.Dir(a.file), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == name {
			found = path
			return fs.SkipAll
		}
		return nil // what cannot be entered has it not
	})
	return found
}

// awaitFile waits until a command has made a file.
func (a *abused) awaitFile(t *testing.T, name string) string {
	t.Helper()
	waitUntil(t, func() bool { return a.find(name) != "" })
	return a.find(name)
}

// running counts the processes of the host with a marker in their arguments.
func running(t *testing.T, marker string) (n int) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, path := range paths {
		if content, err := os.ReadFile(path); err == nil && strings.Contains(string(content), marker) {
			n++
		}
	}
	return n
}

// TestAbuse_StoppedWorker: while a worker stands still its sandboxes go on, within their
// limits, which their first processes see to; when it goes on, every call ends as it should.
func TestAbuse_StoppedWorker(t *testing.T) {
	t.Parallel()
	asUsers(t, func(t *testing.T, uid int) {
		t.Helper()
		a := startAbused(t, uid, "--lease", "60s")
		bomb, flood, late, daemon := marker(), marker(), marker(), marker()
		const wait = `: >NAME.begun; while [ ! -e NAME.go ]; do sleep 0.02; done; `
		begin := func(name, script string, wall time.Duration) calling {
			return a.begin(t, name, strings.ReplaceAll(wait, "NAME", name)+script, wall)
		}
		works := begin("works", `echo worked >works.went`, time.Minute)
		hungry := begin("hungry", `exec -a `+bomb+` tail /dev/zero`, time.Minute)
		loud := begin("loud", `exec -a `+flood+` seq 1 3000000`, time.Minute)
		leaves := begin("leaves", `(setsid bash -c 'trap "" TERM HUP; exec -a `+daemon+` sleep 1000' &); : >leaves.went`, time.Minute)
		for _, name := range []string{"works", "hungry", "loud", "leaves"} {
			a.awaitFile(t, name+".begun")
		}
		const wall = 10 * time.Second // it must not be over before the worker stands still
		slow := a.begin(t, "slow", `: >slow.begun; exec -a `+late+` sleep 1000`, wall)
		a.awaitFile(t, "slow.begun")
		sandboxtest.Freeze(t, a.cmd.Process)
		stopped := time.Now()
		for _, name := range []string{"works", "hungry", "loud", "leaves"} {
			begun := a.find(name + ".begun")
			require.NoError(t, os.WriteFile(strings.TrimSuffix(begun, "begun")+"go", nil, 0o644))
		}
		a.awaitFile(t, "works.went")
		a.awaitFile(t, "leaves.went")
		waitUntil(t, func() bool { return running(t, flood) > 0 })
		require.Eventually(t, func() bool { return running(t, bomb) == 0 }, patience, 10*time.Millisecond, "its first process ends what has too much memory")
		waitUntil(t, func() bool { return running(t, daemon) == 0 }) // with the command that has left it
		waitUntil(t, func() bool { return time.Since(stopped) > wall+500*time.Millisecond })
		require.Equal(t, 1, running(t, late), "time is the worker's matter")
		a.signal(t, syscall.SIGCONT)
		for name, c := range map[string]struct {
			calling
			status protocol.Status
			reason string
		}{
			"works": {works, protocol.StatusOK, "exited"}, "hungry": {hungry, protocol.StatusFailed, "oom"},
			"loud": {loud, protocol.StatusOK, "exited"}, "slow": {slow, protocol.StatusTimeout, "timeout"}, "leaves": {leaves, protocol.StatusOK, "exited"},
		} {
			r, e := c.end(t)
			require.Equal(t, c.status, r.Status, "%s: %v %s", name, r.Error, e.Stderr)
			require.Equal(t, c.reason, e.Reason, name)
			require.Equal(t, 1, r.Attempt, name)
		}
		for _, mark := range []string{bomb, flood, late, daemon} {
			requireNone(t, mark)
		}
		a.stop(t)
	})
}

// TestAbuse_StoppedForTooLong: what runs for a worker that stands still for longer than its lease
// ends with the lease; the worker goes on with the next one.
func TestAbuse_StoppedForTooLong(t *testing.T) {
	t.Parallel()
	asUsers(t, func(t *testing.T, uid int) {
		t.Helper()
		const still = 5 * lease / 2
		a := startAbused(t, uid, "--lease", lease.String())
		mark := marker()
		call := a.begin(t, "lost",
			`(trap "" TERM HUP; setsid bash -c 'trap "" TERM HUP; while :; do exec -a `+mark+` sleep 1000; done' &); : >begun; while [ ! -e go ]; do sleep 0.1; done`,
			5*time.Minute)
		a.awaitFile(t, "begun")
		waitUntil(t, func() bool { return running(t, mark) == 2 })
		sandboxtest.Freeze(t, a.cmd.Process)
		stopped := time.Now()
		waitUntil(t, func() bool { return running(t, mark) == 0 })
		t.Logf("everything was gone %s after the worker was stopped", time.Since(stopped))
		waitUntil(t, func() bool { return time.Since(stopped) > still })
		a.signal(t, syscall.SIGCONT)
		waitUntil(t, func() bool { return running(t, mark) == 2 }) // it runs again, in the workspace as it was before
		a.awaitFile(t, "begun")
		require.NoError(t, os.WriteFile(strings.TrimSuffix(a.find("begun"), "begun")+"go", nil, 0o644))
		r, _ := call.end(t)
		require.Equal(t, protocol.StatusOK, r.Status, "%v", r.Error)
		require.Equal(t, 2, r.Attempt, "the lane came back to it, and the call ran again")
		a.stop(t)
	})
}

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
