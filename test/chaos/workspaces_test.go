//go:build linux

package chaos

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	plain "github.com/toolfleet/toolfleet/pkg/sandbox/process"
)

// machineRole is a worker with sandboxes and a disk of its own.
type machineRole struct {
	URL, Creds, Data string
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
	w, err := worker.New(ctx, nc, worker.Options{
		ID: m.Worker, Data: m.Data, Slots: 8, Driver: driver, Caps: sandbox.Caps{Driver: driver.Name()},
		Durability: worker.DurabilityCheckpoint, Linger: 300 * time.Millisecond, Logger: logger,
	})
	if err != nil {
		return err
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
	role := machineRole{URL: r.url(), Creds: r.creds(), Data: r.path(fmt.Sprintf("disk-%d", disk)), Worker: m.id}
	m.process = spawn(r.t, "machine", &role, r.path(string(m.id)+".stderr"))
	return m
}

// Sessions build up files with commands and edits on workers that share no disk, while these are
// killed, stopped for longer than a lease, drained, and lose their disks. At the end each workspace
// has what it would have without any fault: each line once, in order.
func TestChaos_WorkspacesMove(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	sessions, steps, pausing := 6, 12, 2*time.Second
	if *calls > 0 {
		sessions = 24
		steps = max(10, *calls/sessions)
	}
	r := newPlace(t, setup{})
	machines := make([]*member, 3)
	for disk := range machines {
		machines[disk] = r.startMachine(disk)
	}
	d, err := dispatch.New(t.Context(), r.nc, protocol.DefaultFleet, &dispatch.Options{LookAfter: 200 * time.Millisecond})
	require.NoError(t, err)
	var builders sync.WaitGroup
	var made atomic.Int64
	done, begin := make(chan struct{}), time.Now()
	built := make([]*builder, sessions)
	for i := range built {
		built[i] = &builder{dispatcher: d, session: protocol.SessionID(fmt.Sprintf("s-%d", i)), random: rand.New(rand.NewPCG(*seed, uint64(i))), files: map[string]string{}}
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
			built[i].fault = built[i].check(t.Context())
		})
	}
	go func() { builders.Wait(); close(done) }()
	for n := 0; ; n++ {
		select {
		case <-done:
			for _, b := range built {
				require.NoError(t, b.fault, b.session)
			}
			t.Logf("-seed=%d: %d calls of %d sessions on 3 disks, faults %v, 0 lost, 0 double, %s",
				*seed, made.Load(), sessions, r.counts, time.Since(begin).Round(time.Second))
			return
		case <-time.After(time.Duration(float64(pausing) * (0.2 + r.random.Float64()))):
		}
		disk := r.random.IntN(len(machines))
		m := machines[disk]
		switch fault := []string{"kill", "stop", "drain", "lose disk"}[r.random.IntN(4)]; fault {
		case "stop":
			m.freeze()
			pause.For(t.Context(), r.setup.lease+500*time.Millisecond)
			m.thaw()
			r.counts[fault]++
		case "drain":
			m.stop()
			machines[disk] = r.startMachine(disk)
			r.counts[fault]++
		case "lose disk":
			m.kill()
			require.NoError(t, os.RemoveAll(r.path(fmt.Sprintf("disk-%d", disk))))
			machines[disk] = r.startMachine(disk)
			r.counts[fault]++
		default:
			m.kill()
			machines[disk] = r.startMachine(disk)
			r.counts[fault]++
		}
	}
}

// builder is a session, and what its workspace must have.
type builder struct {
	dispatcher *dispatch.Dispatcher
	session    protocol.SessionID
	random     *rand.Rand
	files      map[string]string
	fault      error
}

// step makes one call that changes something.
func (b *builder) step(ctx context.Context, n int) error {
	name, line := fmt.Sprintf("d%d/f%d", b.random.IntN(3), b.random.IntN(3)), fmt.Sprintf("%d\n", n)
	switch b.random.IntN(4) {
	case 0:
		_, err := b.do(ctx, protocol.FilesWrite{Path: name, Content: []byte(line)})
		b.files[name] = line
		return err
	case 1:
		delete(b.files, name)
		_, err := b.run(ctx, fmt.Sprintf("echo %d >> log; rm -f %s", n, name))
		b.files["log"] += line
		return err
	default:
		b.files["log"] += line
		b.files[name] += line
		_, err := b.run(ctx, fmt.Sprintf("mkdir -p d0 d1 d2; echo %d >> log; sleep 0.0%d; echo %d >> %s", n, b.random.IntN(10), n, name))
		return err
	}
}

// check compares the workspace with what it must have.
func (b *builder) check(ctx context.Context) error {
	var want []string
	for name, content := range b.files {
		want = append(want, name+"\n"+content)
	}
	slices.Sort(want)
	found, err := b.run(ctx, `find . -type f | LC_ALL=C sort | while read f; do echo "${f#./}"; cat "$f"; done`)
	if expected := strings.Join(want, ""); err == nil && found != expected {
		return fmt.Errorf("the workspace has\n%s\nand not\n%s", found, expected)
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
		ID: protocol.RandomCallID(), SessionID: b.session, Tool: "build", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(b.session)), Access: protocol.Exclusive}},
		Delivery:  protocol.Rollback, MaxAttempts: 1000, IssuedAt: time.Now(), Payload: payload,
	}
	r, err := b.dispatcher.One(ctx, &call)
	if err != nil {
		return nil, err
	}
	if r.Error != nil || r.Status != protocol.StatusOK {
		return nil, fmt.Errorf("%v: %s: %w", payload, r.Status, r.Error)
	}
	return r.Value, nil
}
