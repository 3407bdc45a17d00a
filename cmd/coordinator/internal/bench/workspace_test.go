package bench

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// files is a shell script that makes a workspace of 10,000 files and 100 MB in a directory.
const files = `for d in $(seq 100 199); do mkdir $d && seq ${d}000000 ${d}110000 | head -c 1024000 | split -b 10240 -a 3 - $d/; done`

// BenchmarkWorkspace measures workspaces that move beside tar, zstd, git and cp in the same run:
// each line has the medians of both and their ratio. The server listens on a socket and writes to a
// disk.
func BenchmarkWorkspace(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "files")
	require.NoError(b, os.Mkdir(dir, 0o700))
	command(b, dir, "bash", "-ec", files)
	b.Run("Checkpoint", func(b *testing.B) { benchCheckpoint(b, dir) })
	b.Run("CheckpointOf17Changes", func(b *testing.B) { benchChanges(b, dir) })
	b.Run("Restore", func(b *testing.B) { benchRestore(b, dir) })
	b.Run("RestoreWhereItWas", func(b *testing.B) { benchReturn(b, dir) })
	b.Run("Write", benchWrite)
	b.Run("Takeover", benchTakeover)
}

// benchStore is a fleet whose workspaces are measured.
type benchStore struct {
	*workspace.Store

	connect func(string) (*nats.Conn, error)
	js      jetstream.JetStream
	fleet   protocol.Fleet
	lane    protocol.Lane
	epoch   uint64
}

func newBenchStore(b *testing.B) *benchStore {
	b.Helper()
	connect, stop, err := Embedded(b.Context(), b.TempDir(), true, false, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	b.Cleanup(stop)
	s := &benchStore{connect: connect, fleet: "tf-bench", lane: "sandbox/bench"}
	nc, err := connect("bench")
	require.NoError(b, err)
	b.Cleanup(nc.Close)
	s.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(b, err)
	require.NoError(b, natsio.Ensure(b.Context(), s.js, natsio.Topology{Fleet: s.fleet}))
	s.Store, err = workspace.Open(b.Context(), nc, s.fleet, "")
	require.NoError(b, err)
	return s
}

// take takes the workspace of a lane.
func (s *benchStore) take(b *testing.B) *workspace.Workspace {
	b.Helper()
	s.epoch++
	w, err := s.Take(b.Context(), s.lane, "disk", s.epoch)
	require.NoError(b, err)
	return w
}

// commit keeps what a directory has, and returns how long that took.
func (s *benchStore) commit(b *testing.B, w *workspace.Workspace, dir string, index snapshot.Index) time.Duration {
	b.Helper()
	root := open(b, dir)
	return timed(func() {
		delta, err := snapshot.Save(b.Context(), root, w.Tree(), index, s, nil)
		require.NoError(b, err)
		call := wire.RandomCallID()
		require.NoError(b, w.Commit(b.Context(), delta, &protocol.Result{CallID: call, Status: protocol.StatusOK, Value: wire.NoopResult{}}))
		w.Settled(call)
	})
}

// forget removes all workspaces with their contents, so that the next are stored anew.
func (s *benchStore) forget(b *testing.B) {
	b.Helper()
	require.NoError(b, s.Remove(b.Context(), wire.HashLane(s.lane), math.MaxUint64))
	_, err := s.Sweep(b.Context(), -time.Hour)
	require.NoError(b, err)
}

func benchCheckpoint(b *testing.B, dir string) {
	b.Helper()
	s := newBenchStore(b)
	archive := filepath.Join(b.TempDir(), "archive")
	compare(b, func() time.Duration {
		defer s.forget(b)
		return s.commit(b, s.take(b), dir, snapshot.Index{})
	}, func() time.Duration {
		return timed(func() { command(b, dir, "bash", "-ec", "set -o pipefail; tar -c . | zstd -1 -q -f -o "+archive) })
	})
}

func benchChanges(b *testing.B, dir string) {
	b.Helper()
	s := newBenchStore(b)
	mine, repository := filepath.Join(b.TempDir(), "mine"), filepath.Join(b.TempDir(), "git")
	for _, to := range []string{mine, repository} {
		command(b, dir, "cp", "-r", ".", to)
	}
	command(b, repository, "bash", "-ec", "git init -q && git add -A && git -c user.name=a -c user.email=a@example.com commit -qm all")
	w, index := s.take(b), snapshot.Index{}
	pause.For(b.Context(), 100*time.Millisecond) // a file that changed a moment ago is not remembered
	s.commit(b, w, mine, index)
	n := 0
	compare(b, func() time.Duration {
		n++
		for _, to := range []string{mine, repository} {
			for i := range 17 {
				path := filepath.Join(to, strconv.Itoa(100+5*i), "aaa")
				require.NoError(b, os.WriteFile(path, fmt.Appendf(nil, "change %d of %d\n", n, i), 0o600))
			}
		}
		pause.For(b.Context(), 100*time.Millisecond)
		return s.commit(b, w, mine, index)
	}, func() time.Duration {
		return timed(func() { command(b, repository, "bash", "-ec", "git status --porcelain >/dev/null; git add -A") })
	})
}

func benchRestore(b *testing.B, dir string) {
	b.Helper()
	s := newBenchStore(b)
	w := s.take(b)
	s.commit(b, w, dir, snapshot.Index{})
	to := filepath.Join(b.TempDir(), "restored")
	compare(b, func() time.Duration {
		require.NoError(b, os.Mkdir(to, 0o700))
		defer os.RemoveAll(to)
		return restore(b, w, open(b, to), snapshot.Index{}, s)
	}, func() time.Duration {
		defer os.RemoveAll(to)
		return timed(func() { command(b, dir, "cp", "-r", ".", to) })
	})
}

// benchReturn restores a workspace on a disk that has it as it was before 17 files changed.
func benchReturn(b *testing.B, dir string) {
	b.Helper()
	s := newBenchStore(b)
	to, copied := filepath.Join(b.TempDir(), "left"), filepath.Join(b.TempDir(), "copied")
	command(b, dir, "cp", "-r", ".", to)
	pause.For(b.Context(), 100*time.Millisecond)
	w, index := s.take(b), snapshot.Index{}
	s.commit(b, w, to, index)
	compare(b, func() time.Duration {
		for i := range 17 {
			require.NoError(b, os.WriteFile(filepath.Join(to, strconv.Itoa(100+5*i), "aaa"), []byte("other"), 0o600))
		}
		pause.For(b.Context(), 100*time.Millisecond)
		return restore(b, w, open(b, to), index, s)
	}, func() time.Duration {
		defer os.RemoveAll(copied)
		return timed(func() { command(b, dir, "cp", "-r", ".", copied) })
	})
}

func restore(b *testing.B, w *workspace.Workspace, root *os.Root, index snapshot.Index, bodies snapshot.Bodies) time.Duration {
	b.Helper()
	return timed(func() {
		_, err := snapshot.Restore(b.Context(), root, w.Tree(), index, bodies, nil)
		require.NoError(b, err)
	})
}

// benchWrite compares a write that is stored with the fleet before its result with one in place,
// by durable publishes.
func benchWrite(b *testing.B) {
	s := newBenchStore(b)
	_, err := s.js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "plain", Subjects: []string{"plain"}, Storage: jetstream.FileStorage})
	require.NoError(b, err)
	kept, local := newBenchFleet(b, s, "tf-kept"), newBenchFleet(b, s, "tf-local")
	kept.work(b, nil)
	dir := b.TempDir()
	local.work(b, func(string) (string, bool) { return dir, true })
	var with, without, publishes []time.Duration
	for b.Loop() {
		for i := range 100 {
			write := protocol.FilesWrite{Path: "file", Content: fmt.Appendf(nil, "line %d\n", i)}
			with = append(with, timed(func() { kept.do(b, write) }))
			without = append(without, timed(func() { local.do(b, write) }))
			publishes = append(publishes, timed(func() {
				_, err := s.js.Publish(b.Context(), "plain", make([]byte, 1024))
				require.NoError(b, err)
			}))
		}
	}
	report(b, median(with), median(without))
	b.ReportMetric((median(with)-median(without)).Seconds()/median(publishes).Seconds(), "publishes-over")
}

// benchTakeover drains the worker that has a workspace, and waits for the next call of it.
func benchTakeover(b *testing.B) {
	f := newBenchFleet(b, newBenchStore(b), "tf-bench")
	drain := f.work(b, nil)
	f.do(b, protocol.CommandRun{Command: files})
	var took []time.Duration
	for b.Loop() {
		next := f.work(b, nil)
		took = append(took, timed(func() {
			drain()
			f.do(b, protocol.CommandRun{Command: "test $(ls | wc -l) = 100"})
		}))
		drain = next
	}
	report(b, median(took), 0)
}

// benchFleet is a fleet with workers of their own disks.
type benchFleet struct {
	*benchStore

	name       protocol.Fleet
	dispatcher *calls.Dispatcher
}

func newBenchFleet(b *testing.B, s *benchStore, name protocol.Fleet) *benchFleet {
	b.Helper()
	nc, err := s.connect("callers")
	require.NoError(b, err)
	b.Cleanup(nc.Close)
	require.NoError(b, natsio.Ensure(b.Context(), s.js, natsio.Topology{Fleet: name}))
	d, err := calls.New(b.Context(), nc, name, nil)
	require.NoError(b, err)
	return &benchFleet{s, name, d}
}

// work starts a worker; drain has it end.
func (f *benchFleet) work(b *testing.B, inPlace func(string) (string, bool)) (drain func()) {
	b.Helper()
	nc, err := f.connect("worker")
	require.NoError(b, err)
	logger := slog.New(slog.DiscardHandler)
	opened, caps, err := drivers.Open(b.Context(), drivers.Auto, &drivers.Options{Logger: logger})
	require.NoError(b, err)
	w, err := worker.New(b.Context(), nc, worker.Options{
		Options:  lane.Options{Fleet: f.name, Worker: wire.NewWorkerID("bench"), Logger: logger},
		Settings: sandboxes.Settings{Driver: opened, Caps: caps, Workspace: inPlace}, Data: b.TempDir(),
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, context.Background()) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-done)
		nc.Close()
	})
	return cancel
}

// do makes a call, which must go well.
func (f *benchFleet) do(b *testing.B, payload protocol.Payload) {
	b.Helper()
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: "bench", Tool: "bench", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey("bench"), Access: protocol.Exclusive}},
		Delivery:  protocol.Rollback, IssuedAt: time.Now(), Payload: payload,
	}
	if write, is := payload.(protocol.FilesWrite); is {
		call.Resources[0].Key += protocol.ResourceKey("/" + write.Path)
	}
	result, err := f.dispatcher.Call(b.Context(), &call)
	require.NoError(b, err)
	require.Nil(b, result.Error)
}

// compare runs ours and theirs in turns, and reports both.
func compare(b *testing.B, ours, theirs func() time.Duration) {
	b.Helper()
	var mine, plain []time.Duration
	for b.Loop() {
		mine, plain = append(mine, ours()), append(plain, theirs())
	}
	report(b, median(mine), median(plain))
}

// report reports milliseconds, and beside what they are when that is measured.
func report(b *testing.B, ours, theirs time.Duration) {
	b.Helper()
	b.ReportMetric(0, "ns/op") // has what is not measured, too
	b.ReportMetric(ours.Seconds()*1000, "ms")
	if theirs > 0 {
		b.ReportMetric(theirs.Seconds()*1000, "plain-ms")
		b.ReportMetric(ours.Seconds()/theirs.Seconds(), "ratio")
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func timed(do func()) time.Duration {
	begun := time.Now()
	do()
	return time.Since(begun)
}

func command(b *testing.B, dir string, name string, args ...string) {
	b.Helper()
	run := exec.CommandContext(b.Context(), name, args...)
	run.Dir = dir
	output, err := run.CombinedOutput()
	require.NoError(b, err, "%s", output)
}

func open(b *testing.B, dir string) *os.Root {
	b.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(b, err)
	b.Cleanup(func() { _ = root.Close() }) // it was only used
	return root
}
