//go:build unix

package sandboxtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireGroups returns what find, which is cgroup.Find, finds, and skips a test where there are no
// control groups for sandboxes. A machine of test/vm has them, and says that they are required.
func RequireGroups[T any](t *testing.T, find func() (T, error)) T {
	t.Helper()
	groups, err := find()
	if os.Getenv("TOOLFLEET_CGROUPS") == "required" {
		require.NoError(t, err)
	}
	if err != nil {
		t.Skip("UNSUPPORTED: " + err.Error())
	}
	return groups
}
