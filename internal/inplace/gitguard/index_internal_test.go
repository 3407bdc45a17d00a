package gitguard

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIndex_IsBounded by what git would write about its entries, exactly.
func TestIndex_IsBounded(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT TESTED: git is not installed")
	}
	for _, version := range []string{"2", "4"} {
		dir := t.TempDir()
		script := "git init -q; mkdir -p some/directory; for i in $(seq 100); do touch some/directory/$i; done; git add .; git update-index --index-version " + version + "; git ls-files --cached --stage -z"
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
		cmd.Dir = dir
		listed, err := cmd.Output()
		require.NoError(t, err)
		index := filepath.Join(dir, ".git/index")
		_, _, rest, err := copyIndex(index, filepath.Join(t.TempDir(), "copy"), 20, int64(len(listed)))
		require.NoError(t, err)
		require.Zero(t, rest, "version %s", version)
		_, _, _, err = copyIndex(index, filepath.Join(t.TempDir(), "copy"), 20, int64(len(listed))-1)
		require.ErrorContains(t, err, "the names of its files have more than")
	}
}
