package workspace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// writes are what an operation changes in the fleet.
var writes = regexp.MustCompile(`PUB (\$O\.|tf\.workspace\.|\$JS\.API\.STREAM\.PURGE\.)`)

// world is a fleet, and files that operations store.
type world struct {
	*testing.T

	fleet *natsiotest.Fleet
	store *workspace.Store // of a process that lives
	dir   *os.Root
	large []byte
}

func newWorld(t *testing.T) *world {
	t.Helper()
	f := natsiotest.Listening(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	claims(t, f, 20)
	w := &world{T: t, fleet: f, store: store, dir: directory(t)}
	w.write()
	return w
}

// write changes the files: what is known is not stored again.
func (w *world) write() {
	w.Helper()
	w.large = random(300 << 10)
	require.NoError(w, w.dir.WriteFile("large", w.large, 0o600))
	require.NoError(w, w.dir.WriteFile("small", []byte("small"), 0o600))
}

// dying calls do with the store of a process that dies at its nth write: before it is made, or when
// its answer is lost. It reports false if do made fewer writes.
func (w *world) dying(n int, made bool, do func(context.Context, *workspace.Store)) bool {
	w.Helper()
	address, err := url.Parse(w.fleet.Server.URL())
	require.NoError(w, err)
	cable := natsiotest.NewCable(w, address.Host)
	nc, err := natsio.Connect(w.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: w.Name(), Creds: w.fleet.Server.CredentialFile()})
	require.NoError(w, err)
	defer nc.Close()
	store, err := workspace.Open(w.Context(), nc, w.fleet.Name, "")
	require.NoError(w, err)
	ctx, die := context.WithCancel(w.Context())
	defer die()
	reached, watched := atomic.Bool{}, make(chan struct{})
	cable.Before(func(said []byte) bool {
		n -= len(writes.FindAll(said, -1))
		return n <= 0
	}, func() {
		reached.Store(true)
		end := func() {
			die()
			nc.Close()
			close(watched)
		}
		if !made {
			cable.Sever()
			go end()
			return
		}
		cable.Deafen()
		seen, err := w.fleet.NC.SubscribeSync(">")
		if err == nil {
			err = w.fleet.NC.Flush()
		}
		go func() {
			defer end()
			for err == nil { // until the write has arrived
				msg, nextErr := seen.NextMsg(10 * time.Second)
				if err = nextErr; err == nil && writes.MatchString("PUB "+msg.Subject) {
					break
				}
			}
			_ = seen.Unsubscribe()
			_, _ = w.fleet.JS.AccountInfo(w.Context()) // it is likely to be stored by now
		}()
	})
	do(ctx, store)
	cable.Before(func([]byte) bool { return false }, nil)
	if reached.Load() {
		<-watched
	}
	return reached.Load()
}

// each runs a case for each write of an operation that is not made, or whose answer is lost.
func (w *world) each(do func(name string, n int, made bool) bool) {
	w.Helper()
	cases := 0
	for _, made := range []bool{false, true} {
		for n := 1; do(fmt.Sprintf("w%d%t", n, made), n, made); n++ {
			cases++
			if w.write(); w.Failed() {
				return
			}
		}
		w.write()
	}
	require.Greater(w, cases, 3)
	w.Log(cases, "cases")
}

// sweep removes garbage, however young.
func (w *world) sweep() {
	w.Helper()
	_, err := w.store.Sweep(w.Context(), 0)
	require.NoError(w, err)
}

// requireFiles checks what a workspace has, after a sweep.
func (w *world) requireFiles(tree snapshot.Tree) {
	w.Helper()
	w.sweep()
	root := directory(w.T)
	_, err := snapshot.Restore(w.Context(), root, tree, snapshot.Index{}, w.store, nil)
	require.NoError(w, err)
	for name, want := range map[string]string{"large": string(w.large), "small": "small"} {
		got, err := os.ReadFile(filepath.Join(root.Name(), name))
		require.NoError(w, err)
		require.Equal(w, want, string(got))
	}
}

// A worker that is lost while it commits leaves the workspace as it was, or as it became, with the
// result of the call.
func TestCrash_Commit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := result("c1")
	r.Value = protocol.FilesReadResult{Content: random(64 << 10)}
	w.each(func(name string, n int, made bool) bool {
		lane := protocol.Lane("sandbox/" + name)
		died := w.dying(n, made, func(ctx context.Context, store *workspace.Store) {
			taken, err := store.Take(ctx, lane, "w", 1)
			if err != nil {
				return
			}
			delta, err := snapshot.Save(ctx, w.dir, taken.Tree(), snapshot.Index{}, store, nil)
			if err != nil {
				return
			}
			for i := range 80 { // enough for a base
				delta.Set[fmt.Sprint(i)] = snapshot.Node{Type: protocol.TypeSymlink, Target: strings.Repeat("t", 4000)}
			}
			_ = taken.Commit(ctx, delta, r)
		})
		w.sweep()
		next, err := w.store.Take(t.Context(), lane, "w", 2)
		require.NoError(t, err)
		found, err := next.Result(t.Context(), "c1")
		require.NoError(t, err)
		require.Equal(t, found != nil, len(next.Tree()) > 0, name)
		if found != nil {
			require.Equal(t, r.Value, found.Value)
			w.requireFiles(next.Tree())
		}
		require.True(t, died || found != nil)
		return died
	})
}

// An upload whose sender or worker is lost is sent again.
func TestCrash_Upload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.each(func(name string, n int, made bool) bool {
		send := func(ctx context.Context, store *workspace.Store) (snapshot.Tree, error) {
			up, err := store.Upload(ctx, name, w.dir, snapshot.Index{}, nil, store, false)
			if err != nil {
				return nil, err
			}
			encoded, err := json.Marshal(up)
			if err == nil {
				_, err = natsio.PutObject(ctx, w.fleet.JS, wire.BlobsBucket(w.fleet.Name), wire.UploadBlob("s-1", name), bytes.NewReader(encoded))
			}
			if err != nil {
				return nil, err
			}
			tree, _, err := store.Receive(ctx, name, "w", up, nil)
			return tree, err
		}
		died := w.dying(n, made, func(ctx context.Context, store *workspace.Store) { _, _ = send(ctx, store) })
		w.sweep()
		tree, err := send(t.Context(), w.store)
		require.NoError(t, err)
		require.NoError(t, natsio.DeleteObjects(t.Context(), w.fleet.JS, wire.BlobsBucket(w.fleet.Name), wire.UploadBlob("s-1", name)))
		w.requireFiles(tree)
		return died
	})
}

// A template that was cut short is made by doing it again, and so is a workspace of it.
func TestCrash_Template(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.each(func(name string, n int, made bool) bool {
		lane := protocol.Lane("sandbox/" + name)
		begin := func(ctx context.Context, store *workspace.Store) (err error) {
			for _, do := range []func() error{
				func() error { return store.TemplateFrom(ctx, name, w.dir, nil) },
				func() error { return store.FromTemplate(ctx, name, lane) },
			} {
				if err = do(); err != nil && ctx.Err() != nil {
					return err
				}
			}
			return err
		}
		died := w.dying(n, made, func(ctx context.Context, store *workspace.Store) { _ = begin(ctx, store) })
		w.sweep()
		if err := begin(t.Context(), w.store); err != nil {
			require.ErrorIs(t, err, workspace.ErrExists)
		}
		taken, err := w.store.Take(t.Context(), lane, "w", 1)
		require.NoError(t, err)
		w.requireFiles(workspace.FilesOf(taken.Tree()))
		return died
	})
}

// A removal that was cut short leaves the workspace or an empty one; done again, nothing is left in
// the fleet.
func TestCrash_Remove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.each(func(name string, n int, made bool) bool {
		require.NoError(t, w.store.TemplateFrom(t.Context(), name, w.dir, nil))
		lane := protocol.Lane("sandbox/" + name)
		require.NoError(t, w.store.FromTemplate(t.Context(), name, lane))
		before, err := w.store.Take(t.Context(), lane, "w", 1)
		require.NoError(t, err)
		remove := func(ctx context.Context, store *workspace.Store) error {
			if err := store.Remove(ctx, wire.HashLane(lane), 1); err != nil {
				return err
			}
			return store.RemoveTemplate(ctx, name)
		}
		died := w.dying(n, made, func(ctx context.Context, store *workspace.Store) { _ = remove(ctx, store) })
		w.sweep()
		next, err := w.store.Take(t.Context(), lane, "w", 1)
		require.NoError(t, err)
		if len(next.Tree()) > 0 {
			require.Equal(t, before.Tree(), next.Tree())
			w.requireFiles(workspace.FilesOf(next.Tree()))
		}
		if err := remove(t.Context(), w.store); err != nil {
			require.ErrorIs(t, err, workspace.ErrNone, "the template is removed")
		}
		w.sweep()
		_, err = natsio.SweepChunks(t.Context(), w.fleet.JS, wire.BodiesBucket(w.fleet.Name))
		require.NoError(t, err)
		for _, name := range []string{wire.WorkspacesStream(w.fleet.Name), natsio.ObjectStream(wire.BodiesBucket(w.fleet.Name))} {
			w.requireEmpty(name)
		}
		return died
	})
}

// requireEmpty checks that a stream has no message, but for chunks that were stored just now.
func (w *world) requireEmpty(name string) {
	w.Helper()
	stream, err := w.fleet.JS.Stream(w.Context(), name)
	require.NoError(w, err)
	info, err := stream.Info(w.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(w, err)
	for subject := range info.State.Subjects {
		require.Contains(w, subject, ".C.", "its record is removed first")
	}
}

// A sweep that was cut short leaves what is needed, and the next one removes the rest.
func TestCrash_Sweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.each(func(name string, n int, made bool) bool {
		require.NoError(t, w.store.TemplateFrom(t.Context(), name, w.dir, nil))
		for i := range 3 {
			require.NoError(t, w.store.Put(t.Context(), fmt.Sprint("garbage", i), random(1000)))
		}
		died := w.dying(n, made, func(ctx context.Context, store *workspace.Store) { _, _ = store.Sweep(ctx, 0) })
		lane := protocol.Lane("sandbox/" + name)
		require.NoError(t, w.store.FromTemplate(t.Context(), name, lane))
		taken, err := w.store.Take(t.Context(), lane, "w", 1)
		require.NoError(t, err)
		w.requireFiles(workspace.FilesOf(taken.Tree()))
		for i := range 3 {
			_, err := w.store.Get(t.Context(), fmt.Sprint("garbage", i))
			require.ErrorIs(t, err, workspace.ErrMissing)
		}
		return died
	})
}
