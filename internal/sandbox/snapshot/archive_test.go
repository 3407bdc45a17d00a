package snapshot_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// packed is a tar archive of entries. What a file contains is the Uname of its header.
func packed(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := h.Uname
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		require.NoError(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func readTar(t *testing.T, archive []byte, limits snapshot.Limits) (snapshot.Tree, snapshot.Bodies, error) {
	t.Helper()
	bodies := snapshot.Directory(t.TempDir())
	delta, err := snapshot.ReadTar(t.Context(), bytes.NewReader(archive), bodies, limits)
	if err != nil {
		return nil, bodies, err
	}
	require.NoError(t, delta.Outline(t.Context(), bodies))
	require.NoError(t, delta.Set.Validate(snapshot.Limits{}))
	return delta.Set, bodies, nil
}

// repeated repeats some bytes.
type repeated struct {
	again []byte
	at    int
}

// Read implements [io.Reader].
func (e *repeated) Read(p []byte) (int, error) {
	n := copy(p, e.again[e.at:])
	e.at = (e.at + n) % len(e.again)
	return n, nil
}

// What has no end has no entry that counts, and is refused.
func TestArchive_OfWhatIsSkippedIsBounded(t *testing.T) {
	t.Parallel()
	global := headed(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}})
	own := headed(t, tar.Header{Name: strings.Repeat("n", 200), Typeflag: tar.TypeReg, Mode: 0o644})
	for name, from := range map[string]io.Reader{
		"global headers": &repeated{again: global},
		"long names":     &repeated{again: own[:1024]},
		"the directory": io.MultiReader(bytes.NewReader(headed(t, tar.Header{Name: ".", Typeflag: tar.TypeReg, Size: 1 << 40, Mode: 0o644})),
			&repeated{again: make([]byte, 1<<16)}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := snapshot.ReadTar(t.Context(), from, snapshot.Directory(t.TempDir()), snapshot.Limits{MaxBytes: 1 << 20, MaxEntries: 10})
			require.ErrorIs(t, err, snapshot.ErrLimit)
		})
	}
	_, _, err := readTar(t,
		packed(t, tar.Header{Name: "holes", Uname: strings.Repeat("\x00", 600_000)}, tar.Header{Name: "again", Typeflag: tar.TypeLink, Linkname: "holes"}),
		snapshot.Limits{MaxBytes: 1 << 20})
	require.ErrorIs(t, err, snapshot.ErrLimit, "a hard link to holes")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrClosedPipe)
	_, err = snapshot.ReadTar(ctx, &repeated{again: global}, snapshot.Directory(t.TempDir()), snapshot.Limits{})
	require.ErrorIs(t, err, context.Canceled)
}

// headed is the header of an entry.
func headed(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, tar.NewWriter(&out).WriteHeader(&h))
	return append(out.Bytes(), make([]byte, -out.Len()&511)...)
}

// A tree in a directory that cannot be one is refused.
func TestArchive_BelowOnlyWhatIsInside(t *testing.T) {
	t.Parallel()
	all := snapshot.Tree{"f": {Type: protocol.TypeFile}}
	for _, dir := range []string{"/", "/etc/x", "..", "../x"} {
		require.Error(t, all.Below(dir).Validate(snapshot.Limits{}), dir)
	}
	require.NoError(t, all.Below("a/b").Validate(snapshot.Limits{}))
}

// What was written as an archive and read again is the same, also large files and holes.
func TestArchive_RoundTrip(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 300_000) // more than one part
	root := newRoot(t, tree{
		"a": {dir: true}, "a/empty": {}, "a/run.sh": {body: "#!/bin/sh\n", mode: 0o755}, "a/up": {link: "../large"},
		"large": {body: large}, "holes": {body: strings.Repeat("\x00", 9<<20) + "end"}, strings.Repeat("n", 200): {body: "long name"},
	})
	from := snapshot.Directory(t.TempDir())
	delta, err := snapshot.Save(t.Context(), root, nil, snapshot.Index{}, from, nil)
	require.NoError(t, err)
	require.NoError(t, delta.Outline(t.Context(), from))
	var archive bytes.Buffer
	require.NoError(t, delta.Set.WriteTar(t.Context(), &archive, from))
	got, bodies, err := readTar(t, archive.Bytes(), snapshot.Limits{})
	require.NoError(t, err)
	require.Len(t, got, len(delta.Set))
	for name, want := range delta.Set {
		require.Equal(t, want.Type, got[name].Type, name)
		require.Equal(t, want.Mode, got[name].Mode, name)
		require.Equal(t, want.Target, got[name].Target, name)
		wanted, err := io.ReadAll(want.Open(t.Context(), from))
		require.NoError(t, err)
		content, err := io.ReadAll(got[name].Open(t.Context(), bodies))
		require.NoError(t, err)
		require.True(t, bytes.Equal(wanted, content), name)
	}
	require.NoError(t, iotest.TestReader(got["a/run.sh"].Open(t.Context(), bodies), []byte("#!/bin/sh\n")))
	across := make([]byte, 64)
	_, err = got["large"].Open(t.Context(), bodies).ReadAt(across, snapshot.MaxPart-32)
	require.NoError(t, err)
	require.Equal(t, large[snapshot.MaxPart-32:snapshot.MaxPart+32], string(across))
	require.Len(t, got["holes"].Parts, 2, "zeros are nowhere kept")
}

func TestArchive_RefusesTricks(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Name: name, Uname: "x"} }
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	for name, test := range map[string]struct {
		entries []tar.Header
		kind    error
		reason  string
	}{
		"absolute":       {[]tar.Header{file("/etc/passwd")}, snapshot.ErrUnsafe, "not a canonical relative path"},
		"up":             {[]tar.Header{file("a/../../b")}, snapshot.ErrUnsafe, "not a canonical relative path"},
		"up behind dots": {[]tar.Header{file("././../b")}, snapshot.ErrUnsafe, "not a canonical relative path"},
		"link out":       {[]tar.Header{link("l", "../x")}, snapshot.ErrUnsafe, "outside of the archive"},
		"link to root":   {[]tar.Header{link("l", "/etc")}, snapshot.ErrUnsafe, "outside of the archive"},
		"link by a link": {[]tar.Header{link("l", "."), link("m", "l/x/../..")}, snapshot.ErrUnsafe, "at its beginning only"},
		"through a link": {[]tar.Header{link("l", "d"), file("l/x")}, snapshot.ErrUnsafe, "is no directory"},
		"hard link":      {[]tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, snapshot.ErrUnsafe, "no file of the archive"},
		"device":         {[]tar.Header{{Name: "d", Typeflag: tar.TypeBlock}}, snapshot.ErrUnsafe, "type '4'"},
		"fifo":           {[]tar.Header{{Name: "d", Typeflag: tar.TypeFifo}}, snapshot.ErrUnsafe, "type '6'"},
		"setuid":         {[]tar.Header{{Name: "s", Mode: 0o4755}}, snapshot.ErrUnsafe, "setuid"},
		"setgid":         {[]tar.Header{{Name: "s", Typeflag: tar.TypeDir, Mode: 0o2755}}, snapshot.ErrUnsafe, "setgid"},
		"two cases":      {[]tar.Header{file("README"), file("readme")}, snapshot.ErrUnsafe, "in case only"},
		"cases of a dir": {[]tar.Header{file("Src/a"), file("src/b")}, snapshot.ErrUnsafe, "in case only"},
		"kelvin":         {[]tar.Header{file("K"), file("\u212a")}, snapshot.ErrUnsafe, "in case only"},
		"twice":          {[]tar.Header{file("a"), file("a")}, snapshot.ErrUnsafe, "twice"},
		"file then dir":  {[]tar.Header{file("a"), {Name: "a", Typeflag: tar.TypeDir}}, snapshot.ErrUnsafe, "twice"},
		"too many":       {[]tar.Header{file("a"), file("b"), file("c"), file("d")}, snapshot.ErrLimit, "3 entries"},
		"too deep":       {[]tar.Header{file("a/b/c/d")}, snapshot.ErrLimit, "3 entries"},
		"too large":      {[]tar.Header{{Name: "a", Uname: strings.Repeat("x", 101)}}, snapshot.ErrLimit, "at most 100"},
		"large together": {[]tar.Header{{Name: "a", Uname: strings.Repeat("x", 60)}, {Name: "b", Uname: strings.Repeat("y", 60)}}, snapshot.ErrLimit, "100 bytes together"},
		"zeros": {
			[]tar.Header{{Name: "a", Uname: strings.Repeat("\x00", 60)}, {Name: "b", Uname: strings.Repeat("\x00", 60)}},
			snapshot.ErrLimit, "100 bytes together",
		},
		"large by a link": {
			[]tar.Header{{Name: "a", Uname: strings.Repeat("x", 60)}, {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}},
			snapshot.ErrLimit, "100 bytes together",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := readTar(t, packed(t, test.entries...), snapshot.Limits{MaxEntries: 3, MaxBytes: 100})
			require.ErrorIs(t, err, test.kind)
			require.ErrorContains(t, err, test.reason)
		})
	}
}

// An archive that is cut anywhere is none.
func TestArchive_CutShortIsRefused(t *testing.T) {
	t.Parallel()
	whole := packed(t, tar.Header{Name: "a", Uname: "content"}, tar.Header{Name: "b", Uname: strings.Repeat("z", 600)})
	for n := 0; n < len(whole)-1024; n += 64 {
		_, _, err := readTar(t, whole[:n], snapshot.Limits{})
		var fault *snapshot.Error
		require.ErrorAs(t, err, &fault, "%d of %d bytes", n, len(whole))
	}
	_, _, err := readTar(t, []byte(strings.Repeat("no archive", 100)), snapshot.Limits{})
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
}

func TestOverlay_LaysFilesOverADirectory(t *testing.T) {
	t.Parallel()
	got, bodies, err := readTar(t,
		packed(t, tar.Header{Name: "./d/new", Uname: "new"}, tar.Header{Name: "d/old", Uname: "changed", Mode: 0o755}, tar.Header{Name: "same", Uname: "same"}),
		snapshot.Limits{})
	require.NoError(t, err)
	root := newRoot(t, tree{"d": {dir: true, mode: 0o700}, "d/old": {body: "was"}, "d/mine": {body: "mine"}, "same": {body: "same"}})
	changes, err := snapshot.Overlay(t.Context(), root, got, bodies, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"d/new", "d/old"}, changes.Written)
	for name, want := range map[string]string{"d/new": "new", "d/old": "changed", "d/mine": "mine", "same": "same"} {
		body, err := os.ReadFile(filepath.Join(root.Name(), name))
		require.NoError(t, err)
		require.Equal(t, want, string(body), name)
	}
	info, err := root.Stat("d")
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm(), "a directory stays as it is")
}

func TestOverlay_ChangesAllOrNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		there   tree
		options *snapshot.Options
	}{
		"directory in the way": {there: tree{"z": {dir: true}}},
		"file in the way":      {there: tree{"d": {body: "x"}}},
		"link in the way":      {there: tree{"elsewhere": {dir: true}, "d": {link: "elsewhere"}}},
		"protected":            {options: &snapshot.Options{Protect: []string{"z"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, bodies, err := readTar(t, packed(t, tar.Header{Name: "a", Uname: "a"}, tar.Header{Name: "d/x", Uname: "x"}, tar.Header{Name: "z", Uname: "z"}), snapshot.Limits{})
			require.NoError(t, err)
			root := newRoot(t, test.there)
			before, err := os.ReadDir(root.Name())
			require.NoError(t, err)
			_, err = snapshot.Overlay(t.Context(), root, got, bodies, test.options)
			require.ErrorIs(t, err, snapshot.ErrUnsafe)
			after, err := os.ReadDir(root.Name())
			require.NoError(t, err)
			require.Len(t, after, len(before))
		})
	}
	got, bodies, err := readTar(t, packed(t, tar.Header{Name: "a", Uname: "a"}, tar.Header{Name: "b", Uname: "b"}), snapshot.Limits{})
	require.NoError(t, err)
	got["b"].Parts[0].Body = "missing"
	root := newRoot(t, nil)
	_, err = snapshot.Overlay(t.Context(), root, got, bodies, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	left, err := os.ReadDir(root.Name())
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, protocol.TypeFile, got["a"].Type)
}
