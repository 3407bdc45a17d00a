package protocol_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestParseNames(t *testing.T) {
	t.Parallel()
	parsers := map[string]func(string) error{
		"session": func(s string) error { _, err := protocol.ParseSessionID(s); return err },
		"call":    func(s string) error { _, err := protocol.ParseCallID(s); return err },
		"fleet":   func(s string) error { _, err := protocol.ParseFleet(s); return err },
		"pool":    func(s string) error { _, err := protocol.ParsePool(s); return err },
	}
	const everybody, ids, notFleet, nobody = "session call fleet pool", "session call", "session call pool", ""
	for name, c := range map[string]struct{ in, accepted string }{
		"lower case":          {"abc", everybody},
		"with digit and dash": {"a-1", everybody},
		"one letter":          {"x", everybody},
		"32 characters":       {strings.Repeat("a", 32), everybody},
		"33 characters":       {strings.Repeat("a", 33), ids},
		"64 characters":       {strings.Repeat("a", 64), ids},
		"65 characters":       {strings.Repeat("a", 65), nobody},
		"a uuid":              {"0199f3a2-7c1e-7a44-9d50-2f6f1c0d9b11", ids},
		"starts with a digit": {"1a", notFleet},
		"starts with a dash":  {"-a", notFleet},
		"upper case":          {"Abc", ids},
		"underscore":          {"a_b", ids},
		"empty":               {"", nobody},
		"a dot":               {"a.b", nobody},
		"wildcards":           {"a*", nobody},
		"the rest":            {">", nobody},
		"a space":             {"a b", nobody},
		"a slash":             {"a/b", nobody},
		"a newline":           {"a\n", nobody},
		"not ASCII":           {"ä", nobody},
		"NUL":                 {"a\x00", nobody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for who, parse := range parsers {
				err := parse(c.in)
				if strings.Contains(c.accepted, who) {
					require.NoError(t, err, who)
					continue
				}
				require.ErrorIs(t, err, protocol.ErrInvalidName, who)
				require.ErrorContains(t, err, who)
			}
		})
	}
}

func TestNewIDs_AreAccepted(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	_, err := protocol.ParseSessionID(string(session))
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), uuid.MustParse(string(session)).Version())
	_, err = protocol.ParseCallID(string(protocol.RandomCallID()))
	require.NoError(t, err)
	_, err = protocol.ParseFleet(string(protocol.DefaultFleet))
	require.NoError(t, err)
	for _, pool := range []protocol.Pool{protocol.DefaultPool, protocol.SessionPool} {
		_, err = protocol.ParsePool(string(pool))
		require.NoError(t, err)
	}
}

// TestNewCallID_IsPinned: a coordinator of another version must derive the same id.
func TestNewCallID_IsPinned(t *testing.T) {
	t.Parallel()
	require.Equal(t, protocol.CallID("a2f6e6c0-6bb8-5946-aa7e-e26845185431"), protocol.NewCallID(sampleSession, "", 1, 2, 0))
	require.Equal(t, protocol.CallID("84c47e83-6b15-861b-b7ac-f0559940e327"), protocol.NewCallID(sampleSession, "QX3PRZ5Y7MBD2KJ4WTFUHG6CVE", 1, 2, 0))
	seen := map[protocol.CallID]bool{}
	for _, seed := range []protocol.Seed{"", protocol.NewSeed(), protocol.NewSeed()} {
		for _, session := range []protocol.SessionID{"a", "b"} {
			for place := range 1000 {
				id := protocol.NewCallID(session, seed, 1+place/100, 1+place/10%10, place%10)
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
			require.Regexp(t, c.want, string(protocol.NewWorkerID(c.host)))
		})
	}
	first, second := protocol.NewWorkerID("h"), protocol.NewWorkerID("h")
	require.NotEqual(t, first, second, "two starts on one host")
}
