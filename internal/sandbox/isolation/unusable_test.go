package isolation_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestUnusableError_HasWhatTheSystemSaid(t *testing.T) {
	t.Parallel()
	denied := errors.New("permission denied")
	err := &isolation.UnusableError{Found: "only root may", Advice: "be root", Err: denied}
	require.EqualError(t, err, "control groups cannot be used: only root may: permission denied")
	require.ErrorIs(t, err, denied)
	require.Equal(t, "only root may: permission denied", err.Why())
}
