package lane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSnapshot_WhatIsNotInTheListIsOldUnlessItCameLater(t *testing.T) {
	t.Parallel()
	var none *snapshot
	require.True(t, none.lists(&message{Sequence: 3, Subject: "a"}), "a server on its own needs none")
	s := &snapshot{last: 17, whole: true, unread: map[string]uint64{"a": 1, "late": 1}}
	require.False(t, s.lists(&message{Sequence: 2, Subject: "removed"}))
	require.True(t, s.lists(&message{Sequence: 3, Subject: "a"}))
	require.True(t, s.lists(&message{Sequence: 18, Subject: "new"}))
	require.True(t, s.lists(&message{Sequence: 19, Subject: "late"}), "stored while the list was made")
	part := &snapshot{last: 17, unread: map[string]uint64{"a": 1}}
	require.True(t, part.lists(&message{Sequence: 2, Subject: "b"}), "nothing is known of what the list leaves out")
}
