package snapshot_test

import (
	"archive/tar"
	"bytes"
	gocontext "context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// large is more than what is copied at a time, and does not compress.
func large() []byte {
	data := make([]byte, 3<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data) // it cannot fail
	return data
}

func assorted() tree {
	return tree{
		"empty":                  {},
		"empty-dir":              {dir: true},
		"run":                    {body: "#!/bin/sh\n", mode: 0o755},
		"secret":                 {body: "s", noMode: true},
		"locked":                 {dir: true, noMode: true},
		"locked/inside":          {body: "in"},
		"locked/deep":            {dir: true, mode: 0o300},
		"locked/deep/again":      {body: "in", mode: 0o200},
		"src":                    {dir: true, mode: 0o700},
		"src/large":              {body: string(large())},
		"src/link":               {link: "../run"},
		"src-before-slash":       {body: "sorts between"},
		"dangling":               {link: "nowhere"},
		"absolute":               {link: "/etc/passwd"},
		"up":                     {link: "../../.."},
		"self":                   {link: "self"},
		"to-dir":                 {link: "src"},
		"-rf":                    {body: "dash"},
		" ":                      {body: "space"},
		"äöü":                    {body: "text"},
		strings.Repeat("n", 255): {body: "long"},
	}
}

func TestPack_UnpackGivesTheSame(t *testing.T) {
	t.Parallel()
	want := assorted()
	data, manifest, stats := pack(t, newRoot(t, want), nil)
	require.Equal(t, 11, stats.Files)
	require.Zero(t, stats.LeftOut)
	require.Zero(t, stats.Changed)
	require.Len(t, manifest, len(want))

	there := newRoot(t, nil)
	got, err := snapshot.Unpack(t.Context(), there, bytes.NewReader(data), nil)
	require.NoError(t, err)
	require.Equal(t, stats, got)
	_, again, _ := pack(t, there, nil)
	require.Equal(t, manifest, again)
	if os.Geteuid() == 0 { // others cannot look without changing modes
		require.Equal(t, want.filled(), content(t, there))
	}
}

func TestPack_ArchiveIsSortedAndAnonymous(t *testing.T) {
	t.Parallel()
	root := newRoot(t, assorted())
	data, manifest, _ := pack(t, root, nil)
	tr := tar.NewReader(bytes.NewReader(decompress(t, data)))
	var names []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid+h.Gid)
		require.Empty(t, h.Uname+h.Gname)
		names = append(names, strings.TrimSuffix(h.Name, "/"))
	}
	require.ElementsMatch(t, sortedKeys(manifest), names)
	again, _, _ := pack(t, root, nil)
	require.Equal(t, data, again, "the same directory gives the same archive")
}

func TestPack_ModesKeepOnlyPermissionBits(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"su": {body: "x"}})
	require.NoError(t, os.Chmod(filepath.Join(root.Name(), "su"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	data, manifest, _ := pack(t, root, nil)
	require.Equal(t, fs.FileMode(0o755), manifest["su"].Mode)
	h, err := tar.NewReader(bytes.NewReader(decompress(t, data))).Next()
	require.NoError(t, err)
	require.Equal(t, int64(0o755), h.Mode)
}

func TestPack_TimesSurvive(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"d": {dir: true}, "d/f": {body: "x"}})
	when := time.Date(2001, 2, 3, 4, 5, 6, 789000000, time.UTC)
	for _, name := range []string{"d/f", "d"} {
		require.NoError(t, root.Chtimes(name, when, when))
	}
	data, _, _ := pack(t, root, nil)
	there := newRoot(t, nil)
	_, err := snapshot.Unpack(t.Context(), there, bytes.NewReader(data), nil)
	require.NoError(t, err)
	for _, name := range []string{"d/f", "d"} {
		info, err := there.Stat(name)
		require.NoError(t, err)
		require.True(t, when.Equal(info.ModTime()), name)
	}
}

func TestPack_LeavesOutWhatIsNoFile(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"f": {body: "x"}})
	makeFIFO(t, filepath.Join(root.Name(), "pipe"))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(root.Name(), "s"))
	require.NoError(t, err)
	defer listener.Close()
	_, manifest, stats := pack(t, root, nil)
	require.Equal(t, []string{"f"}, sortedKeys(manifest))
	require.Equal(t, 2, stats.LeftOut)
}

func TestPack_SkipLeavesOutWhatIsBelow(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"a": {dir: true}, "a/f": {body: "x"}, "b": {body: "y"}, "c": {body: "z"}})
	opts := &snapshot.Options{Skip: func(p string, isDir bool) bool { return p == "a" && isDir || p == "c" && !isDir }}
	_, manifest, _ := pack(t, root, opts)
	require.Equal(t, []string{"b"}, sortedKeys(manifest))
}

func TestPack_LimitsAreErrors(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"a": {body: "12345"}, "b": {body: "12345"}, "d": {dir: true}})
	for name, c := range map[string]struct {
		limits snapshot.Limits
		ok     bool
	}{
		"entries":       {snapshot.Limits{MaxEntries: 2}, false},
		"entries fit":   {snapshot.Limits{MaxEntries: 3}, true},
		"bytes":         {snapshot.Limits{MaxBytes: 9}, false},
		"bytes fit":     {snapshot.Limits{MaxBytes: 10}, true},
		"negative is 0": {snapshot.Limits{MaxBytes: -1, MaxEntries: -1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var buf bytes.Buffer
			_, _, err := snapshot.Pack(t.Context(), root, &buf, &snapshot.Options{Limits: c.limits})
			if c.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, snapshot.ErrLimit)
			_, err = snapshot.Unpack(t.Context(), newRoot(t, nil), &buf, nil)
			require.ErrorIs(t, err, snapshot.ErrCorrupt, "what was written is no archive")
		})
	}
}

func TestPack_SparseFileIsMeasuredByItsSize(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"sparse": {}})
	require.NoError(t, os.Truncate(filepath.Join(root.Name(), "sparse"), 1<<40))
	_, _, err := snapshot.Pack(t.Context(), root, io.Discard, nil)
	require.ErrorIs(t, err, snapshot.ErrLimit)
}

var errFull = errors.New("disk full")

// writerFunc is an [io.Writer].
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestPack_ErrorsOfTheWriterAreReturned(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]tree{"small": {"f": {body: "x"}}, "large": {"f": {body: string(large())}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full := writerFunc(func([]byte) (int, error) { return 0, errFull })
			_, _, err := snapshot.Pack(t.Context(), newRoot(t, want), full, nil)
			require.ErrorIs(t, err, errFull)
		})
	}
}

func TestCancel_IsReportedAsSuch(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"f": {body: "x"}})
	data, base, _ := pack(t, root, nil)
	ctx, cancel := gocontext.WithCancelCause(t.Context())
	cancel(errFull)
	_, _, err := snapshot.Pack(ctx, root, io.Discard, nil)
	require.ErrorIs(t, err, gocontext.Canceled)
	_, err = snapshot.Unpack(ctx, newRoot(t, nil), bytes.NewReader(data), nil)
	require.ErrorIs(t, err, gocontext.Canceled)
	require.NotErrorIs(t, err, snapshot.ErrCorrupt)
	_, err = snapshot.Sync(ctx, root, base, bytes.NewReader(data), nil)
	require.ErrorIs(t, err, gocontext.Canceled)
}

func TestUnpack_ErrorsOfTheReaderAreNotCorruption(t *testing.T) {
	t.Parallel()
	data, _, _ := pack(t, newRoot(t, tree{"f": {body: string(large())}}), nil)
	r := io.MultiReader(bytes.NewReader(data[:len(data)/2]), readerFunc(func([]byte) (int, error) { return 0, errFull }))
	_, err := snapshot.Unpack(t.Context(), newRoot(t, nil), r, nil)
	require.ErrorIs(t, err, errFull)
	require.NotErrorIs(t, err, snapshot.ErrCorrupt)
}

// readerFunc is an [io.Reader].
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
