package store

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestSnapshot_WhatIsNotInTheListIsOldUnlessItCameLater(t *testing.T) {
	t.Parallel()
	lists := func(s *Snapshot, seq uint64, subject string) bool {
		return s.Lists(&jetstream.RawStreamMsg{Sequence: seq, Subject: subject})
	}
	require.True(t, lists(nil, 3, "a"), "a server on its own needs none")
	s := &Snapshot{Listing: &Listing{Last: 17, Whole: true, Subjects: map[string]uint64{"a": 1, "late": 1}}}
	require.False(t, lists(s, 2, "removed"))
	require.True(t, lists(s, 3, "a"))
	require.True(t, lists(s, 18, "new"))
	require.True(t, lists(s, 19, "late"), "stored while the list was made")
	part := &Snapshot{Listing: &Listing{Last: 17, Subjects: map[string]uint64{"a": 1}}}
	require.True(t, lists(part, 2, "b"), "nothing is known of what the list leaves out")
}
