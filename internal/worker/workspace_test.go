package worker_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
	stream, err := r.JS.Stream(t.Context(), wire.CallsStream(r.Name))
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

// upload has the fleet have what an import of an upload needs, under one name.
func (r *rig) upload(t *testing.T, name string, files map[string]string) wire.WorkspaceImport {
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
	return r.uploadRoot(t, name, root)
}

func (r *rig) uploadRoot(t *testing.T, name string, root *os.Root) wire.WorkspaceImport {
	t.Helper()
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	upload, err := store.Upload(t.Context(), name, root, snapshot.Index{}, nil, store, false)
	require.NoError(t, err)
	encoded, err := json.Marshal(upload)
	require.NoError(t, err)
	r.store(t, name, encoded)
	return wire.WorkspaceImport{Upload: name, Blob: name}
}

func (r *rig) store(t *testing.T, name string, content []byte) {
	t.Helper()
	_, err := natsio.PutObject(t.Context(), r.JS, wire.BlobsBucket(r.Name), name, bytes.NewReader(content))
	require.NoError(t, err)
}

func TestWorkspaceImport_OnceAndExport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	in := r.upload(t, "in", map[string]string{"a": "one", "d/b": "two!"})
	session := protocol.NewSessionID()
	got := r.do(session, in)
	requireOK(t, got)
	imported := value[wire.WorkspaceImportResult](t, got)
	require.Positive(t, imported.Checkpoint)
	require.Equal(t, wire.WorkspaceImportResult{Files: 2, Bytes: 7, Checkpoint: imported.Checkpoint}, imported)
	r.requireContent(session, "d/b", "two!")

	requireOK(t, r.do(session, protocol.FilesEdit{Path: "a", Old: "one", New: "three"}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "rm d/b && ln -s a link"}))
	got = r.do(session, in)
	requireOK(t, got)
	require.Equal(t, wire.WorkspaceImportResult{}, got.Value, "done twice it does nothing")
	r.requireContent(session, "a", "three")
	require.Equal(t, protocol.FilesExistsResult{Path: "d/b"}, r.do(session, protocol.FilesExists{Path: "d/b"}).Value)

	got = r.do(session, wire.WorkspaceExport{Upload: "in"})
	requireOK(t, got)
	exported := value[wire.WorkspaceExportResult](t, got)
	require.Equal(t, []any{1, int64(5)}, []any{exported.Files, exported.Bytes})
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	files, err := store.Files(t.Context(), workspace.UploadRef("in", exported.Checkpoint))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a", "d", "link"}, slices.Collect(maps.Keys(files)))
	content, err := snapshot.LoadBytes(t.Context(), store, files["a"].Parts, 100)
	require.NoError(t, err)
	require.Equal(t, "three", string(content))
	before, err := store.Files(t.Context(), workspace.UploadRef("in", imported.Checkpoint))
	require.NoError(t, err)
	require.Contains(t, before, "d/b", "what was imported can be had still")

	other := protocol.NewSessionID() // it begins with what the directory has, whatever the first one made of it
	requireFault(t, r.do(other, in), protocol.StatusFailed, protocol.CodeNotFound)
	requireOK(t, r.do(other, r.upload(t, "in", map[string]string{"a": "one", "d/b": "two!"})))
	r.requireContent(other, "d/b", "two!")
}

// requireTidy checks that a sandbox's directory has a workspace, a scratch directory and an index
// only.
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
	good := r.upload(t, "good", map[string]string{"a": "one", "z": "last"})
	random := make([]byte, 100<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	cut := r.upload(t, "cut", map[string]string{"a": "one", "z": string(random)})
	infos, err := natsio.ListObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), func(string) bool { return true })
	require.NoError(t, err)
	for _, info := range infos {
		if info.Size > 90<<10 {
			require.NoError(t, natsio.DeleteObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), info.Name))
		}
	}
	outside := r.uploadRoot(t, "outside", emptyRoot(t))
	r.store(t, "outside", []byte(`{"delta":{"set":{"../x":{"type":"dir","mode":448}}}}`))
	r.store(t, "garbage", []byte("no upload"))
	session := protocol.NewSessionID()
	for want, code := range map[wire.WorkspaceImport]protocol.Code{
		cut: protocol.CodeNotFound, outside: protocol.CodeWorkspaceUnavailable,
		{Upload: "x", Blob: "garbage"}: protocol.CodeWorkspaceUnavailable, {Upload: "x", Blob: "missing"}: protocol.CodeNotFound,
	} {
		requireFault(t, r.do(session, want), protocol.StatusFailed, code)
		require.Equal(t, 0, value[protocol.FilesListResult](t, r.do(session, protocol.FilesList{})).Total, want.Blob)
		requireTidy(t, o.Data, session)
	}
	requireOK(t, r.do(session, good))
	r.requireContent(session, "z", "last")

	used := protocol.NewSessionID()
	requireOK(t, r.do(used, protocol.FilesWrite{Path: "mine"}))
	requireOK(t, r.do(used, good))
	require.Equal(t, 1, value[protocol.FilesListResult](t, r.do(used, protocol.FilesList{})).Total, "a used workspace stays as it is")
}

func emptyRoot(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root
}

func TestWorkspaceRemove_IsCompletedByDoingItAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	home := filepath.Dir(workspaceOf(o.Data, session))
	requireOK(t, r.do(session, protocol.FilesWrite{Path: "a"}))
	for range 2 {
		requireOK(t, r.do(session, wire.WorkspaceRemove{}))
		require.NoDirExists(t, home)
	}
}

// An import whose contents are missing asks for the upload again.
func TestWorkspaceImport_OfMissingContents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	large := strings.Repeat("0123456789", 10_000)
	in := r.upload(t, "in", map[string]string{"a": large})
	lose := func() {
		objects, err := natsio.ListObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), func(string) bool { return true })
		require.NoError(t, err)
		require.NoError(t, natsio.DeleteTheseObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), objects...))
	}
	lose()
	requireFault(t, r.do(protocol.NewSessionID(), in), protocol.StatusFailed, protocol.CodeNotFound)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, r.upload(t, "in", map[string]string{"a": large})))
	lose() // of a directory that the fleet knows
	in = r.upload(t, "in", map[string]string{"a": large})
	requireFault(t, r.do(protocol.NewSessionID(), in), protocol.StatusFailed, protocol.CodeNotFound)
}

func TestWorkspaceFork_IsMergedBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, second := r.options(), r.options()
	_, stop := r.work(first)
	requireOK(t,
		r.do("s", protocol.CommandRun{Command: `printf '1\n2\n3\n' > both; echo one > gone; echo same > same; echo x > clash; mkdir -p .git/refs; echo a > .git/HEAD`}))
	fork := r.do("s", wire.WorkspaceFork{To: "f"})
	requireOK(t, fork)
	require.Equal(t, 5, value[wire.WorkspaceForkResult](t, fork).Files)
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "f"})) // once more does nothing
	requireOK(t, r.do("s", protocol.CommandRun{Command: `printf 'one\n2\n3\n' > both; echo parent > clash`}))
	r.requireContent("f", "both", "1\n2\n3\n")
	requireOK(t, r.do("f", protocol.CommandRun{Command: `printf '1\n2\nthree\n' > both; rm gone; echo new > new; echo fork > clash; echo b > .git/HEAD`}))
	stop()

	r.work(second) // another disk
	got := r.do("s", wire.WorkspaceMerge{From: "f"})
	requireOK(t, got)
	merge := value[wire.WorkspaceMergeResult](t, got)
	require.Positive(t, merge.Checkpoint)
	require.Equal(t, wire.WorkspaceMergeResult{
		Written: []string{"both", "new"}, Removed: []string{"gone"}, Merged: []string{"both"}, Conflicts: []string{"clash"},
		Theirs: []string{"clash.toolfleet-theirs"}, Commits: true, Checkpoint: merge.Checkpoint,
	}, merge)
	r.requireContent("s", "both", "one\n2\nthree\n")
	r.requireContent("s", "clash", "parent\n")
	r.requireContent("s", "clash.toolfleet-theirs", "fork\n")
	r.requireContent("s", ".git/HEAD", "a\n")

	requireOK(t, r.do("f", protocol.FilesWrite{Path: "new", Content: []byte("newer")}))
	got = r.do("s", wire.WorkspaceMerge{From: "f", After: merge.Checkpoint})
	requireOK(t, got)
	require.Equal(t, []string{"new"}, value[wire.WorkspaceMergeResult](t, got).Written, "only what is new since")
	require.Empty(t, value[wire.WorkspaceMergeResult](t, got).Conflicts)

	requireFault(t, r.do("s", wire.WorkspaceMerge{From: "none"}), protocol.StatusFailed, protocol.CodeNotFound)
	requireFault(t, r.do("f", wire.WorkspaceMerge{From: "s"}), protocol.StatusRejected, protocol.CodeInvalidArguments)
	requireFault(t, r.do("s", wire.WorkspaceMerge{From: "a/b"}), protocol.StatusRejected, codes.InvalidPayload)
	requireFault(t, r.do("s", wire.WorkspaceFork{}), protocol.StatusRejected, codes.InvalidPayload)
}

// A directory in place is forked into a workspace of its own.
func TestWorkspaceFork_OfADirectoryInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, dir := r.options(), t.TempDir()
	o.Workspace = func(sandbox string) (string, bool) { return dir, sandbox == "s" }
	r.work(o)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "f"}))
	requireOK(t, r.do("s", wire.WorkspaceFork{To: "g"}))
	requireOK(t, r.do("f", protocol.CommandRun{Command: `echo two > a; echo b > b`}))
	r.requireContent("s", "a", "one")
	got := r.do("s", wire.WorkspaceMerge{From: "f"})
	requireOK(t, got)
	require.Equal(t, []string{"a", "b"}, value[wire.WorkspaceMergeResult](t, got).Written)
	r.requireContent("s", "a", "two\n")
	r.requireContent("g", "a", "one")
}

// A page is requested under the rules of the network: the host must be listed and its address
// allowed, for every redirect again.
func TestFetch_OnlyWhatTheNetworkAllows(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("an unlisted host was reached") }))
	t.Cleanup(other.Close)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/long":
			_, _ = w.Write([]byte(strings.Repeat("a line of text\n", 10_000)))
		default:
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<h1>Hello</h1>"))
		}
	}))
	t.Cleanup(web.Close)
	for name, c := range map[string]struct {
		allow, private, path string
		want                 string // the content, or the refusal
	}{
		"listed":              {strings.TrimPrefix(web.URL, "http://"), "127.0.0.0/8", "", "# Hello"},
		"a redirect":          {strings.TrimPrefix(web.URL, "http://"), "127.0.0.0/8", "/away", "it is not listed"},
		"nothing is listed":   {"", "127.0.0.0/8", "", "--allow-net 127.0.0.1:"},
		"another is listed":   {"example.com", "127.0.0.0/8", "", "it is not listed"},
		"a private address":   {strings.TrimPrefix(web.URL, "http://"), "10.0.0.0/8", "", "its address 127.0.0.1 is not on the public Internet"},
		"all, but not inside": {"all", "10.0.0.0/8", "", "its address 127.0.0.1 is not on the public Internet"},
		"all":                 {"all", "127.0.0.0/8", "", "# Hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			o := r.options()
			allow, err := egress.ParseAllow(c.allow)
			require.NoError(t, err)
			o.Allow, o.AllowPrivate = allow, []netip.Prefix{netip.MustParsePrefix(c.private)}
			_, stop := r.work(o)
			defer stop()
			got := r.do(protocol.NewSessionID(), protocol.HTTPFetch{URL: web.URL + c.path})
			if page, ok := got.Value.(protocol.HTTPFetchResult); ok {
				require.Equal(t, c.want, string(page.Content))
				require.Equal(t, protocol.StatusOK, got.Status)
				return
			}
			requireFault(t, got, protocol.StatusRejected, codes.NetworkOff)
			require.Contains(t, got.Error.Message, c.want)
		})
	}
	t.Run("a long page is stored", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		o := r.options()
		allow, err := egress.ParseAllow("all")
		require.NoError(t, err)
		o.Allow, o.AllowPrivate = allow, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		_, stop := r.work(o)
		defer stop()
		session := protocol.NewSessionID()
		page := r.do(session, protocol.HTTPFetch{URL: web.URL + "/long"})
		require.NotNil(t, page.Kept)
		rest := r.do(session, wire.ResultRead{CallID: page.CallID, Offset: 9_999})
		lines, is := rest.Value.(wire.ResultReadResult)
		require.True(t, is)
		require.Contains(t, string(lines.Content), "a line of text")
	})
}
