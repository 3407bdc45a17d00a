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
	_, err = protocol.ParseFleet(string(protocol.DefaultFleet))
	require.NoError(t, err)
	for _, pool := range []protocol.Pool{protocol.DefaultPool, protocol.SessionPool} {
		_, err = protocol.ParsePool(string(pool))
		require.NoError(t, err)
	}
}
