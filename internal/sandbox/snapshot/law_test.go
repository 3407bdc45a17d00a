package snapshot_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// places is where the trees of the laws have something, parents first.
func places() []string {
	return []string{"a", "a/x", "a/x/z", "a/y", "a-", "b", "b/x", "c"}
}

func drawNode(t *rapid.T, label string) (node, bool) {
	switch rapid.IntRange(0, 7).Draw(t, label) {
	case 0, 1:
		return node{}, false
	case 2:
		return node{link: rapid.SampledFrom([]string{"a", "../..", "b/x"}).Draw(t, "target")}, true
	case 3, 4:
		mode := rapid.SampledFrom([]os.FileMode{0o644, 0o755}).Draw(t, "mode")
		return node{body: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "body"), mode: mode}, true
	default:
		mode := rapid.SampledFrom([]os.FileMode{0o755, 0o755, 0o700}).Draw(t, "mode")
		return node{dir: true, mode: mode}, true
	}
}

func drawTree(t *rapid.T, from tree) tree {
	out := tree{}
	for _, name := range places() {
		if p := path.Dir(name); p != "." && !out[p].dir {
			continue
		}
		n, there := from[name]
		if from == nil || rapid.IntRange(0, 3).Draw(t, "edit "+name) == 0 {
			n, there = drawNode(t, name)
		}
		if there {
			out[name] = n
		}
	}
	return out
}

// inTemp calls f with empty directories that are removed afterwards.
func inTemp(tb testing.TB, t *rapid.T, n int, f func(roots []*os.Root)) {
	tb.Helper()
	roots := make([]*os.Root, n)
	for i := range roots {
		dir, err := os.MkdirTemp(tb.TempDir(), "law") //nolint:usetesting // one for each try
		require.NoError(t, err)
		roots[i], err = os.OpenRoot(dir)
		require.NoError(t, err)
	}
	defer func() {
		for _, root := range roots {
			require.NoError(t, root.Close())
			require.NoError(t, os.RemoveAll(root.Name()))
		}
	}()
	f(roots)
}

func TestLaw_SaveRestoreSaveIsTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		want := drawTree(rt, nil)
		for _, part := range rapid.SliceOfNDistinct(rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 20), 0, 5,
			func(b []byte) string { return string(b) }).Draw(rt, "names") {
			name := "n" + strings.ReplaceAll(string(part), "/", "\n")
			want[name] = node{
				body: string(rapid.SliceOf(rapid.Byte()).Draw(rt, "body")),
				mode: os.FileMode(rapid.IntRange(1, 0o777).Draw(rt, "mode")),
			}
		}
		inTemp(t, rt, 2, func(roots []*os.Root) {
			build(t, roots[0], want)
			c := saved(t, roots[0], nil)
			_, err := snapshot.Restore(t.Context(), roots[1], c.tree, snapshot.Index{}, c.bodies, nil)
			require.NoError(rt, err)
			require.Equal(rt, c.manifest, saved(t, roots[1], nil).manifest)
			require.Len(rt, c.manifest, len(want))
			if os.Geteuid() == 0 {
				require.Equal(rt, want.filled(), content(t, roots[1]))
			}
		})
	})
}

func TestLaw_SyncIsAThreeWayMerge(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		base := drawTree(rt, nil)
		remote, local := drawTree(rt, base), drawTree(rt, base)
		inTemp(t, rt, 3, func(roots []*os.Root) {
			for i, want := range []tree{base, remote, local} {
				build(t, roots[i], want)
			}
			manifest, theirs := saved(t, roots[0], nil).manifest, saved(t, roots[1], nil)
			changes, err := theirs.to(t, roots[2], manifest, nil)
			require.NoError(rt, err)
			require.Equal(rt, theirs.manifest, changes.Base, "of the next one")
			result := content(t, roots[2])
			checkMerge(rt, merged{base.filled(), remote.filled(), local.filled(), result, changes})

			again, err := theirs.to(t, roots[2], manifest, nil)
			require.NoError(rt, err)
			require.Equal(rt, snapshot.Changes{Conflicts: changes.Conflicts, Theirs: changes.Theirs, Base: changes.Base}, again)
			require.Equal(rt, result, content(t, roots[2]))
		})
	})
}

// merged is the input and output of one merge.
type merged struct {
	base, remote, local, result tree
	changes                     snapshot.Changes
}

// checkMerge compares what happened with what should have.
func checkMerge(t require.TestingT, m merged) {
	for _, name := range places() {
		checkPath(t, m, name)
	}
	for name, n := range m.result {
		if !slices.Contains(places(), name) {
			require.Contains(t, m.changes.Theirs, name, "nothing else appears")
			require.False(t, n.dir)
		}
	}
	if equalTrees(m.local, m.base) {
		require.Empty(t, m.changes.Conflicts)
		require.Equal(t, m.remote, m.result)
	}
	if equalTrees(m.remote, m.base) {
		require.Equal(t, snapshot.Changes{Base: m.changes.Base}, m.changes)
		require.Equal(t, m.local, m.result)
	}
}

func checkPath(t require.TestingT, m merged, name string) {
	b, r, l, got := at(m.base, name), at(m.remote, name), at(m.local, name), at(m.result, name)
	written := slices.Contains(m.changes.Written, name)
	removed := slices.Contains(m.changes.Removed, name)
	conflict := slices.Contains(m.changes.Conflicts, name)
	switch {
	case written:
		require.Equal(t, r, got, name)
		remade := l == nothing && r == b && r.dir // for what is new below it
		require.True(t, remade || l == b && r != b, name)
	case removed:
		require.Equal(t, []node{nothing, nothing}, []node{r, got}, name)
		require.Equal(t, b, l, name)
	case conflict:
		require.Equal(t, l, got, name)
		require.NotEqual(t, b, r, name)
		require.NotEqual(t, l, r, name)
		require.True(t, l != b || blocked(m, name), name)
		if r != nothing && !r.dir && r.link == "" {
			require.Contains(t, theirsOf(m), r, name)
		}
	default:
		require.Equal(t, l, got, name)
		kept := r == nothing && l == b && l.dir && occupied(m.result, name)
		goneHere := r == nothing && l == nothing
		require.True(t, r == b || l == r || kept || goneHere, name)
	}
}

// nothing is what is at a path with nothing.
var nothing = node{mode: os.ModeIrregular}

func at(t tree, name string) node {
	if n, ok := t[name]; ok {
		return n
	}
	return nothing
}

// blocked says that something of ours stands in the way of a path.
func blocked(m merged, name string) bool {
	if occupied(m.result, name) {
		return true
	}
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		if at(m.local, p) != at(m.base, p) || slices.Contains(m.changes.Conflicts, p) {
			return true
		}
	}
	return false
}

func occupied(t tree, name string) bool {
	for other := range t {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

func theirsOf(m merged) []node {
	var out []node
	for _, name := range m.changes.Theirs {
		out = append(out, m.result[name])
	}
	return out
}

func equalTrees(a, b tree) bool {
	return len(a) == len(b) && !slices.ContainsFunc(sortedKeys(a), func(n string) bool { return at(b, n) != at(a, n) })
}
