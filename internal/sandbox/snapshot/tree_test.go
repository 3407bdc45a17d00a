package snapshot_test

import (
	"bytes"
	stdcontext "context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// memory keeps bodies; those that were got are counted.
type memory struct {
	mu     sync.Mutex
	bodies map[string][]byte
	got    int
}

func newMemory() *memory { return &memory{bodies: map[string][]byte{}} }

func (m *memory) Put(_ stdcontext.Context, name string, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bodies[name] = bytes.Clone(body)
	return nil
}

func (m *memory) Get(_ stdcontext.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.got++
	body, is := m.bodies[name]
	if !is {
		return nil, fs.ErrNotExist
	}
	return body, nil
}

// kept is a directory that is saved again and again.
type kept struct {
	t      *testing.T
	dir    string
	root   *os.Root
	tree   snapshot.Tree
	index  snapshot.Index
	bodies *memory
	saves  int
}

func newKept(t *testing.T, bodies *memory) *kept {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return &kept{t: t, dir: dir, root: root, tree: snapshot.Tree{}, index: snapshot.Index{}, bodies: bodies}
}

func (k *kept) write(name, content string) {
	k.t.Helper()
	at := filepath.Join(k.dir, name)
	require.NoError(k.t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(k.t, os.WriteFile(at, []byte(content), 0o644))
}

// save saves, by way of the wire.
func (k *kept) save(only ...string) *snapshot.Delta {
	k.t.Helper()
	delta, err := snapshot.Save(k.t.Context(), k.root, k.tree, k.index, k.bodies, &snapshot.Options{Only: only})
	require.NoError(k.t, err)
	stats, stored := delta.Stats, delta.Stored
	wire, err := json.Marshal(delta)
	require.NoError(k.t, err)
	delta = &snapshot.Delta{}
	require.NoError(k.t, json.Unmarshal(wire, delta))
	k.saves++
	name := fmt.Sprint("inline", k.saves)
	k.bodies.bodies[name] = delta.Inline
	k.tree.Apply(delta, name)
	require.NoError(k.t, k.tree.Validate(snapshot.Limits{}))
	delta.Stats, delta.Stored = stats, stored
	return delta
}

// restore makes a directory of the tree.
func (k *kept) restore(to *kept) snapshot.RestoreStats {
	k.t.Helper()
	stats, err := snapshot.Restore(k.t.Context(), to.root, k.tree, to.index, k.bodies, nil)
	require.NoError(k.t, err)
	to.tree = maps.Clone(k.tree)
	require.Equal(k.t, contents(k.t, k.dir), contents(k.t, to.dir))
	return stats
}

// contents is what a directory has: modes, contents, targets, times of files.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(dir, at)
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		switch {
		case name == ".":
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(at)
			require.NoError(t, err)
			found[name] = "-> " + target
		case info.IsDir():
			found[name] = info.Mode().String()
		case info.Mode().IsRegular():
			content, err := os.ReadFile(at)
			require.NoError(t, err)
			found[name] = fmt.Sprint(info.Mode(), " ", info.ModTime().UnixNano(), " ", len(content), sha256.Sum256(content))
		}
		return nil
	}))
	return found
}

func TestSave_EachChangeComesBack(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	k, other := newKept(t, bodies), newKept(t, bodies)
	k.write("a/b/c.txt", "one")
	k.write("large", strings.Repeat("0123456789abcdef", 700_000)) // three parts
	k.write("empty", "")
	k.write("zeros", strings.Repeat("\x00", 100))
	k.write("tail/x", "gone soon")
	k.write("no\xfftext/\xfe", "names are bytes")
	require.NoError(t, os.Symlink("to\xff", filepath.Join(k.dir, "no\xfftext/link")))
	require.NoError(t, os.Symlink("../..//etc/passwd", filepath.Join(k.dir, "a/link")))
	require.NoError(t, os.Mkdir(filepath.Join(k.dir, "hollow"), 0o700))
	k.save()
	k.restore(other)

	changes := map[string]func() error{
		"another content":     func() error { return os.WriteFile(filepath.Join(k.dir, "a/b/c.txt"), []byte("two"), 0o644) },
		"mode":                func() error { return os.Chmod(filepath.Join(k.dir, "large"), 0o600) },
		"mode of a directory": func() error { return os.Chmod(filepath.Join(k.dir, "a"), 0o711) },
		"append": func() error {
			f, err := os.OpenFile(filepath.Join(k.dir, "large"), os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString("more")
			require.NoError(t, f.Close())
			return err
		},
		"truncate": func() error { return os.Truncate(filepath.Join(k.dir, "large"), 5<<20) },
		"rename":   func() error { return os.Rename(filepath.Join(k.dir, "tail"), filepath.Join(k.dir, "head")) },
		"file for a directory": func() error {
			return replaceBy(k.dir, "a/b", func(at string) error { return os.WriteFile(at, nil, 0o600) })
		},
		"directory for a file": func() error {
			return replaceBy(k.dir, "empty", func(at string) error { return os.MkdirAll(at+"/deep/er", 0o755) })
		},
		"a link": func() error {
			return replaceBy(k.dir, "a/link", func(at string) error { return os.Symlink("hollow", at) })
		},
		"a hard link":       func() error { return os.Link(filepath.Join(k.dir, "zeros"), filepath.Join(k.dir, "nulls")) },
		"gone, and no text": func() error { return os.RemoveAll(filepath.Join(k.dir, "no\xfftext")) },
		"sparse":            func() error { return os.Truncate(filepath.Join(k.dir, "zeros"), 10<<20) },
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		require.NoError(t, changes[name](), name)
		delta := k.save()
		require.False(t, delta.Empty(), name)
		k.restore(other)
		require.True(t, k.save().Empty(), name)
		third := newKept(t, bodies) // from nothing
		k.restore(third)
	}
}

func replaceBy(dir, name string, with func(string) error) error {
	at := filepath.Join(dir, name)
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return with(at)
}

func TestSave_ReadsAndStoresWhatIsNew(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	k := newKept(t, bodies)
	for i := range 100 {
		k.write(fmt.Sprintf("d%d/f%d", i%7, i), strings.Repeat(fmt.Sprint(i), 3000))
	}
	first := k.save()
	require.Equal(t, 100, first.Stats.Read)
	require.Len(t, first.Stored, 1)
	old := time.Now().Add(-time.Hour)
	for i := range 100 {
		require.NoError(t, os.Chtimes(filepath.Join(k.dir, fmt.Sprintf("d%d/f%d", i%7, i)), old, old))
	}
	time.Sleep(50 * time.Millisecond) // until the clock of files has moved on
	k.save()                          // which learns what they are like
	k.write("d3/f3", "another")
	delta := k.save()
	require.Equal(t, 1, delta.Stats.Read)
	require.Equal(t, []string{"d3/f3"}, slices.Collect(maps.Keys(delta.Set)))
	require.Empty(t, delta.Stored, "it is carried by the delta")
	k.write("copy", strings.Repeat("5", 3000))
	require.Zero(t, k.save().Stats.Kept, "content that is there already is not kept twice")
}

func TestSave_OnlySomePaths(t *testing.T) {
	t.Parallel()
	k := newKept(t, newMemory())
	k.write("a/one", "1")
	k.write("b/two", "2")
	k.save()
	k.write("a/one", "11")
	k.write("b/two", "22")
	k.write("new/deep/three", "3")
	delta := k.save("a/one", "new/deep/three")
	require.ElementsMatch(t, []string{"a/one", "new", "new/deep", "new/deep/three"}, slices.Collect(maps.Keys(delta.Set)))
	require.NoError(t, os.RemoveAll(filepath.Join(k.dir, "new")))
	require.Equal(t, snapshot.Names{"new"}, k.save("new/deep/three").Removed)
	require.Equal(t, []string{"b/two"}, slices.Collect(maps.Keys(k.save().Set)))
}

func TestSave_APathThroughALinkIsEverywhere(t *testing.T) {
	t.Parallel()
	k := newKept(t, newMemory())
	k.write("real/file", "1")
	require.NoError(t, os.Symlink("real", filepath.Join(k.dir, "link")))
	k.save()
	k.write("real/file", "22")
	require.Equal(t, []string{"real/file"}, slices.Collect(maps.Keys(k.save("link/file").Set)))
	long := strings.Repeat("n", 300)
	require.True(t, k.save(long, "real/"+long, "nothing/there").Empty())
}

func TestSave_AHugeHoleCostsNothing(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	k, other := newKept(t, bodies), newKept(t, bodies)
	file, err := os.Create(filepath.Join(k.dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(10<<40))
	_, err = file.WriteAt([]byte("in the middle"), 5<<40+77)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	delta := k.save()
	require.Less(t, delta.Stats.Kept, int64(MaxPart+1))
	_, err = snapshot.Restore(t.Context(), other.root, k.tree, other.index, bodies, nil)
	require.NoError(t, err)
	file, err = os.Open(filepath.Join(other.dir, "sparse"))
	require.NoError(t, err)
	defer file.Close()
	content := make([]byte, 13)
	_, err = file.ReadAt(content, 5<<40+77)
	require.NoError(t, err)
	require.Equal(t, "in the middle", string(content))
}

const MaxPart = snapshot.MaxPart

// A file with a huge hole is brought back with the others, and as a change of one that is there.
// Its zeros are neither read nor written on either side.
func TestSync_AHugeHole(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	k, to := newKept(t, bodies), newKept(t, bodies)
	grow := func(content string, at int64) {
		t.Helper()
		file, err := os.OpenFile(filepath.Join(k.dir, "sparse"), os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		require.NoError(t, file.Truncate(10<<40))
		_, err = file.WriteAt([]byte(content), at)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	bring := func(base snapshot.Manifest) snapshot.Changes {
		t.Helper()
		k.save()
		require.NoError(t, k.tree.Validate(snapshot.Limits{}))
		changes, err := snapshot.Sync(t.Context(), to.root, base, k.tree, bodies, nil)
		require.NoError(t, err)
		require.Empty(t, changes.Conflicts)
		return changes
	}
	k.write("work", "hours of work")
	grow("in the middle", 5<<40+77)
	first := bring(nil)
	require.Equal(t, []string{"sparse", "work"}, first.Written)
	grow("at the end", 10<<40-10)
	require.Equal(t, []string{"sparse"}, bring(first.Base).Written)
	file, err := os.Open(filepath.Join(to.dir, "sparse"))
	require.NoError(t, err)
	defer file.Close()
	content := make([]byte, 10)
	_, err = file.ReadAt(content, 10<<40-10)
	require.NoError(t, err)
	require.Equal(t, "at the end", string(content))
}

// What cannot be brought back is not accepted: the error names the file.
func TestSave_AHoleThatNoDiskHas(t *testing.T) {
	t.Parallel()
	for name, tree := range map[string]snapshot.Tree{
		"disk": {"disk": {Type: protocol.TypeFile, Size: snapshot.MaxSize + 1, Parts: []snapshot.Part{{Size: snapshot.MaxSize + 1}}}},
		"files": func() snapshot.Tree {
			several := snapshot.Tree{}
			for i := range 5 {
				several[fmt.Sprint("files", i)] = snapshot.Node{Type: protocol.TypeFile, Size: snapshot.MaxSize, Parts: []snapshot.Part{{Size: snapshot.MaxSize}}}
			}
			return several
		}(),
	} {
		err := tree.Validate(snapshot.Limits{})
		require.ErrorIs(t, err, snapshot.ErrLimit)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "holes")
	}
	k := newKept(t, newMemory())
	for i := range 5 {
		require.NoError(t, os.Truncate(k.dir+"/"+touch(t, k.dir, i), snapshot.MaxSize))
	}
	_, err := snapshot.Save(t.Context(), k.root, snapshot.Tree{}, snapshot.Index{}, newMemory(), nil)
	require.ErrorIs(t, err, snapshot.ErrLimit)
	require.ErrorContains(t, err, `"f4"`)
}

// touch makes an empty file.
func touch(t *testing.T, dir string, i int) string {
	t.Helper()
	name := "f" + strconv.Itoa(i)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	return name
}

// Digests do not depend on where zeros are holes.
func TestDigest_OfHoles(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	for _, zeros := range [][]int64{
		{0},
		{1},
		{MaxPart},
		{MaxPart - 1},
		{MaxPart + 1},
		{2 * MaxPart},
		{0, 3*MaxPart + 65536},
		{65535, 65536, 65537},
		{source.Int64N(4 * MaxPart), source.Int64N(4 * MaxPart), source.Int64N(4 * MaxPart)},
	} {
		runs, content := make([][]byte, len(zeros)), []byte(nil)
		for i := range runs {
			runs[i] = bytes.Repeat([]byte{1}, int(source.Int64N(2))*int(source.Int64N(2*MaxPart)))
			content = append(append(content, runs[i]...), make([]byte, zeros[i])...)
		}
		require.Equal(t, snapshot.Digest([][]byte{content}, []int64{0}), snapshot.Digest(runs, zeros), zeros)
	}
}

// kept are bodies that are removed after a while, unless they are kept.
type keeping struct {
	*memory

	names map[string]bool
}

func (k *keeping) Keep(_ stdcontext.Context, names []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		if k.bodies[name] == nil {
			return fs.ErrNotExist
		}
		k.names[name] = true
	}
	return nil
}

// A Save that takes long keeps what it has stored: nothing names it yet.
func TestSave_KeepsItsBodies(t *testing.T) { //nolint:paralleltest // of all saves
	snapshot.KeepEvery(t, 0)
	bodies := &keeping{memory: newMemory(), names: map[string]bool{}}
	k := newKept(t, bodies.memory)
	content := make([]byte, 10*MaxPart)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(content) // it cannot fail
	k.write("large", string(content))
	delta, err := snapshot.Save(t.Context(), k.root, snapshot.Tree{}, snapshot.Index{}, bodies, nil)
	require.NoError(t, err)
	require.Len(t, delta.Stored, 10)
	require.NotEmpty(t, bodies.names)
	require.Subset(t, delta.Stored, slices.Collect(maps.Keys(bodies.names)))
}

// TestRestore_OfWhateverIsThere makes a tree of directories that have changed at random.
func TestRestore_OfWhateverIsThere(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	bodies := newMemory()
	k, other := newKept(t, bodies), newKept(t, bodies)
	for range 60 {
		for range 5 {
			scramble(t, random, k.dir)
			scramble(t, random, other.dir)
		}
		k.save()
		k.restore(other)
	}
}

// scramble changes something in a directory.
func scramble(t *testing.T, random *rand.Rand, dir string) {
	t.Helper()
	name := dir
	for range 1 + random.IntN(3) {
		name = filepath.Join(name, string(rune('a'+random.IntN(4))))
	}
	switch random.IntN(6) {
	case 0:
		_ = os.RemoveAll(name) // which a file above refuses
	case 1:
		_ = os.MkdirAll(name, 0o755) // where a file is, it stays
	case 2:
		_ = os.Symlink("b", name)
	case 3:
		if info, err := os.Lstat(name); err == nil && info.Mode().Type() != fs.ModeSymlink {
			require.NoError(t, os.Chmod(name, fs.FileMode(0o700+random.IntN(64))))
		}
	default:
		if info, err := os.Lstat(name); err != nil || info.Mode().IsRegular() {
			_ = os.MkdirAll(filepath.Dir(name), 0o755)
			_ = os.WriteFile(name, []byte(strings.Repeat("x", random.IntN(3))+fmt.Sprint(random.IntN(5))), 0o644)
		}
	}
}

// What is deeper than a path can say cannot be saved, and is removed all the same.
func TestRestore_OfATreeThatIsTooDeep(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	k := newKept(t, bodies)
	k.write("f", "kept")
	k.save()
	root, err := k.root.OpenRoot(".")
	require.NoError(t, err)
	for range 3000 {
		require.NoError(t, root.Mkdir("d", 0o755))
		below, err := root.OpenRoot("d")
		require.NoError(t, err)
		require.NoError(t, root.Close())
		root = below
	}
	require.NoError(t, root.Close())
	_, err = snapshot.Save(t.Context(), k.root, k.tree, k.index, bodies, nil)
	require.ErrorIs(t, err, snapshot.ErrLimit)
	_, err = snapshot.Restore(t.Context(), k.root, k.tree, k.index, bodies, nil)
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(k.dir, "d"))
	require.FileExists(t, filepath.Join(k.dir, "f"))
}

func TestRestore_RefusesWhatDoesNotMatch(t *testing.T) {
	t.Parallel()
	k := newKept(t, newMemory())
	k.write("f", strings.Repeat("abc", 40_000))
	k.save()
	body := k.tree["f"].Parts[0].Body
	whole := k.bodies.bodies[body]
	for what, bad := range map[string][]byte{"cut": whole[:len(whole)/2], "no body": []byte("hello"), "another": k.bodies.bodies["inline1"]} {
		k.bodies.bodies[body] = bad
		_, err := snapshot.Restore(t.Context(), newKept(t, k.bodies).root, k.tree, snapshot.Index{}, k.bodies, nil)
		require.ErrorIs(t, err, snapshot.ErrCorrupt, what)
	}
	delete(k.bodies.bodies, body)
	_, err := snapshot.Restore(t.Context(), newKept(t, k.bodies).root, k.tree, snapshot.Index{}, k.bodies, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestTree_RefusesWhatNoSaveWrites(t *testing.T) {
	t.Parallel()
	file := snapshot.Node{Type: protocol.TypeFile}
	many := snapshot.Tree{}
	for i := range 11 {
		many[fmt.Sprint(i)] = file
	}
	for what, tree := range map[string]snapshot.Tree{
		"above":                   {"../x": file},
		"absolute":                {"/x": file},
		"a device":                {"x": {Type: protocol.TypeOther}},
		"below a file":            {"x": file, "x/y": file},
		"below a link":            {"x": {Type: protocol.TypeSymlink, Target: "/etc"}, "x/y": file},
		"parts that are missing":  {"x": {Type: protocol.TypeFile, Size: 3}},
		"parts that are too much": {"x": {Type: protocol.TypeFile, Size: 3, Parts: []snapshot.Part{{Size: 1 << 62}, {Size: 1 << 62}}}},
		"a negative part":         {"x": {Type: protocol.TypeFile, Parts: []snapshot.Part{{Size: -1}, {Size: 1}}}},
		"a link to nothing":       {"x": {Type: protocol.TypeSymlink}},
		"a set-user-ID bit":       {"x": {Type: protocol.TypeFile, Mode: fs.ModeSetuid | 0o755}},
		"a sticky directory":      {"x": {Type: protocol.TypeDir, Mode: fs.ModeSticky | 0o755}},
		"too many":                many,
	} {
		require.Error(t, tree.Validate(snapshot.Limits{MaxEntries: 10}), what)
	}
}
