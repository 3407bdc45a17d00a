package gitguard_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/gitguard"
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

// TestTracked_IsBounded: all indexes together, so that a session does not fill the disk with
// copies.
func TestTracked_IsBounded(t *testing.T) {
	t.Parallel()
	dir := workspace(t, commit+"for n in 1 2 3; do truncate -s 400M .git/sharedindex.$n; done")
	_, err := gitguard.Tracked(t.Context(), dir)
	require.ErrorContains(t, err, "the indexes are larger than")
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
