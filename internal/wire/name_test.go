package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestNewCallID_IsPinned: a coordinator of another version must derive the same id.
func TestNewCallID_IsPinned(t *testing.T) {
	t.Parallel()
	require.Equal(t, protocol.CallID("a2f6e6c0-6bb8-5946-aa7e-e26845185431"), wire.NewCallID(sampleSession, "", 1, 2, 0))
	require.Equal(t, protocol.CallID("84c47e83-6b15-861b-b7ac-f0559940e327"), wire.NewCallID(sampleSession, "QX3PRZ5Y7MBD2KJ4WTFUHG6CVE", 1, 2, 0))
	seen := map[protocol.CallID]bool{}
	for _, seed := range []string{"", wire.NewSeed(), wire.NewSeed()} {
		for _, session := range []protocol.SessionID{"a", "b"} {
			for place := range 1000 {
				id := wire.NewCallID(session, seed, 1+place/100, 1+place/10%10, place%10)
				require.NotContains(t, seen, id)
				seen[id] = true
			}
		}
	}
}

func TestNewWorkerID(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ host, want string }{
		"plain":             {"node-1", `^node-1-[0-9a-f]{8}$`},
		"dots are left out": {"node1.example.com", `^node1examplecom-[0-9a-f]{8}$`},
		"long":              {strings.Repeat("h", 100), `^h{32}-[0-9a-f]{8}$`},
		"nothing safe":      {"...", `^-[0-9a-f]{8}$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Regexp(t, c.want, string(wire.NewWorkerID(c.host)))
		})
	}
	first, second := wire.NewWorkerID("h"), wire.NewWorkerID("h")
	require.NotEqual(t, first, second, "two starts on one host")
}

func TestHashLane(t *testing.T) {
	t.Parallel()
	// The hash is part of every subject: a change would strand what is stored.
	require.Equal(t, wire.LaneHash("yadlfuccpu5pvp2sjr26so6fj4"), wire.HashLane(protocol.Lane("sandbox/s1")))
	require.Len(t, string(wire.HashLane(protocol.Lane(""))), 26)
	require.Regexp(t, `^[a-z2-7]{26}$`, string(wire.HashLane(protocol.Lane("sandbox/s2"))))
	require.NotEqual(t, wire.HashLane(protocol.Lane("a/b")), wire.HashLane(protocol.Lane("a/c")))
}

func TestRandomCallID_IsACallID(t *testing.T) {
	t.Parallel()
	_, err := protocol.ParseCallID(string(wire.RandomCallID()))
	require.NoError(t, err)
}
