package worker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

func (r *rig) requireContent(session protocol.SessionID, path, want string) {
	r.t.Helper()
	got := r.do(session, protocol.FilesRead{Path: path})
	requireOK(r.t, got)
	require.Equal(r.t, want, string(value[protocol.FilesReadResult](r.t, got).Content))
}

func TestWorkspace_OutlivesTheLanesRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Linger = -1
	r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a", Content: []byte("kept")}))
	r.requireReleased(t)
	r.requireContent(session, "a", "kept")
	other := protocol.NewSessionID()
	requireFault(t, r.do(other, protocol.FilesRead{Path: "a"}), protocol.StatusFailed, protocol.CodeNotFound)
}

// requireReleased waits until no lane is held.
func (r *rig) requireReleased(t *testing.T) {
	t.Helper()
	stream, err := r.JS.Stream(t.Context(), r.Name.CallsStream())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, time.Millisecond)
}

func TestWorkspace_IsSharedByWorkersOfOneDataDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Linger = -1
	first, stop := r.work(o)
	session := protocol.NewSessionID()
	got := r.do(session, protocol.FilesWrite{Path: "a", Content: []byte("first")})
	requireOK(t, got)
	require.Equal(t, first.ID(), got.WorkerID)
	stop()
	second, _ := r.work(o)
	got = r.do(session, protocol.FilesEdit{Path: "a", Old: "first", New: "second"})
	requireOK(t, got)
	require.Equal(t, second.ID(), got.WorkerID)
	r.requireContent(session, "a", "second")
}

func TestWorkspace_IsUnavailableInAnotherDataDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	here, elsewhere := r.options(), r.options()
	_, stop := r.work(here)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a", Content: []byte("here")}))
	stop()
	_, stop = r.work(elsewhere)
	for _, payload := range []protocol.Payload{protocol.FilesExists{Path: "a"}, protocol.CommandRun{Command: "true"}} {
		got := r.do(session, payload)
		requireFault(t, got, protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
		require.Contains(t, got.Error.Message, "--data")
	}
	require.NoDirExists(t, workspaceOf(elsewhere.Data, session), "nothing is begun anew")
	requireOK(t, r.do(protocol.NewSessionID(), protocol.FilesWrite{Path: "a"}))
	stop()
	r.work(here)
	r.requireContent(session, "a", "here")
}

func TestWorkspace_InPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	dir := t.TempDir()
	session := protocol.NewSessionID()
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == string(session) }
	r.work(o)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("before"), 0o600))
	r.requireContent(session, "mine", "before")
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "yours", Content: []byte("after")}))
	content, err := os.ReadFile(filepath.Join(dir, "yours"))
	require.NoError(t, err)
	require.Equal(t, "after", string(content))
	got := r.do(session, protocol.CommandRun{Command: `case "$HOME$TMPDIR" in *"$PWD"*) echo inside;; esac; touch "$HOME/h" "$TMPDIR/t"`})
	requireOK(t, got)
	require.Empty(t, value[protocol.CommandRunResult](t, got).Stdout)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "nothing but what was asked for")
	require.NoDirExists(t, workspaceOf(o.Data, session))
	other := protocol.NewSessionID()
	requireFault(t, r.do(other, protocol.FilesRead{Path: "mine"}), protocol.StatusFailed, protocol.CodeNotFound)
}

// archive stores an archive of files in the fleet's object store.
func (r *rig) archive(t *testing.T, name string, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		full := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o700))
		require.NoError(t, os.WriteFile(full, []byte(content), 0o600))
	}
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	var packed bytes.Buffer
	_, _, err = snapshot.Pack(t.Context(), root, &packed, nil)
	require.NoError(t, err)
	r.store(t, name, packed.Bytes())
}

func (r *rig) store(t *testing.T, name string, content []byte) {
	t.Helper()
	_, err := natsio.PutObject(t.Context(), r.JS, r.Name.BlobsBucket(), name, bytes.NewReader(content))
	require.NoError(t, err)
}

func TestWorkspaceImport_OnceAndExport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	r.archive(t, "in", map[string]string{"a": "one", "d/b": "two!"})
	session := protocol.NewSessionID()
	got := r.do(session, protocol.WorkspaceImport{Blob: "in"})
	requireOK(t, got)
	require.Equal(t, protocol.WorkspaceImportResult{Files: 2, Bytes: 7}, got.Value)
	r.requireContent(session, "d/b", "two!")

	requireOK(t, r.do(session, protocol.FilesEdit{Path: "a", Old: "one", New: "three"}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "rm d/b && ln -s a link"}))
	got = r.do(session, protocol.WorkspaceImport{Blob: "in"})
	requireOK(t, got)
	require.Equal(t, protocol.WorkspaceImportResult{}, got.Value, "done twice it does nothing")
	r.requireContent(session, "a", "three")
	require.Equal(t, protocol.FilesExistsResult{Path: "d/b"}, r.do(session, protocol.FilesExists{Path: "d/b"}).Value)

	got = r.do(session, protocol.WorkspaceExport{Blob: "out"})
	requireOK(t, got)
	require.Equal(t, protocol.WorkspaceExportResult{Blob: "out", Files: 1, Bytes: 5}, got.Value)
	copied := protocol.NewSessionID()
	requireOK(t, r.do(copied, protocol.WorkspaceImport{Blob: "out"}))
	r.requireContent(copied, "a", "three")
	r.requireContent(copied, "link", "three")
	list := value[protocol.FilesListResult](t, r.do(copied, protocol.FilesList{}))
	require.Equal(t, 3, list.Total)
	require.Equal(t, protocol.TypeSymlink, list.Entries[2].Type)
	requireTidy(t, o.Data, session)
	requireTidy(t, o.Data, copied)
}

// requireTidy checks that a sandbox's directory has a workspace, a scratch directory and the
// worker's signature only.
func requireTidy(t *testing.T, data string, session protocol.SessionID) {
	t.Helper()
	names, err := os.ReadDir(filepath.Dir(workspaceOf(data, session)))
	require.NoError(t, err)
	require.Len(t, names, 3, "%v", names)
	names, err = os.ReadDir(filepath.Join(filepath.Dir(workspaceOf(data, session)), "scratch"))
	require.NoError(t, err)
	require.Len(t, names, 2, "%v", names)
}

func TestWorkspaceImport_AllOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	r.archive(t, "good", map[string]string{"a": "one", "z": "last"})
	blobs, err := r.JS.ObjectStore(t.Context(), r.Name.BlobsBucket())
	require.NoError(t, err)
	good, err := blobs.GetBytes(t.Context(), "good")
	require.NoError(t, err)
	r.store(t, "cut", good[:len(good)-8])
	r.store(t, "garbage", []byte("no archive"))
	session := protocol.NewSessionID()
	for blob, code := range map[string]protocol.Code{
		"cut": protocol.CodeWorkspaceUnavailable, "garbage": protocol.CodeWorkspaceUnavailable, "missing": protocol.CodeNotFound,
	} {
		requireFault(t, r.do(session, protocol.WorkspaceImport{Blob: blob}), protocol.StatusFailed, code)
		require.Equal(t, 0, value[protocol.FilesListResult](t, r.do(session, protocol.FilesList{})).Total, blob)
		requireTidy(t, o.Data, session)
	}
	requireOK(t, r.do(session, protocol.WorkspaceImport{Blob: "good"}))
	r.requireContent(session, "z", "last")

	used := protocol.NewSessionID()
	requireOK(t, r.do(used, protocol.FilesWrite{Path: "mine"}))
	requireOK(t, r.do(used, protocol.WorkspaceImport{Blob: "good"}))
	require.Equal(t, 1, value[protocol.FilesListResult](t, r.do(used, protocol.FilesList{})).Total, "a used workspace stays as it is")
}

func TestWorkspaceRemove_IsCompletedByDoingItAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	home := filepath.Dir(workspaceOf(o.Data, session))
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a"}))
	places, err := r.JS.KeyValue(t.Context(), r.Name.PlacesBucket())
	require.NoError(t, err)
	place := string(protocol.SandboxKey(string(session)).Lane().Hash())

	require.NoError(t, os.RemoveAll(home)) // as one that was cut short before it had forgotten the place
	_, err = places.Get(t.Context(), place)
	require.NoError(t, err)
	requireOK(t, r.do(session, protocol.WorkspaceRemove{}))
	_, err = places.Get(t.Context(), place)
	require.ErrorIs(t, err, jetstream.ErrKeyNotFound)
	requireOK(t, r.do(session, protocol.WorkspaceRemove{}))
	require.NoDirExists(t, home)
}
