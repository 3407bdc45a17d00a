package gitguard_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
)

func TestTracked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script, in string
		want       []string
	}{
		"no repository":  {"touch a", "", nil},
		"repository":     {commit + "mkdir d; touch d/b c; git add d", "", []string{"a.txt", "d/b"}},
		"a subdirectory": {commit + "mkdir d e; touch d/b e/c; git add .", "d", []string{"b"}},
		"a submodule":    {submodule + "touch lib/x; git -C lib add x", "", []string{".gitmodules", "a.txt", "lib", "lib/x"}},
		"a worktree":     {commit + "git worktree add -q ../other 2>&1", "../other", []string{"a.txt"}},
		"a split index":  {commit + "git update-index --split-index; touch b; git add b", "", []string{"a.txt", "b"}},
		"long names":     {"git init -q; d=$(printf 'd%.0s' $(seq 200)); p=$(printf \"$d/%.0s\" $(seq 25)); for f in x y; do git update-index --add --cacheinfo 100644,$(git hash-object -w --stdin </dev/null),$p$f; done; test ${#p} -gt 4095; git rm -q --cached ${p}y; git update-index --add --cacheinfo 100644,$(git hash-object --stdin </dev/null),b", "", []string{"b", strings.Repeat(strings.Repeat("d", 200)+"/", 25) + "x"}},
		"version 4":      {"git init -q; mkdir -p d/e; touch a d/e/b d/e/bc d/f; git add .; git update-index --index-version 4", "", []string{"a", "d/e/b", "d/e/bc", "d/f"}},
		"flags":          {"git init -q; touch a b ccccc; git add a b; git add -N ccccc; git update-index --skip-worktree a", "", []string{"a", "b", "ccccc"}},
		"split again":    {commit + "git update-index --split-index; touch b; git add b; git update-index --split-index; touch c; git add c; git rm -q --cached a.txt", "", []string{"b", "c"}},
		"with caches":    {commit + "git update-index --untracked-cache; git config index.threads 4; touch b; git add b; git status", "", []string{"a.txt", "b"}},
		"other digests":  {"git init -q --object-format=sha256; touch b; git add b", "", []string{"b"}},
		"a file .git":    {"git init -q --separate-git-dir=../r .; touch b; git add b", "", []string{"b"}},
		"strange names":  {"git init -q; touch ' a' 'ö\n\tx'; git add .", "", []string{" a", "ö\n\tx"}},
		"sparse":         {commit + "mkdir in out; touch in/i out/o; git add .; git commit -qm 2; git sparse-checkout init --cone --sparse-index; git sparse-checkout set in", "", []string{"a.txt", "in/i", "out"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(workspace(t, c.script), c.in)
			got, err := gitguard.Tracked(t.Context(), dir)
			require.NoError(t, err)
			slices.Sort(got)
			require.Equal(t, c.want, got)
		})
	}
	dir := workspace(t, commit+"head -c 100 /dev/urandom > .git/index")
	_, err := gitguard.Tracked(t.Context(), dir)
	require.ErrorContains(t, err, "files that git tracks: ", "nothing tracked is not known")
}

// TestTracked_FetchesNothing: git fetches what a partial clone lacks, by a program of its settings,
// when it looks into a directory of a sparse index.
func TestTracked_FetchesNothing(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+`mkdir in out; echo a >in/a; echo b >out/b; git add in out; git commit -qm 2
git sparse-checkout init --cone --sparse-index; git sparse-checkout set in
t=$(git rev-parse HEAD:out)
git config core.repositoryformatversion 1; git config extensions.partialclone origin
git config remote.origin.url ssh://h.example/x; git config remote.origin.promisor true
git config core.sshCommand '`+ran+` #'
rm .git/objects/${t:0:2}/${t:2}`)
	mark := filepath.Join(filepath.Dir(dir), "ran")
	files, err := gitguard.Tracked(t.Context(), dir)
	require.NoError(t, err)
	require.Contains(t, files, "in/a")
	_, err = gitguard.Protected(t.Context(), dir)
	require.NoError(t, err)
	look, err := gitguard.Look(t.Context(), dir)
	require.NoError(t, err)
	_, err = look.Findings(t.Context())
	require.NoError(t, err)
	require.NoFileExists(t, mark)
	run(t, dir, "git ls-files || true")
	require.FileExists(t, mark, "the case is one")
}

// TestTracked_IsBounded: a session does not fill the disk with copies, nor the memory with names.
func TestTracked_IsBounded(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"truncate -s 1100M .git/index; for n in 1 2 3; do truncate -s 400M .git/sharedindex.$n; done")
	_, err := gitguard.Tracked(t.Context(), dir)
	require.ErrorContains(t, err, "the indexes are larger than")
	index := func(version uint32, entries int, entry func(i int) []byte) []byte {
		file := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte("DIRC"), version), uint32(entries))
		for i := range entries {
			file = append(append(file, make([]byte, 24)...), 0, 0, 0x81, 0xa4) // the mode of a file
			file = append(append(file, make([]byte, 12+20)...), entry(i)...)
		}
		return append(file, make([]byte, 20)...)
	}
	long := strings.Repeat("a", 60_000)
	for name, c := range map[string]struct {
		index []byte
		says  string
	}{
		"repeated prefixes": {index(4, 5000, func(i int) []byte {
			if i == 0 {
				return append([]byte("\x0f\xff\x00"+long), 0)
			}
			return fmt.Appendf(nil, "\x0f\xff\x08%08d\x00", i)
		}), "the names of its files have more than 268435456 bytes"},
		"a name that is shorter than its prefix": {index(4, 2, func(i int) []byte {
			if i == 0 {
				return append([]byte("\x0f\xff\x00"+long), 0)
			}
			return []byte("\x00\x02\x00xx\x00")
		}), "git cannot read it"},
		"a prefix that is longer than the name before": {index(4, 1, func(int) []byte { return []byte("\x00\x02\x05xx\x00") }), "git cannot read it"},
		"more entries than there are":                  {index(2, 1, func(int) []byte { return []byte("\x0f\xfe") }), "git cannot read it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workspace(t, commit)
			require.NoError(t, os.WriteFile(filepath.Join(dir, ".git/index"), c.index, 0o600))
			_, err := gitguard.Tracked(t.Context(), dir)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestIdentity_OfHostileConditions: alternatives of a pattern would be tried for longer than a
// life.
func TestIdentity_OfHostileConditions(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+`git config "includeIf.onbranch:$(printf '{a,a}%.0s' $(seq 60))b.path" x; git config user.name n; git config user.email e`+"\n"+
		`printf 'ref: refs/heads/'"$(printf 'a%.0s' $(seq 70))" > .git/HEAD`)
	name, email := gitguard.Identity(t.Context(), dir)
	require.Equal(t, []string{"n", "e"}, []string{name, email})
}
