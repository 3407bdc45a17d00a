//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	plain "github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// machineRole is a worker with sandboxes and a disk of its own.
type machineRole struct {
	URL, Creds, Data string
	Bodies           string
	Worker           protocol.WorkerID
}

func (m *machineRole) run(ctx context.Context) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	nc, err := dial(ctx, m.URL, natsio.ConnectOptions{Name: string(m.Worker), Creds: m.Creds, Logger: logger})
	if err != nil {
		return err
	}
	defer nc.Close()
	driver := plain.New(nil)
	options := worker.Options{
		Options:  lane.Options{Worker: m.Worker, Slots: 8, Linger: 300 * time.Millisecond, Logger: logger},
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}}, Data: m.Data, Bodies: m.Bodies,
	}
	w, err := worker.New(ctx, nc, options)
	for ; err != nil; w, err = worker.New(ctx, nc, options) { // the server may be away
		if !pause.For(ctx, 200*time.Millisecond) {
			return nil
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return w.Run(ctx, drain)
}

// startMachine starts a worker with a disk: that of the machine of this number.
func (r *rig) startMachine(disk int) *member {
	r.t.Helper()
	r.begun++
	m := &member{id: protocol.WorkerID(fmt.Sprintf("m-%d", r.begun))}
	role := machineRole{URL: r.url(), Creds: r.creds(), Data: r.path(fmt.Sprintf("disk-%d", disk)), Bodies: r.store, Worker: m.id}
	m.process = spawn(r.t, "machine", &role, r.path(string(m.id)+".stderr"))
	return m
}

// keepElsewhere has the fleet keep bodies in an S3 store, at the end of a cable.
func (r *rig) keepElsewhere() {
	r.t.Helper()
	backend := s3mem.New()
	require.NoError(r.t, backend.CreateBucket("bucket"))
	server := httptest.NewServer(gofakes3.New(backend).Server())
	r.t.Cleanup(server.Close)
	r.bodies = natsiotest.NewCable(r.t, server.Listener.Addr().String())
	r.store = "s3://bucket?region=us-east-1&endpoint=http://" + r.bodies.Address()
	require.NoError(r.t, workspace.Bind(r.t.Context(), r.nc, protocol.DefaultFleet, r.store))
}

// startMachines starts three workers with a disk each.
func (r *rig) startMachines() []*member {
	r.t.Helper()
	machines := make([]*member, 3)
	for disk := range machines {
		machines[disk] = r.startMachine(disk)
	}
	return machines
}

// Sessions build up files with commands and edits on workers that share no disk, while these are
// killed, stopped for longer than a lease, drained, reduced to one, and lose their disks, while the
// server is away or killed, and while the store of bodies is away, which is another one with half
// of all seeds. At the end each workspace is, byte for byte and mode for mode, what the same steps
// make of one without any fault.
func TestChaos_WorkspacesMove(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	sessions, steps, pausing := 6, 8, 2*time.Second
	if *callCount > 0 {
		sessions = 200
		steps = max(10, *callCount/sessions)
	}
	r := newPlace(t, setup{})
	if r.random.IntN(2) == 0 {
		r.keepElsewhere()
	}
	machines := r.startMachines()
	d, err := calls.New(t.Context(), r.nc, protocol.DefaultFleet, &calls.Options{LookAfter: 200 * time.Millisecond})
	require.NoError(t, err)
	var builders sync.WaitGroup
	var made atomic.Int64
	done, begin := make(chan struct{}), time.Now()
	built := make([]*builder, sessions)
	for i := range built {
		built[i] = &builder{dispatcher: d, session: protocol.SessionID(fmt.Sprintf("s-%d", i)), random: rand.New(rand.NewPCG(*seed, uint64(i)))}
		builders.Go(func() {
			for n := range steps {
				if *limit > 0 && time.Since(begin) > *limit {
					return
				}
				if built[i].fault = built[i].step(t.Context(), n); built[i].fault != nil {
					return
				}
				made.Add(1)
			}
		})
	}
	go func() { builders.Wait(); close(done) }()
	for faults := true; faults; {
		select {
		case <-done:
			faults = false
		case <-time.After(time.Duration(float64(pausing) * (0.2 + r.random.Float64()))):
			r.hit(machines)
		}
	}
	for _, b := range built {
		builders.Go(func() { b.fault = errors.Join(b.fault, b.compare(t.Context())) })
	}
	builders.Wait()
	for _, b := range built {
		require.NoError(t, b.fault, b.session)
	}
	t.Logf("-seed=%d: %d calls of %d sessions on 3 disks, faults %v, 0 lost, 0 double, %s",
		*seed, made.Load(), sessions, r.counts, time.Since(begin).Round(time.Second))
}

// hit does something to the machines, or to the server.
func (r *rig) hit(machines []*member) {
	r.t.Helper()
	disk := r.random.IntN(len(machines))
	m := machines[disk]
	faults := []string{"kill", "stop", "drain", "lose disk", "reduce to one", "server away", "server killed"}
	if r.bodies != nil {
		faults = append(faults, "bodies away")
	}
	fault := faults[r.random.IntN(len(faults))]
	r.counts[fault]++
	away := r.setup.lease + time.Second
	if *callCount > 0 {
		away = 10 * time.Second
	}
	switch fault {
	case "stop":
		m.freeze()
		pause.For(r.t.Context(), r.setup.lease+500*time.Millisecond)
		m.thaw()
		return
	case "server away":
		r.servers[0].freeze()
		pause.For(r.t.Context(), away)
		r.servers[0].thaw()
		return
	case "server killed":
		r.servers[0].kill()
		r.startServer(0)
		return
	case "bodies away":
		r.bodies.Sever()
		pause.For(r.t.Context(), away)
		r.bodies.Mend()
		return
	case "reduce to one":
		for other := range machines {
			if other != disk {
				machines[other].stop()
			}
		}
		pause.For(r.t.Context(), time.Second)
		for other := range machines {
			if other != disk {
				machines[other] = r.startMachine(other)
			}
		}
		return
	case "drain":
		m.stop()
	case "lose disk":
		m.kill()
		at := r.path(fmt.Sprintf("disk-%d", disk)) // commands that outlive their worker write to what is gone
		require.NoError(r.t, os.Rename(at, fmt.Sprintf("%s-lost-%d", at, r.counts[fault])))
	default:
		m.kill()
	}
	machines[disk] = r.startMachine(disk)
}

// builder is a session that builds up a workspace, and the calls that it has made.
type builder struct {
	dispatcher *calls.Dispatcher
	session    protocol.SessionID
	random     *rand.Rand
	made       []protocol.Payload
	edited     string // what the file has that is edited
	again      int    // calls that were started more than once
	fault      error
}

// step makes one call that changes something.
func (b *builder) step(ctx context.Context, n int) error {
	dir := fmt.Sprintf("d%d", b.random.IntN(3))
	name, line := fmt.Sprintf("%s/f%d", dir, b.random.IntN(3)), fmt.Sprintf("%d\n", n)
	var payload protocol.Payload
	command := func(format string, args ...any) {
		payload = protocol.CommandRun{Command: fmt.Sprintf("mkdir -p d0 d1 d2; echo %d >> log; sleep 0.0%d; ", n, b.random.IntN(10)) + fmt.Sprintf(format, args...)}
	}
	switch b.random.IntN(9) {
	case 8:
		payload = protocol.FilesEdit{Path: "edited", Old: b.edited, New: line}
		if b.edited == "" {
			payload = protocol.FilesWrite{Path: "edited", Content: []byte(line)}
		}
		b.edited = line
	case 0:
		payload = protocol.FilesWrite{Path: name, Content: []byte(line)}
	case 1:
		command("rm -f %s", name)
	case 2:
		command("touch %s && chmod %s %s && chmod %s %s", name, []string{"600", "644", "755"}[b.random.IntN(3)], name, []string{"700", "755"}[b.random.IntN(2)], dir)
	case 3:
		command("ln -sfn ../%s %s/link", name, dir)
	case 4: // more than a checkpoint carries
		command("seq %d %d > %s/large && truncate -s +1M %s/large", n, n+30_000, dir, dir)
	default:
		command("echo %d >> %s", n, name)
	}
	b.made = append(b.made, payload)
	_, err := b.do(ctx, payload)
	return err
}

// everything is a command that tells the types, modes, targets of links and contents of all that
// is there.
const everything = `find . -mindepth 1 -printf '%P %y %m %l\n' | LC_ALL=C sort; find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2`

// compare makes the same calls in another session, which no fault hits, and compares what both
// have.
func (b *builder) compare(ctx context.Context) error {
	calm := &builder{dispatcher: b.dispatcher, session: b.session + "-calm"}
	for _, payload := range b.made {
		if _, err := calm.do(ctx, payload); err != nil {
			return err
		}
	}
	want, err := calm.run(ctx, everything)
	if err != nil {
		return err
	}
	found, err := b.run(ctx, everything)
	if err == nil && found != want {
		return fmt.Errorf("the workspace has\n%s\nand not\n%s", found, want)
	}
	return err
}

func (b *builder) run(ctx context.Context, command string) (string, error) {
	value, err := b.do(ctx, protocol.CommandRun{Command: command})
	if err != nil {
		return "", err
	}
	ran, ok := value.(protocol.CommandRunResult)
	if !ok || ran.ExitCode != 0 {
		return "", fmt.Errorf("%s: %v", command, value)
	}
	return string(ran.Stdout), nil
}

func (b *builder) do(ctx context.Context, payload protocol.Payload) (protocol.Value, error) {
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: b.session, Tool: "build", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(b.session)), Access: protocol.Exclusive}},
		Delivery:  protocol.Rollback, MaxAttempts: 1000, IssuedAt: time.Now(), Payload: payload,
	}
	r, err := b.dispatcher.Call(ctx, &call)
	if err != nil {
		return nil, err
	}
	if r.Attempt > 1 {
		b.again++
	}
	if r.Error != nil || r.Status != protocol.StatusOK {
		return nil, fmt.Errorf("%v: %s: %w", payload, r.Status, r.Error)
	}
	return r.Value, nil
}

// Commands append one line after the other while workers that share no disk are killed as fast as
// sessions go on in between. Each line is there once.
func TestChaos_LinesAreAppendedOnce(t *testing.T) { //nolint:paralleltest // see side
	if *callCount == 0 {
		t.Skip("each kill takes a lease: make chaos runs it")
	}
	side(t)
	sessions, kills := 24, max(10, *callCount/50)
	r := newPlace(t, setup{lease: 2 * time.Second})
	machines := r.startMachines()
	d, err := calls.New(t.Context(), r.nc, protocol.DefaultFleet, &calls.Options{LookAfter: 200 * time.Millisecond})
	require.NoError(t, err)
	var builders sync.WaitGroup
	var made atomic.Int64
	var enough atomic.Bool
	begin := time.Now()
	built := make([]*builder, sessions)
	for i := range built {
		b := &builder{dispatcher: d, session: protocol.SessionID(fmt.Sprintf("s-%d", i))}
		built[i] = b
		builders.Go(func() { b.fault = b.appendLines(t.Context(), &enough, &made) })
	}
	for before := int64(0); r.counts["kill"] < kills && (*limit == 0 || time.Since(begin) < *limit); before = made.Load() {
		pause.For(t.Context(), time.Duration(float64(200*time.Millisecond)*(0.5+r.random.Float64())))
		require.Eventually(t, func() bool { return made.Load() > before }, patience, time.Millisecond, "no session goes on")
		disk := r.random.IntN(len(machines))
		machines[disk].kill()
		machines[disk] = r.startMachine(disk)
		r.counts["kill"]++
	}
	enough.Store(true)
	builders.Wait()
	again := 0
	for _, b := range built {
		require.NoError(t, b.fault, b.session)
		again += b.again
	}
	t.Logf("-seed=%d: %d lines of %d sessions on 3 disks, faults %v, %d calls started again, 0 lost, 0 double, %s",
		*seed, made.Load(), sessions, r.counts, again, time.Since(begin).Round(time.Second))
}

// appendLines appends lines until there are enough, and looks whether each is there once.
func (b *builder) appendLines(ctx context.Context, enough *atomic.Bool, made *atomic.Int64) error {
	var want strings.Builder
	for n := 1; !enough.Load(); n++ {
		if _, err := b.run(ctx, fmt.Sprintf("echo %d >> log", n)); err != nil {
			return err
		}
		fmt.Fprintln(&want, n)
		made.Add(1)
	}
	found, err := b.run(ctx, "cat log")
	if err == nil && found != want.String() {
		err = fmt.Errorf("the log has\n%s\nand not\n%s", found, want.String())
	}
	return err
}
