package checkpoint

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a caller can do something about has a code of its own.
func TestRestoreError_NamesTheCause(t *testing.T) {
	t.Parallel()
	for cause, words := range map[error]string{
		syscall.ENOSPC: "has no room", syscall.EDQUOT: "has no room",
		workspace.ErrMissing: "cannot be restored", snapshot.ErrCorrupt: "cannot be restored",
		snapshot.ErrUnsafe: "cannot be restored", snapshot.ErrLimit: "cannot be restored",
		workspace.ErrAway: "cannot be restored", workspace.ErrFull: "cannot be restored",
	} {
		fault, is := errors.AsType[*protocol.Error](RestoreError("sandbox/s", fmt.Errorf("restore: %w", cause)))
		require.True(t, is, cause)
		require.Equal(t, protocol.CodeWorkspaceUnavailable, fault.Code)
		require.Contains(t, fault.Message, words)
	}
}
