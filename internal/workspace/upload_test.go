package workspace_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// counted is a store that counts the bytes of bodies.
type counted struct {
	*workspace.Store

	mu   sync.Mutex
	sent int
	got  int
}

func (c *counted) Put(ctx context.Context, name string, body []byte) error {
	c.mu.Lock()
	c.sent += len(body)
	c.mu.Unlock()
	return c.Store.Put(ctx, name, body)
}

func (c *counted) Get(ctx context.Context, name string) ([]byte, error) {
	body, err := c.Store.Get(ctx, name)
	c.mu.Lock()
	c.got += len(body)
	c.mu.Unlock()
	return body, err
}

func directory(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

// upload uploads a directory, by way of the wire. It returns how many bytes that are.
func upload(t *testing.T, store *workspace.Store, root *os.Root) (snapshot.Tree, workspace.Ref, int) {
	t.Helper()
	bodies := &counted{Store: store}
	up, err := store.Upload(t.Context(), "dir", root, snapshot.Index{}, nil, bodies, false)
	require.NoError(t, err)
	wire, err := json.Marshal(up)
	require.NoError(t, err)
	received, err := workspace.ReadUpload(bytes.NewReader(wire))
	require.NoError(t, err)
	tree, at, err := store.Receive(t.Context(), "dir", "w", received, nil)
	require.NoError(t, err)
	require.Equal(t, up.Tree, tree)
	return tree, at, bodies.sent + len(wire)
}

// TestUpload_SendsWhatIsNew, and a session's work comes back likewise.
func TestUpload_SendsWhatIsNew(t *testing.T) {
	t.Parallel()
	store, root := open(t), directory(t)
	for i := range 500 {
		require.NoError(t, root.WriteFile(fmt.Sprint("f", i), random(20_000+i), 0o600))
	}
	_, first, all := upload(t, store, root)
	require.Greater(t, all, 10_000_000)
	_, same, none := upload(t, store, root)
	require.Equal(t, first, same)
	require.Less(t, none, 100)
	require.NoError(t, root.WriteFile("f7", random(30_000), 0o600))
	_, second, few := upload(t, store, root)
	require.Greater(t, second.Checkpoint, first.Checkpoint)
	require.Less(t, few, 40_000)

	session := directory(t)
	files, err := store.Files(t.Context(), second)
	require.NoError(t, err)
	_, err = snapshot.Restore(t.Context(), session, files, snapshot.Index{}, store, nil)
	require.NoError(t, err)
	require.NoError(t, session.Remove("f8"))
	require.NoError(t, session.WriteFile("f9", random(30_000), 0o600))
	delta, err := snapshot.Save(t.Context(), session, files, snapshot.Index{}, store, nil)
	require.NoError(t, err)
	require.NoError(t, delta.Outline(t.Context(), store))
	at, err := store.Bring(t.Context(), "dir", "w", files.With(delta), nil)
	require.NoError(t, err)
	base, err := files.Manifest(t.Context(), store)
	require.NoError(t, err)
	theirs, err := store.Files(t.Context(), at)
	require.NoError(t, err)
	bodies := &counted{Store: store}
	changes, err := snapshot.Sync(t.Context(), root, base, theirs, bodies, nil)
	require.NoError(t, err)
	require.Equal(t, []any{[]string{"f9"}, []string{"f8"}}, []any{changes.Written, changes.Removed})
	require.Less(t, bodies.got, 40_000)
	_, _, none = upload(t, store, root)
	require.Less(t, none, 1000, "what came back is known: only its time is another")
}

// TestReceive_RefusesWhatDoesNotFit: then the journal stays as it is.
func TestReceive_RefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	store, root := open(t), directory(t)
	require.NoError(t, root.WriteFile("f", []byte("one"), 0o600))
	tree, at, _ := upload(t, store, root)
	for name, delta := range map[string]snapshot.Delta{
		"path":   {Set: snapshot.Tree{"../f": {Type: protocol.TypeDir}}},
		"device": {Set: snapshot.Tree{"d": {Type: "device"}}},
		"inline": {Set: snapshot.Tree{"d": {Type: protocol.TypeFile, Size: 1, Parts: []snapshot.Part{{Size: 1, Sum: "x", Body: "@1"}}}}},
	} {
		_, _, err := store.Receive(t.Context(), "dir", "w", &workspace.Upload{After: at.Checkpoint, Delta: delta}, nil)
		require.ErrorIs(t, err, workspace.ErrInvalid, name)
	}
	_, _, err := store.Receive(t.Context(), "dir", "w", &workspace.Upload{Delta: snapshot.Delta{Set: tree}}, nil)
	require.ErrorIs(t, err, workspace.ErrLost)
	last, err := store.Last(t.Context(), "dir")
	require.NoError(t, err)
	require.Equal(t, tree, last)
}

// TestSweep_KeepsWhatUploadsNeed, until nobody has uploaded the directory for long: then it begins
// anew, and whoever has read the journal before has to read it again.
func TestSweep_KeepsWhatUploadsNeed(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	root := directory(t)
	require.NoError(t, root.WriteFile("f", random(300_000), 0o600))
	first, _, _ := upload(t, store, root)
	n := mustSweep(t, store, 0)
	require.Zero(t, n)
	require.NoError(t, root.WriteFile("g", []byte("two"), 0o600))
	up, err := store.Upload(t.Context(), "dir", root, snapshot.Index{}, nil, store, false)
	require.NoError(t, err)

	require.NoError(t, store.SweepUploads(t.Context(), time.Now().Add(time.Hour)))
	_, _, err = store.Receive(t.Context(), "dir", "w", up, nil)
	require.ErrorIs(t, err, workspace.ErrLost)
	mustSweep(t, store, 0)
	_, err = snapshot.Restore(t.Context(), directory(t), first, snapshot.Index{}, store, nil)
	require.ErrorIs(t, err, workspace.ErrMissing)

	_, at, _ := upload(t, store, root)
	files, err := store.Files(t.Context(), at)
	require.NoError(t, err)
	_, err = snapshot.Restore(t.Context(), directory(t), files, snapshot.Index{}, store, nil)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, store.SweepUploads(t.Context(), time.Now().Add(time.Hour)))
	}
	stream, err := f.JS.Stream(t.Context(), wire.WorkspacesStream(f.Name))
	require.NoError(t, err)
	require.Zero(t, stream.CachedInfo().State.Msgs)
}

// send uploads a directory, as it arrives at a worker.
func send(t *testing.T, store *workspace.Store, root *os.Root, whole bool) (*workspace.Upload, []byte) {
	t.Helper()
	up, err := store.Upload(t.Context(), "dir", root, snapshot.Index{}, nil, store, whole)
	require.NoError(t, err)
	encoded, err := json.Marshal(up)
	require.NoError(t, err)
	received, err := workspace.ReadUpload(bytes.NewReader(encoded))
	require.NoError(t, err)
	return received, encoded
}

// An upload that waits for a worker for long keeps what it names.
func TestSweep_KeepsWhatAWaitingUploadNames(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	root := directory(t)
	require.NoError(t, root.WriteFile("f", random(200_000), 0o600))
	up, encoded := send(t, store, root, false)
	blob := wire.UploadBlob("s-1", "1")
	_, err := natsio.PutObject(t.Context(), f.JS, wire.BlobsBucket(f.Name), blob, bytes.NewReader(encoded))
	require.NoError(t, err)
	for _, name := range []string{wire.UploadBase("s-1", "dir"), wire.UploadBlob("s-1", "other")} {
		_, err := natsio.PutObject(t.Context(), f.JS, wire.BlobsBucket(f.Name), name, strings.NewReader("no upload"))
		require.NoError(t, err)
	}
	n := mustSweep(t, store, 0)
	require.Zero(t, n)
	tree, _, err := store.Receive(t.Context(), "dir", "w", up, nil)
	require.NoError(t, err)
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.BlobsBucket(f.Name), blob))
	n = mustSweep(t, store, 0)
	require.Zero(t, n)
	_, err = snapshot.Restore(t.Context(), directory(t), tree, snapshot.Index{}, store, nil)
	require.NoError(t, err)
}

// TestSweep_AnUploadThatNoWorkerCanRead ends no sweep: whoever sends calls may store one.
func TestSweep_AnUploadThatNoWorkerCanRead(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	require.NoError(t, store.Put(t.Context(), "unused", []byte("body")))
	bucket, name := wire.BlobsBucket(f.Name), wire.UploadBlob("s-1", "1")
	_, err := f.JS.Publish(t.Context(), "$O."+bucket+".C.n", []byte("{}"))
	require.NoError(t, err)
	record := fmt.Sprintf(`{"name":%q,"bucket":%q,"nuid":"n","size":2,"chunks":1,"digest":"SHA-256=wrong"}`, name, bucket)
	_, err = f.JS.Publish(t.Context(), "$O."+bucket+".M."+base64.URLEncoding.EncodeToString([]byte(name)), []byte(record))
	require.NoError(t, err)
	n := mustSweep(t, store, 0)
	require.Equal(t, 1, n)
}

// An upload whose contents were removed while it waited is refused: its journal never names what is
// not there, and the next upload sends it.
func TestReceive_RefusesWhatIsMissing(t *testing.T) {
	t.Parallel()
	store, root := open(t), directory(t)
	require.NoError(t, root.WriteFile("f", random(200_000), 0o600))
	up, _ := send(t, store, root, false)
	n := mustSweep(t, store, 0)
	require.Equal(t, 1, n)
	_, _, err := store.Receive(t.Context(), "dir", "w", up, nil)
	require.ErrorIs(t, err, workspace.ErrMissing)
	up, _ = send(t, store, root, false)
	tree, _, err := store.Receive(t.Context(), "dir", "w", up, nil)
	require.NoError(t, err)
	_, err = snapshot.Restore(t.Context(), directory(t), tree, snapshot.Index{}, store, nil)
	require.NoError(t, err)
}

// A directory is sent whole if the fleet has lost contents of it, also if its journal cannot be
// read any more.
func TestUpload_WholeAfterALoss(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	root := directory(t)
	require.NoError(t, root.WriteFile("f", random(200_000), 0o600))
	lose := func() {
		objects, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(string) bool { return true })
		require.NoError(t, err)
		require.NoError(t, natsio.DeleteTheseObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), objects...))
	}
	fill := func(up *workspace.Upload) error {
		tree, _, err := store.Receive(t.Context(), "dir", "w", up, nil)
		require.NoError(t, err)
		_, err = snapshot.Restore(t.Context(), directory(t), tree, snapshot.Index{}, store, nil)
		return err
	}
	up, _ := send(t, store, root, false)
	require.NoError(t, fill(up))
	lose()
	up, _ = send(t, store, root, false)
	require.ErrorIs(t, fill(up), workspace.ErrMissing)
	up, _ = send(t, store, root, true)
	require.True(t, up.Whole)
	require.NoError(t, fill(up))
	lose() // with the base of the journal
	up, _ = send(t, store, root, false)
	require.True(t, up.Whole, "its journal cannot be read")
	require.NoError(t, fill(up))
	up, _ = send(t, store, root, false)
	require.True(t, up.Delta.Empty())
	require.NoError(t, fill(up))
	require.NoError(t, root.Remove("f"))
	up, _ = send(t, store, root, true)
	require.NoError(t, fill(up))
	last, err := store.Last(t.Context(), "dir")
	require.NoError(t, err)
	require.Empty(t, last)
}

// A commit whose contents were stored long ago finds out whether they are still there.
func TestCommit_LongAfterItsContentsWereStored(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	require.NoError(t, w.root.WriteFile("f", random(200_000), 0o600))
	save := func() *snapshot.Delta {
		delta, err := snapshot.Save(t.Context(), w.root, w.Tree(), snapshot.Index{}, store, nil)
		require.NoError(t, err)
		return delta
	}
	delta := save()
	mustSweep(t, store, 0)
	store.Later()
	require.ErrorIs(t, w.Commit(t.Context(), delta, result("c1")), workspace.ErrMissing)
	require.Empty(t, w.Tree())

	delta = save()
	store.Later()
	store.Age()
	require.NoError(t, w.Commit(t.Context(), delta, result("c1")))
	require.Equal(t, w.content("f"), take(t, store, 2).content("f"))
}

// Two tenants begin an upload of one name at once, after both have found none: the first one that
// writes owns it, and nothing of the other one is stored.
func TestUpload_BelongsToTheFirstThatWrites(t *testing.T) {
	t.Parallel()
	store := open(t)
	refused := errors.New("it belongs to another tenant")
	tenants := []protocol.Tenant{"acme", "other"}
	for n := range 10 {
		name, begin, ended := fmt.Sprint("dir", n), make(chan struct{}), make(chan error)
		for i, tenant := range tenants {
			ctx := natsio.StoredBy(t.Context(), tenant)
			owned := func(owner judge.Owner) error {
				if owner.Tenant != tenant {
					return refused
				}
				return nil
			}
			files := snapshot.Tree{string(tenant): {Type: protocol.TypeDir, Mode: 0o700}}
			go func() {
				<-begin
				var err error
				if n>>i&1 == 0 {
					_, err = store.Bring(ctx, name, "w", files, owned)
				} else {
					_, _, err = store.Receive(ctx, name, "w", &workspace.Upload{Delta: snapshot.Delta{Set: files}}, owned)
				}
				ended <- err
			}()
		}
		_, err := store.Owner(t.Context(), workspace.UploadRef(name, 0).Lane)
		require.ErrorIs(t, err, workspace.ErrNone)
		close(begin)
		won := 0
		for range tenants {
			if err := <-ended; err == nil {
				won++
			} else if !errors.Is(err, workspace.ErrLost) {
				require.ErrorIs(t, err, refused)
			}
		}
		require.Equal(t, 1, won)
		owner, err := store.Owner(t.Context(), workspace.UploadRef(name, 0).Lane)
		require.NoError(t, err)
		files, err := store.Last(t.Context(), name)
		require.NoError(t, err)
		require.Len(t, files, 1)
		require.Contains(t, files, string(owner.Tenant))
	}
}
