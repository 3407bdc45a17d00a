package integration

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// answerTime is in what time a call in another sandbox has to be answered while a sandbox
// is abused, nine of ten of them; and 99 of 100 beside what they take where nothing is abused:
// this machine may do other things too.
const answerTime = 100 * time.Millisecond

// abused is a worker whose sandboxes isolate, and a way to send it commands.
type abused struct {
	*process

	dispatcher *calls.Dispatcher
	server     string // URL
	token      string // of the server: the worker's own secret
	secret     string // in the worker's environment and in a file beside its data
	file       string
}

// startAbused starts a worker as a user.
func startAbused(t *testing.T, uid int, flags ...string) *abused {
	t.Helper()
	return startWith(t, "ns", "full", uid, flags...)
}

// startWith starts a worker with a sandbox driver, which has to prove its level.
func startWith(t *testing.T, driver, level string, uid int, flags ...string) *abused {
	t.Helper()
	b := newBroker(t)
	require.NoError(t, natsio.Ensure(t.Context(), b.jetStream(t), natsio.Topology{}))
	dir, err := os.MkdirTemp("/tmp", "toolfleet-abuse-") //nolint:usetesting // where an ordinary user may go
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	a := &abused{server: b.server.URL(), secret: "secret-" + rand.Text(), file: filepath.Join(dir, "host-secret")}
	credentials, err := os.ReadFile(b.server.CredentialFile())
	require.NoError(t, err)
	a.token = strings.TrimSpace(string(credentials))
	program, creds := filepath.Join(dir, "worker"), filepath.Join(dir, "creds")
	content, err := os.ReadFile(worker)
	require.NoError(t, err)
	processtest.WriteProgram(t, program, content)
	require.NoError(t, os.WriteFile(creds, credentials, 0o600))
	require.NoError(t, os.WriteFile(a.file, []byte(a.secret), 0o644))
	for _, path := range []string{dir, program, creds, a.file} {
		require.NoError(t, os.Chown(path, uid, uid))
	}
	args := []string{
		"--nats", b.server.URL(), "--creds", creds, "--data", filepath.Join(dir, "data"), "--sandbox", driver, "--slots", "8",
		"--limit-processes", "700", "--limit-memory", "512M", "--limit-file-size", "64M", "--limit-output", "64K",
	}
	args = append(args, flags...)
	if uid != os.Geteuid() {
		id := strconv.Itoa(uid)
		args = append([]string{"--reuid", id, "--regid", id, "--clear-groups", program}, args...)
		program = "setpriv"
	}
	a.process = start(t, program, launch{args: args, env: []string{"NATS_CREDS=" + a.secret, "TMPDIR=" + dir}})
	a.waitFor(t, fmt.Sprintf(`sandbox %s \(level %s\)`, driver, level))
	nc, err := nats.Connect("", append(b.server.Options(), nats.Timeout(patience))...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	a.dispatcher, err = calls.New(t.Context(), nc, protocol.DefaultFleet, nil)
	require.NoError(t, err)
	return a
}

// call sends a payload to a sandbox and waits for its result.
func (a *abused) call(ctx context.Context, t *testing.T, box string, payload protocol.Payload, wall time.Duration) protocol.Result {
	t.Helper()
	c := protocol.Call{
		ID: wire.RandomCallID(), SessionID: protocol.NewSessionID(), Tool: "bash", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.ResourceKey("sandbox/" + box), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), RunTimeout: protocol.MillisOf(wall), Payload: payload,
	}
	var result protocol.Result
	err := a.dispatcher.Dispatch(ctx, []protocol.Call{c}, func(u loop.Update) {
		if u.Result != nil {
			result = *u.Result
		}
	})
	if err != nil {
		t.Errorf("dispatch: %v", err)
	}
	return result
}

// run runs a script to its end.
func (a *abused) run(t *testing.T, box, script string, wall time.Duration) (protocol.Result, protocol.Execution) {
	t.Helper()
	r := a.call(t.Context(), t, box, protocol.CommandRun{Command: script}, wall)
	value, ok := r.Value.(protocol.CommandRunResult)
	require.True(t, ok, "%+v", r)
	return r, value.Execution
}

// beside calls another sandbox again and again until abuse is over, and returns how
// long the answers took, in order.
func (a *abused) beside(t *testing.T, abuse func()) []time.Duration {
	t.Helper()
	const least = 100 - 80*slow
	a.run(t, "neighbour", "true", time.Minute) // opens it
	done := make(chan struct{})
	var wg sync.WaitGroup
	var times []time.Duration
	wg.Go(func() {
		for over := false; !over || len(times) < least; {
			select {
			case <-done:
				over = true
			default:
			}
			began := time.Now()
			r := a.call(t.Context(), t, "neighbour", protocol.CommandRun{Command: "true"}, time.Minute)
			if r.Status != protocol.StatusOK {
				t.Errorf("the neighbour's call: %s %v", r.Status, r.Error)
				return
			}
			times = append(times, time.Since(began))
		}
	})
	abuse()
	close(done)
	wg.Wait()
	slices.Sort(times)
	return times
}

// marker is a number of seconds that nobody else sleeps.
func marker() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return fmt.Sprintf("8%09d", binary.LittleEndian.Uint32(b[:])%1e9)
}

// requireNone fails while a process of the host has a marker in its arguments.
func requireNone(t *testing.T, marker string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), marker) {
			t.Errorf("survived: %s: %s", path, strings.ReplaceAll(string(content), "\x00", " "))
		}
	}
}

// abuse is what a command does, and how it has to end. MARK is a number that its processes
// have in their arguments.
type abuse struct {
	script string
	wall   time.Duration
	status protocol.Status
	reason string
	within time.Duration
	check  func(t *testing.T, e protocol.Execution)
}

// ample is a time in which anything ends that ends by itself. Many processes have the lowest
// priority: where others want the processor, it takes long to come together.
const ample = 2 * time.Minute

func abuses() map[string]abuse {
	const ok, failed, timeout = protocol.StatusOK, protocol.StatusFailed, protocol.StatusTimeout
	return map[string]abuse{
		nothing:       {script: `sleep 2`, wall: ample, status: ok, reason: "exited", within: 5 * time.Second, check: exitedZero},
		"fork bomb":   {script: `b() { b MARK | b MARK & }; b; sleep MARK`, wall: 2 * time.Second, status: timeout, reason: "timeout", within: 6 * time.Second},
		"memory bomb": {script: `exec tail /dev/zero`, wall: ample, status: failed, reason: "oom", within: 20 * time.Second, check: bounded},
		"output bomb": {script: `yes MARK & yes MARK >&2 & wait`, wall: 2 * time.Second, status: timeout, reason: "timeout", within: 6 * time.Second},
		"big file":    {script: `exec dd if=/dev/zero of=big bs=1M count=2000`, wall: ample, status: failed, reason: "disk_limit", within: 20 * time.Second},
		"sparse file": {script: `exec truncate -s 1T sparse`, wall: ample, status: failed, reason: "disk_limit", within: 5 * time.Second},
		"many files":  {script: `i=0; while :; do : >f$i; i=$((i+1)); done`, wall: 2 * time.Second, status: timeout, reason: "timeout", within: 6 * time.Second},
		"deep tree": {
			script: `cd "$TMPDIR" && p=$(printf 'd/%.0s' $(seq 100)); for i in $(seq 21); do mkdir -p $p && cd $p || exit 1; done; : MARK`,
			wall:   ample, status: ok, reason: "exited", within: ample, check: exitedZero,
		},
		"500 processes": {script: `for i in $(seq 500); do sleep MARK & done`, wall: ample, status: ok, reason: "exited", within: ample, check: exitedZero},
		"ignores TERM":  {script: `trap "" TERM; while :; do sleep MARK; done`, wall: time.Second, status: timeout, reason: "timeout", within: 5 * time.Second},
		"daemons": {
			script: `for i in 1 2 3; do (setsid sh -c 'trap "" TERM HUP INT; setsid sleep MARK & sleep MARK; sleep MARK' </dev/null >/dev/null 2>&1 &); done; exit 0`,
			wall:   ample, status: ok, reason: "exited", within: 5 * time.Second, check: exitedZero,
		},
		"background child with the output": {script: `sleep MARK & exit 0`, wall: ample, status: ok, reason: "exited", within: 5 * time.Second, check: exitedZero},
		"processor": {
			script: `for i in 1 2 3 4; do (while :; do : MARK; done) & done; wait`, wall: 2 * time.Second,
			status: timeout, reason: "timeout", within: 6 * time.Second,
		},
		"kills all": {script: `kill -9 -1; exit 0`, wall: ample, status: ok, reason: "exited", within: 5 * time.Second},
	}
}

func exitedZero(t *testing.T, e protocol.Execution) {
	t.Helper()
	require.Zero(t, e.ExitCode, "%s", e.Stderr)
}

// bounded is about memory that is watched: it may be exceeded for a moment, and not by much more.
func bounded(t *testing.T, e protocol.Execution) {
	t.Helper()
	require.NotZero(t, e.ExitCode)
	require.Less(t, e.MaxRSSBytes, int64(1<<30))
}

// TestAbuse_WorkerStaysResponsive: whatever a sandbox does, calls in others are answered,
// the result says what ended it, nothing of it survives, and it can be used again. How soon can
// only be judged without the race detector, and alone.
func TestAbuse_WorkerStaysResponsive(t *testing.T) { //nolint:paralleltest // it measures
	if raceEnabled || testing.Short() {
		t.Skip("its times mean nothing under the race detector or beside other tests: make escape runs it")
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = 65534 // nothing of what bounds the abuses needs root
	}
	a := startAbused(t, uid)
	var alone time.Duration // 99 of 100 calls where nothing is abused
	all := abuses()
	for _, name := range slices.SortedFunc(maps.Keys(all), nothingFirst) { //nolint:paralleltest // as above
		abuse := all[name]
		t.Run(name, func(t *testing.T) {
			for again := range tries {
				box := fmt.Sprintf("abuse-%s-%d", strings.ReplaceAll(name, " ", "-"), again)
				times := a.abuse(t, box, abuse)
				if name == nothing {
					alone = times.nearlyAll
				}
				if times.took < abuse.within && times.most < answerTime && times.nearlyAll < answerTime+2*alone {
					return
				}
			}
			require.Fail(t, "it takes too long, or calls in another sandbox wait", "in each of %d runs", tries)
		})
	}
	a.stop(t)
}

// answers are how long an abuse took, and calls beside it: 9 of 10 of them, and 99 of 100.
type answers struct{ took, most, nearlyAll time.Duration }

// abuse runs one and checks how it ended; it returns how long that and calls beside it took.
func (a *abused) abuse(t *testing.T, box string, abuse abuse) answers {
	t.Helper()
	mark := marker()
	a.run(t, box, "true", time.Minute) // opens it
	var r protocol.Result
	var e protocol.Execution
	var took time.Duration
	times := a.beside(t, func() {
		began := time.Now()
		r, e = a.run(t, box, strings.ReplaceAll(abuse.script, "MARK", mark), abuse.wall)
		took = time.Since(began)
	})
	requireNone(t, mark)
	of := func(percent int) time.Duration { return times[(len(times)-1)*percent/100] }
	short := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	t.Logf("%s: %s in %s; %d calls beside it: half within %s, 9 of 10 within %s, 99 of 100 within %s, all within %s", r.Status, e.Reason,
		took.Round(time.Millisecond), len(times), short(of(50)), short(of(90)), short(of(99)), short(of(100)))
	require.Equal(t, abuse.status, r.Status, "%v: %s", r.Error, e.Stderr)
	require.Equal(t, abuse.reason, e.Reason)
	if abuse.check != nil {
		abuse.check(t, e)
	}
	_, e = a.run(t, box, `set -- /proc/[0-9]*; echo $#`, time.Minute)
	require.Contains(t, []string{"2\n", "3\n"}, string(e.Stdout), "the sandbox has only its first process and this command")
	return answers{took: took, most: of(90), nearlyAll: of(99)}
}

// nothing is the abuse that is none.
const nothing = "nothing"

func nothingFirst(a, b string) int {
	switch nothing {
	case a:
		return -1
	case b:
		return 1
	default:
		return strings.Compare(a, b)
	}
}

// asUsers runs a test as the user that runs the tests, and beside it as an ordinary one if that is
// root.
func asUsers(t *testing.T, test func(t *testing.T, uid int)) {
	t.Helper()
	users := []int{os.Geteuid()}
	if os.Geteuid() == 0 {
		users = append(users, 65534)
	}
	for _, uid := range users {
		t.Run("as "+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			test(t, uid)
		})
	}
}

// TestAbuse_FilesThatAreNone: what a command leaves in its workspace cannot hold a worker or
// lead it out.
func TestAbuse_FilesThatAreNone(t *testing.T) {
	t.Parallel()
	asUsers(t, func(t *testing.T, uid int) {
		t.Helper()
		a := startAbused(t, uid)
		_, e := a.run(t, "files",
			`mkfifo fifo && mkdir farm && ln -s "`+a.file+`" farm/file && ln -s / farm/root && ln -s /proc/1/environ farm/environ && ln -s /proc/self/mem farm/mem &&
			ln -s /dev/zero farm/zero && ln -s ../../../../../../../../..`+a.file+` farm/up && ln -s loop farm/loop && mknod null c 1 3; ls -l null 2>&1; mkdir locked && touch locked/x && chmod 000 locked`, time.Minute)
		require.Contains(t, string(e.Stdout), "No such file", "a device was made")
		paths := []string{"fifo", "farm/file", "farm/root" + a.file, "farm/environ", "farm/mem", "farm/zero", "farm/up", "farm/loop", "farm/root/proc/self/environ"}
		for _, path := range paths {
			for name, payload := range map[string]protocol.Payload{
				"read": protocol.FilesRead{Path: path}, "search": protocol.FilesSearch{Path: path, Pattern: "secret"},
				"write": protocol.FilesWrite{Path: path, Content: []byte("overwritten")},
			} {
				r := a.call(t.Context(), t, "files", payload, time.Minute)
				require.NotEqual(t, protocol.StatusTimeout, r.Status, "%s %s", name, path)
				require.NotContains(t, fmt.Sprintf("%s", r.Value), a.secret, "%s %s", name, path)
			}
		}
		content, err := os.ReadFile(a.file)
		require.NoError(t, err)
		require.Equal(t, a.secret, string(content))
		a.stop(t)
	})
}

// TestAbuse_NoSecretOfTheWorker looks for the worker's secrets from inside.
func TestAbuse_NoSecretOfTheWorker(t *testing.T) {
	t.Parallel()
	asUsers(t, func(t *testing.T, uid int) {
		t.Helper()
		a := startAbused(t, uid)
		dir := filepath.Dir(a.file)
		_, e := a.run(t, "curious", `exec 2>&1; env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ls -l /proc/[0-9]*/fd /proc/self/fd; cat `+dir+`/creds `+a.file+`; ls -la `+dir+` /root /home /var/lib /run /sys;
			cat /proc/1/maps /proc/net/unix /proc/net/tcp; (echo >/dev/tcp/127.0.0.1/4222); cat /etc/shadow /etc/hostname; find / -xdev -newermt 2000-01-01 -name '*creds*' -not -path '/proc/*' -not -path '/usr/*'; true`, time.Minute)
		out := string(e.Stdout)
		for name, secret := range map[string]string{"secret": a.secret, "token": a.token, "name of the credentials": "creds\n", "data": "/data/sandboxes"} {
			require.NotContains(t, strings.ReplaceAll(out, dir+"/creds", ""), secret, name)
		}
		host, err := os.Hostname()
		require.NoError(t, err)
		require.NotContains(t, out, host+"\n")
		require.Contains(t, out, "PATH=", "the script has run")
		a.stop(t)
	})
}

// TestAbuse_NetworkOnlyByTheList: through --allow-net a listed host is reached, the fleet's
// own server is not although its address is listed too, and nothing is past the proxy.
func TestAbuse_NetworkOnlyByTheList(t *testing.T) {
	t.Parallel()
	asUsers(t, func(t *testing.T, uid int) {
		t.Helper()
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "a page") }))
		t.Cleanup(site.Close)
		a := startAbused(t, uid, "--allow-net", "127.0.0.1:*", "--allow-net-private", "127.0.0.0/8")
		ask := func(request string) string {
			_, e := a.run(t, "network",
				`exec 2>&1; exec 3<>"/dev/tcp/127.0.0.1/${HTTP_PROXY##*:}"; printf '`+request+` HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3; cat <&3`,
				time.Minute)
			return string(e.Stdout)
		}
		require.Contains(t, ask("GET "+site.URL+"/"), "a page")
		server := strings.TrimPrefix(a.server, "nats://")
		require.Contains(t, ask("CONNECT "+server), "HTTP/1.1 403 ")
		require.Contains(t, ask("CONNECT "+server), "belongs to the fleet itself")
		require.Contains(t, ask("CONNECT example.com:443"), "--allow-net example.com:443")
		host, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "http://"), ":")
		_, e := a.run(t, "network", fmt.Sprintf("(exec 3<>/dev/tcp/%s/%s) 2>/dev/null && echo connected || echo refused", host, port), time.Minute)
		require.Equal(t, "refused\n", string(e.Stdout))
		a.stop(t)
	})
}
