//go:build linux

package blackbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settings say what a run does.
type settings struct {
	bin     string        // directory with the binaries coordinator and worker
	dir     string        // where everything is written
	calls   int           // in all, at least
	lanes   int           // sandboxes
	callers int           // who put calls side by side
	workers int           // processes
	lease   time.Duration // of the workers
	pause   time.Duration // between two kills, on average
	seed    uint64        // of the calls and of the kills
	kills   int           // how many at least
	handler string        // program of a worker with a handler in Go that runs the calls
	tools   string        // the workers' folder of tools, in which serve is
	serve   []string      // program and arguments of a server of tools that runs the calls
}

var ( // as `make blackbox` gives them
	bin   = flag.String("bin", os.Getenv("TOOLFLEET_LINKED"), "directory with the binaries coordinator and worker; none: those of this tree")
	calls = flag.Int("calls", 0, "how many calls to make; 0 is the short form")
	seed  = flag.Uint64("seed", 0, "seed of the calls and the kills; 0 chooses one and prints it")
	tools = flag.String("tools", "", "folder of tools of the workers")
	serve = flag.String("serve", "", "JSON list with a program and its arguments: a server of the Model Context Protocol, in the folder of -tools, with the tool effect (testdata)")
)

func TestRun_LawsHold(t *testing.T) {
	t.Parallel()
	run(t, given(t))
}

// TestRun_LawsHoldForHandlers: calls are run by a handler in Go.
func TestRun_LawsHoldForHandlers(t *testing.T) {
	t.Parallel()
	s := given(t)
	s.handler, s.kills = filepath.Join(t.TempDir(), "goworker"), 4
	build(t, s.handler, "./goworker")
	run(t, s)
}

// TestRun_LawsHoldForTools: calls are run by a tool in Python or TypeScript, whose server is
// killed, too. The checks of the SDKs run it (sdk/python/scripts/check.sh,
// sdk/typescript/check.sh).
func TestRun_LawsHoldForTools(t *testing.T) {
	t.Parallel()
	if *serve == "" {
		t.Skip("it needs -tools and -serve: make sdk-python and make sdk-typescript run it")
	}
	s := given(t)
	s.tools, s.kills = *tools, 4
	require.NoError(t, json.Unmarshal([]byte(*serve), &s.serve))
	if s.calls = max(*calls, 500); *calls == 0 { // a server needs a second to start
		s.lanes, s.callers, s.pause = 3, 6, 4*time.Second
	}
	run(t, s)
}

// given are the settings that the flags ask for.
func given(t *testing.T) settings {
	t.Helper()
	s := settings{
		bin: *bin, dir: t.ArtifactDir(), seed: cmp.Or(*seed, rand.Uint64()), lease: 2 * time.Second,
		calls: 300, lanes: 6, callers: 12, workers: 2, pause: 1500 * time.Millisecond,
	}
	if *calls > 0 {
		s.calls, s.lanes, s.callers, s.workers, s.pause = *calls, 12, 24, 3, 4*time.Second
	}
	if s.bin == "" {
		s.bin = t.TempDir()
		build(t, s.bin+"/", "../../cmd/coordinator", "../../cmd/worker")
	}
	return s
}

// build links programs, as make build does, so that nothing is compiled twice.
func build(t *testing.T, to string, packages ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", to}, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// run makes a fleet, has calls made while parts of it are killed, and holds the laws against that.
func run(t *testing.T, s settings) {
	t.Helper()
	begin := time.Now()
	t.Logf("seed %d, %d calls", s.seed, s.calls)
	f, err := startFleet(t.Context(), s)
	require.NoError(t, err)
	defer f.close()
	c, err := connect(t.Context(), f.url, f.creds)
	require.NoError(t, err)
	defer c.nc.Close()
	h := &history{calls: makeCalls(t.Context(), s, f, c)}
	require.NoError(t, f.fault)
	h.kills = f.kills
	if len(s.serve) > 0 { // a server that lives between calls holds its lane
		f.workers = slices.DeleteFunc(f.workers, func(w *exec.Cmd) bool { end(w); return true })
		require.NoError(t, f.startWorker(t.Context()))
	}
	require.NoError(t, c.awaitEmpty(t.Context()))
	require.NoError(t, c.readResults(t.Context(), h))
	h.effects, err = readEffects(filepath.Join(s.dir, "worker"))
	require.NoError(t, err)
	end(f.log)
	_, err = f.readLog(t.Context()) // what the log has not seen
	require.NoError(t, err)
	require.NoError(t, c.dropResults(t.Context()))
	h.logged, err = f.readLog(t.Context())
	require.NoError(t, err)
	t.Logf("%s, %d workers, %d servers and %d tools killed, %s in all",
		summary(h), f.count("worker"), f.count("server"), f.count(killedTool), time.Since(begin).Round(time.Second))
	require.Empty(t, check(h))
}

// makeCalls has callers make calls while workers and the server are killed.
func makeCalls(ctx context.Context, s settings, f *fleet, c *client) []*call {
	killing, enough := context.WithCancel(ctx)
	var killer, callers sync.WaitGroup
	killer.Go(func() { f.killNowAndThen(killing) })
	made := make([][]*call, s.callers)
	for i := range made {
		callers.Go(func() { made[i] = c.makeCalls(ctx, s, i, &f.killed) })
	}
	callers.Wait()
	enough()
	killer.Wait()
	var all []*call
	for _, calls := range made {
		all = append(all, calls...)
	}
	return all
}

// fleet is a coordinator, whose server everybody uses, and workers that share one data directory,
// so that each finds the workspaces of the others.
type fleet struct {
	settings

	address, url, creds string
	server              *exec.Cmd
	workers             []*exec.Cmd
	log                 *exec.Cmd // it brings the log of calls up to date
	kills               []kill
	killed              atomic.Int64 // how many kills are over
	random              *rand.Rand
	fault               error
}

// kill is a kill -9, and when its effects can have lasted: until another process was there, and a
// lease and some more had passed.
type kill struct {
	what        string
	from, until time.Time
}

// script is what the coordinator's model would say; nobody asks it.
const script = `{"steps": [{"text": "done"}]}`

func startFleet(ctx context.Context, s settings) (*fleet, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := errors.Join(listener.Close(), os.WriteFile(filepath.Join(s.dir, "script.json"), []byte(script), 0o600)); err != nil {
		return nil, err
	}
	f := &fleet{
		settings: s, address: address, url: "nats://" + address,
		creds: filepath.Join(s.dir, "server", "nats", "nats.token"), random: rand.New(rand.NewPCG(s.seed, 1)),
	}
	if err := f.startServer(ctx); err != nil {
		return nil, err
	}
	for range s.workers {
		if err := f.startWorker(ctx); err != nil {
			f.close()
			return nil, err
		}
	}
	if f.log, err = f.start(ctx, "coordinator", f.logCommand("--follow")...); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// logCommand is the command line that prints the log of calls.
func (f *fleet) logCommand(more ...string) []string {
	return append([]string{"calls", "--nats", f.url, "--creds", f.creds, "--json", "--timeout", "5m"}, more...)
}

// readLog returns the log of calls, by call.
func (f *fleet) readLog(ctx context.Context) (map[string][]logged, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(f.bin, "coordinator"), f.logCommand("--limit", "0")...)
	cmd.Env, cmd.Stderr = f.env(), os.Stderr
	said, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	all := map[string][]logged{}
	for lines := json.NewDecoder(bytes.NewReader(said)); ; {
		var l logged
		if err := lines.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all[l.CallID] = append(all[l.CallID], l)
	}
}

// env has a process use no directory of this user.
func (f *fleet) env() []string {
	return append(os.Environ(), "HOME="+f.dir, "XDG_CACHE_HOME="+filepath.Join(f.dir, "cache"), "EFFECTS="+filepath.Join(f.dir, "worker"))
}

func (f *fleet) startServer(ctx context.Context) (err error) {
	f.server, err = f.start(ctx, "coordinator", "serve", "--model", "script:"+filepath.Join(f.dir, "script.json"),
		"--listen", f.address, "--data", filepath.Join(f.dir, "server"))
	if err != nil {
		return err
	}
	for range 600 { // a minute
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.address)
		if err == nil {
			return conn.Close()
		}
		if !pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return errors.New("the server does not listen")
}

func (f *fleet) startWorker(ctx context.Context) error {
	args := []string{"--nats", f.url, "--creds", f.creds, "--slots", "8", "--data", filepath.Join(f.dir, "worker"), "--lease", f.lease.String()}
	if f.tools != "" {
		args = append(args, "--tools", f.tools)
	}
	w, err := f.start(ctx, cmp.Or(f.handler, "worker"), args...)
	f.workers = append(f.workers, w)
	return err
}

// start starts a process that ends with this one; what it says goes to a file.
func (f *fleet) start(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(f.dir, filepath.Base(name)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	if !filepath.IsAbs(name) {
		name = filepath.Join(f.bin, name)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, f.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

// end is kill -9 of a process; it returns when the process is gone.
func end(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (f *fleet) close() {
	for _, w := range f.workers {
		end(w)
	}
	end(f.log)
	end(f.server)
}

// killNowAndThen kills a worker, or now and then the server, and what brings the log up to date,
// and starts them again, until ctx ends.
func (f *fleet) killNowAndThen(ctx context.Context) {
	for n := 0; f.fault == nil && pause(ctx, f.pause/2+time.Duration(f.random.Int64N(int64(f.pause)))); n++ {
		k := kill{what: "worker", from: time.Now()}
		switch {
		case n%4 == 1:
			k.what = "server"
			end(f.server)
			f.fault = f.startServer(context.WithoutCancel(ctx))
		case n%4 == 2 && f.endTool():
			k.what = killedTool
		default:
			i := f.random.IntN(len(f.workers))
			end(f.workers[i])
			f.workers = append(f.workers[:i], f.workers[i+1:]...)
			f.fault = f.startWorker(ctx)
		}
		end(f.log)
		log, err := f.start(ctx, "coordinator", f.logCommand("--follow")...)
		f.log, f.fault = log, cmp.Or(f.fault, err)
		k.until = time.Now().Add(f.lease + 8*time.Second)
		f.kills = append(f.kills, k)
		f.killed.Add(1)
	}
}

// killedTool is a [kill] of a server of tools.
const killedTool = "tool"

// endTool is kill -9 of a server of tools, whichever it finds.
func (f *fleet) endTool() bool {
	if len(f.serve) == 0 {
		return false
	}
	file := filepath.Base(f.serve[len(f.serve)-1]) // no other process has its name
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	f.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, path := range all {
		line, _ := os.ReadFile(path)
		words := strings.Split(string(line), "\x00")
		at := slices.Index(words, "serve")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if at > 0 && at+1 < len(words) && filepath.Base(words[at+1]) == file && syscall.Kill(pid, syscall.SIGKILL) == nil {
			return true
		}
	}
	return false
}

func (f *fleet) count(what string) (n int) {
	for _, k := range f.kills {
		if k.what == what {
			n++
		}
	}
	return n
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
