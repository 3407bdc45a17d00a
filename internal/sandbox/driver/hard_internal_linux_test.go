package driver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/unusable"
)

func TestBecause_KeepsTheAdvice(t *testing.T) {
	t.Parallel()
	denied := errors.New("permission denied")
	why := &unusable.Error{What: unusable.Quotas, Found: "only root may", Advice: "be root", Err: denied}
	require.EqualError(t, why, "quotas cannot be used: only root may: permission denied")
	require.ErrorIs(t, why, denied)
	err := because(unusable.Quotas, errors.Join(why, errors.New("and more")))
	require.Equal(t, &UnusableError{What: "quotas", Found: "only root may: permission denied", Advice: "be root"}, err)
	require.EqualError(t, err, "no quotas for sandboxes: only root may: permission denied")
	require.Equal(t, &UnusableError{What: "control groups", Found: "permission denied"}, because(unusable.Groups, denied))
}
