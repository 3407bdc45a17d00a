package lane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSnapshot_WhatIsNotInTheListIsOldUnlessItCameLater(t *testing.T) {
	t.Parallel()
	var none *snapshot
	require.True(t, none.lists(&letter{seq: 3, subject: "a"}), "a server on its own needs none")
	s := &snapshot{last: 17, whole: true, unread: map[string]uint64{"a": 1, "late": 1}}
	require.False(t, s.lists(&letter{seq: 2, subject: "removed"}))
	require.True(t, s.lists(&letter{seq: 3, subject: "a"}))
	require.True(t, s.lists(&letter{seq: 18, subject: "new"}))
	require.True(t, s.lists(&letter{seq: 19, subject: "late"}), "stored while the list was made")
	part := &snapshot{last: 17, unread: map[string]uint64{"a": 1}}
	require.True(t, part.lists(&letter{seq: 2, subject: "b"}), "nothing is known of what the list leaves out")
}
