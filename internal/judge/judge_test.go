package judge_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
)

func TestPrincipal_ARoleSaysWhatMayChange(t *testing.T) {
	t.Parallel()
	for role, all := range map[string]bool{"": true, judge.RoleUse: true, judge.RoleRead: false, "other": false} {
		who := judge.Principal{Name: "ann", Role: role}
		require.NoError(t, who.May("tools/call", false), role)
		if err := who.May("tools/call", true); all {
			require.NoError(t, err, role)
		} else {
			require.ErrorContains(t, err, "tools/call", role)
		}
	}
}

// Two principals never have one id, whatever their names are.
func TestPrincipal_IDsAreDistinct(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, who := range []judge.Principal{{}, {Name: "a"}, {Role: "a"}, {Tenant: "a"}, {Name: "a", Role: "b"}, {Name: `a","b`}, {Name: "a", Tenant: "b"}} {
		require.False(t, ids[who.ID()], who)
		ids[who.ID()] = true
	}
}
