package cli_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestNetwork_ParsesOrNamesTheFault(t *testing.T) {
	t.Parallel()
	n := cli.Network{AllowNet: "example.com,*.b.example:22", AllowNetPrivate: "10.1.2.3/8, 192.168.0.1/32"}
	allow, private, err := n.Reachable()
	require.NoError(t, err)
	require.Equal(t, "*.b.example:22,example.com:443,example.com:80", allow.String())
	require.Equal(t, "10.0.0.0/8", private[0].String())
	require.Equal(t, "192.168.0.1/32", private[1].String())
	for want, n := range map[string]cli.Network{
		`--allow-net: entry "a b"`:       {AllowNet: "a b"},
		`--allow-net-private "10.0.0.1"`: {AllowNet: "a.example", AllowNetPrivate: "10.0.0.1"},
		`--allow-net-private ""`:         {AllowNet: "a.example", AllowNetPrivate: "10.0.0.0/8,"},
		"needs hosts in --allow-net":     {AllowNetPrivate: "10.0.0.0/8"},
	} {
		_, _, err := n.Reachable()
		require.ErrorContains(t, err, want)
	}
}

// TestNetwork_HelpNamesEverySet: who reads the help need not make a mistake to learn of them.
func TestNetwork_HelpNamesEverySet(t *testing.T) {
	t.Parallel()
	field, ok := reflect.TypeFor[cli.Network]().FieldByName("AllowNet")
	require.True(t, ok)
	require.Contains(t, field.Tag.Get("help"), strings.Join(egress.Sets(), ", "))
}

func TestEnforced_OnlyWhatTheDriverCan(t *testing.T) {
	t.Parallel()
	caps := func(modes ...isolation.NetworkMode) isolation.Caps {
		return isolation.Caps{Driver: "d", Networks: modes}
	}
	for list, test := range map[string]struct {
		wanted isolation.NetworkMode
		says   string
	}{
		"example.com": {isolation.NetworkProxy, "driver d cannot restrict commands to a list of hosts; driver ns can"},
		"all":         {isolation.NetworkAll, "driver d cannot give commands the whole network"},
	} {
		n := cli.Network{AllowNet: list}
		allow, _, err := n.Reachable()
		require.NoError(t, err)
		require.NoError(t, cli.Enforced(allow, caps(test.wanted)))
		require.ErrorContains(t, cli.Enforced(allow, caps(isolation.NetworkNone)), test.says)
	}
	n := cli.Network{}
	allow, _, err := n.Reachable()
	require.NoError(t, err)
	require.NoError(t, cli.Enforced(allow, caps()))
}
