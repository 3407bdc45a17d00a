package snapshot_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// arena is a directory with a canary in it, and a root beside the canary.
type arena struct {
	canary string
	root   *os.Root
}

func newArena(tb testing.TB) arena {
	tb.Helper()
	top := tb.TempDir()
	require.NoError(tb, os.WriteFile(filepath.Join(top, "canary"), []byte("alive"), 0o644))
	require.NoError(tb, os.Mkdir(filepath.Join(top, "root"), 0o755))
	return arena{canary: filepath.Join(top, "canary"), root: openRoot(tb, filepath.Join(top, "root"))}
}

// unharmed checks that what is beside the root is as it was.
func (a arena) unharmed(tb testing.TB) {
	tb.Helper()
	data, err := os.ReadFile(a.canary)
	require.NoError(tb, err)
	require.Equal(tb, "alive", string(data))
	info, err := os.Lstat(a.canary)
	require.NoError(tb, err)
	require.Equal(tb, "-rw-r--r--", info.Mode().String())
	entries, err := os.ReadDir(filepath.Dir(a.canary))
	require.NoError(tb, err)
	require.Len(tb, entries, 2)
}

func typed(flag byte, name, target string) entry {
	return entry{Header: tar.Header{Typeflag: flag, Name: name, Linkname: target}}
}

// evil returns archives that are refused, with the reason.
func evil(tb testing.TB) map[string]struct {
	data []byte
	want error
} {
	tb.Helper()
	type c = struct {
		data []byte
		want error
	}
	tars := func(want error, entries ...entry) c { return c{compress(tb, tarball(tb, entries...)), want} }
	good := tarball(tb, file("a", "x"))
	packed := compress(tb, good)
	flipped := bytes.Clone(packed)
	flipped[len(flipped)-1] ^= 1
	return map[string]c{
		"parent directory":           tars(snapshot.ErrUnsafe, file("../canary", "dead")),
		"parent directory inside":    tars(snapshot.ErrUnsafe, dir("a"), file("a/../../canary", "dead")),
		"just the parent":            tars(snapshot.ErrUnsafe, dir("..")),
		"absolute":                   tars(snapshot.ErrUnsafe, file("/tmp/x", "dead")),
		"the root itself":            tars(snapshot.ErrUnsafe, dir(".")),
		"empty part":                 tars(snapshot.ErrUnsafe, dir("a"), file("a//b", "")),
		"not canonical":              tars(snapshot.ErrUnsafe, file("./a", "")),
		"file with a slash":          {compress(tb, renamed(tarball(tb, file("aa", "")), "a/")), snapshot.ErrUnsafe},
		"long part":                  tars(snapshot.ErrUnsafe, file(strings.Repeat("n", 256), "")),
		"hard link":                  tars(snapshot.ErrUnsafe, typed(tar.TypeLink, "a", "../canary")),
		"character device":           tars(snapshot.ErrUnsafe, typed(tar.TypeChar, "null", "")),
		"block device":               tars(snapshot.ErrUnsafe, typed(tar.TypeBlock, "vda", "")),
		"fifo":                       tars(snapshot.ErrUnsafe, typed(tar.TypeFifo, "pipe", "")),
		"contiguous file":            tars(snapshot.ErrUnsafe, typed(tar.TypeCont, "cont", "")),
		"unknown type":               tars(snapshot.ErrUnsafe, typed('Z', "what", "")),
		"through a symbolic link":    tars(snapshot.ErrUnsafe, link("up", ".."), file("up/canary", "dead")),
		"link, then directory":       tars(snapshot.ErrUnsafe, link("up", ".."), dir("up"), file("up/canary", "dead")),
		"through a file":             tars(snapshot.ErrUnsafe, file("a", ""), file("a/b", "")),
		"the same file twice":        tars(snapshot.ErrUnsafe, file("a", "1"), file("a", "2")),
		"file, then link":            tars(snapshot.ErrUnsafe, file("a", "1"), link("a", "../canary")),
		"directory twice":            tars(snapshot.ErrUnsafe, dir("a"), dir("a")),
		"link to nothing":            tars(snapshot.ErrUnsafe, link("a", "")),
		"directory missing":          tars(snapshot.ErrCorrupt, file("a/b", "")),
		"too many entries":           tars(snapshot.ErrLimit, dir("1"), dir("2"), dir("3"), dir("4"), dir("5"), dir("6")),
		"too many bytes in a file":   tars(snapshot.ErrLimit, file("a", strings.Repeat("x", 1001))),
		"too many bytes in files":    tars(snapshot.ErrLimit, file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600))),
		"long path":                  tars(snapshot.ErrLimit, file(strings.Repeat("d/", 2048)+"f", "")),
		"long target":                tars(snapshot.ErrLimit, link("a", strings.Repeat("t", 4097))),
		"bomb":                       {compress(tb, bombTar(tb, 64<<20)), snapshot.ErrLimit},
		"bomb behind the end":        {compress(tb, append(bytes.Clone(good), make([]byte, 64<<20)...)), snapshot.ErrCorrupt},
		"sparse file":                {compress(tb, sparseTar(tb)), snapshot.ErrUnsafe},
		"greedy decompressor":        {wide(tb, good), snapshot.ErrCorrupt},
		"nothing":                    {nil, snapshot.ErrCorrupt},
		"not compressed":             {good, snapshot.ErrCorrupt},
		"noise":                      {[]byte("noise noise noise"), snapshot.ErrCorrupt},
		"no tar":                     {compress(tb, []byte(strings.Repeat("noise", 1000))), snapshot.ErrCorrupt},
		"cut in the compressed":      {packed[:len(packed)/2], snapshot.ErrCorrupt},
		"check sum missing":          {packed[:len(packed)-4], snapshot.ErrCorrupt},
		"check sum wrong":            {flipped, snapshot.ErrCorrupt},
		"cut between entries":        {compress(tb, good[:1024]), snapshot.ErrCorrupt},
		"cut in a file":              {compress(tb, good[:600]), snapshot.ErrCorrupt},
		"cut in the trailer":         {compress(tb, good[:1536]), snapshot.ErrCorrupt},
		"something behind the end":   {compress(tb, append(bytes.Clone(good), "more"...)), snapshot.ErrCorrupt},
		"noise behind the archive":   {append(bytes.Clone(packed), "noise"...), snapshot.ErrCorrupt},
		"a second archive behind it": {append(bytes.Clone(packed), packed...), snapshot.ErrCorrupt},
	}
}

// bombTar says that it has a file of size zeros, and has it.
func bombTar(tb testing.TB, size int) []byte {
	tb.Helper()
	return tarball(tb, file("zeros", string(make([]byte, size))))
}

// sparseTar is a file of one gigabyte in a few bytes.
func sparseTar(tb testing.TB) []byte {
	tb.Helper()
	e := file("sparse", "0\n")
	e.Format = tar.FormatPAX
	plain := tarball(tb, withRecords(e, map[string]string{"XNU.sparse.major": "0", "XNU.sparse.realsize": "9"}))
	return bytes.ReplaceAll(plain, []byte("XNU.sparse"), []byte("GNU.sparse"))
}

// wide compresses so that decompressing takes 64 MiB of memory.
func wide(tb testing.TB, plain []byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	zw, err := zstd.NewWriter(&buf, zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
	require.NoError(tb, err)
	_, err = zw.Write(plain)
	require.NoError(tb, err)
	require.NoError(tb, zw.Flush())
	require.NoError(tb, zw.Close())
	return buf.Bytes()
}

// renamed gives the first entry another name, with the right check sum.
func renamed(plain []byte, name string) []byte {
	out := bytes.Clone(plain)
	copy(out[:100], append([]byte(name), make([]byte, 100-len(name))...))
	copy(out[148:156], "        ")
	sum := 0
	for _, b := range out[:512] {
		sum += int(b)
	}
	copy(out[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return out
}

func withRecords(e entry, records map[string]string) entry {
	e.PAXRecords = records
	return e
}

func TestUnpack_RefusesEvilArchives(t *testing.T) {
	t.Parallel()
	opts := &snapshot.Options{Limits: snapshot.Limits{MaxEntries: 5, MaxBytes: 1000}}
	for name, c := range evil(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArena(t)
			_, err := snapshot.Unpack(t.Context(), a.root, bytes.NewReader(c.data), opts)
			require.ErrorIs(t, err, c.want)
			var typed *snapshot.Error
			require.ErrorAs(t, err, &typed)
			require.NotEmpty(t, typed.ErrorType())
			a.unharmed(t)
		})
	}
}

func TestSync_EvilArchivesChangeNothing(t *testing.T) {
	t.Parallel()
	opts := &snapshot.Options{Limits: snapshot.Limits{MaxEntries: 5, MaxBytes: 1000}}
	for name, c := range evil(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArena(t)
			mine := tree{"mine": {body: "old"}, "d": {dir: true}}
			build(t, a.root, mine)
			_, base, _ := pack(t, a.root, nil)
			changes, err := snapshot.Sync(t.Context(), a.root, base, bytes.NewReader(c.data), opts)
			require.ErrorIs(t, err, c.want)
			require.Empty(t, changes)
			require.Equal(t, mine.filled(), content(t, a.root))
			a.unharmed(t)
		})
	}
}

func TestUnpack_NeutralisesWhatIsHarmless(t *testing.T) {
	t.Parallel()
	setuid := file("su", "x")
	setuid.Mode = 0o6755
	sticky := dir("tmp")
	sticky.Mode = 0o1777
	owned := file("owned", "x")
	owned.Uid, owned.Gid, owned.Uname = 4242, 4242, "mallory"
	a := newArena(t)
	plain := tarball(t, setuid, sticky, owned, link("up", "../canary"), link("abs", "/etc/passwd"))
	stats, err := snapshot.Unpack(t.Context(), a.root, bytes.NewReader(compress(t, plain)), nil)
	require.NoError(t, err)
	require.Equal(t, 2, stats.Files)
	for name, want := range map[string]string{
		"su": "-rwxr-xr-x", "tmp": "drwxrwxrwx", "owned": "-rwxr-xr-x",
	} {
		info, err := a.root.Lstat(name)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().String(), name)
	}
	target, err := a.root.Readlink("up")
	require.NoError(t, err)
	require.Equal(t, "../canary", target)
	a.unharmed(t)
}

func TestUnpack_KeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there   tree
		archive []entry
		want    error
	}{
		"file over file":      {tree{"a": {body: "old"}}, []entry{file("a", "new")}, os.ErrExist},
		"file over directory": {tree{"a": {dir: true}}, []entry{file("a", "new")}, os.ErrExist},
		"file over link":      {tree{"a": {link: "../canary"}}, []entry{file("a", "new")}, os.ErrExist},
		"link over file":      {tree{"a": {body: "old"}}, []entry{link("a", "b")}, os.ErrExist},
		"link over link":      {tree{"a": {link: "b"}}, []entry{link("a", "c")}, os.ErrExist},
		"directory over file": {tree{"a": {body: "old"}}, []entry{dir("a")}, os.ErrExist},
		"directory over link": {tree{"a": {link: ".."}}, []entry{dir("a"), file("a/canary", "dead")}, snapshot.ErrUnsafe},
		"directory, link ahead": {
			tree{"real": {dir: true}, "a": {link: "real"}},
			[]entry{dir("a"), file("a/f", "dead")},
			snapshot.ErrUnsafe,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArena(t)
			build(t, a.root, c.there)
			data := compress(t, tarball(t, c.archive...))
			_, err := snapshot.Unpack(t.Context(), a.root, bytes.NewReader(data), nil)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, c.there.filled(), content(t, a.root))
			a.unharmed(t)
		})
	}
}

func TestUnpack_LeavesNoHalfFile(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	whole := tarball(t, file("first", "x"), file("second", "y"))
	_, err := snapshot.Unpack(t.Context(), a.root, bytes.NewReader(compress(t, whole[:1536])), nil)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.Equal(t, []string{"first"}, sortedKeys(content(t, a.root)))
}
