package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is no policy file is refused before it is read: a device has no end.
func TestPolicies_OfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, large := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "large.yaml")
	require.NoError(t, os.WriteFile(good, []byte("tools: {deny: [bash]}\n"), 0o600))
	require.NoError(t, os.WriteFile(large, []byte(strings.Repeat("#", 1<<20+1)), 0o600))
	for file, fault := range map[string]string{
		dir: "is not a regular file", large: "is larger than 1 MiB", os.DevNull: "is not a regular file", good + ".none": "good.yaml.none",
	} {
		_, err := (&PolicyFlags{Policy: file}).Policies()
		require.ErrorContains(t, err, "--policy: ")
		require.ErrorContains(t, err, fault)
	}
	all, err := (&PolicyFlags{Policy: good}).Policies()
	require.NoError(t, err)
	require.Equal(t, []string{"bash"}, all[0].Tools.Deny)
}
