package cli_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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

func TestSize_IsReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		size  cli.Size
		again string
	}{
		"0": {0, "0"}, "4096": {4096, "4K"}, "4097": {4097, "4097"}, "64K": {64 << 10, "64K"}, "64k": {64 << 10, "64K"},
		"512M": {512 << 20, "512M"}, "1.5G": {3 << 29, "1536M"}, "2GiB": {2 << 30, "2G"}, "2GB": {2 << 30, "2G"}, " 1T ": {1 << 40, "1T"},
		"10 M": {10 << 20, "10M"}, "7B": {7, "7"},
	} {
		var got cli.Size
		require.NoError(t, got.UnmarshalText([]byte(text)), text)
		require.Equal(t, want.size, got, text)
		require.Equal(t, want.again, got.String(), text)
	}
	for _, text := range []string{"", "M", "-1", "1X", "NaN", "1e30", "Inf", "half", "1KK"} {
		var got cli.Size
		require.ErrorContains(t, got.UnmarshalText([]byte(text)), "want a number of bytes", text)
	}
}

func TestLimits_Flags(t *testing.T) {
	t.Parallel()
	none, err := (&cli.Limits{}).Sandbox()
	require.NoError(t, err)
	require.Equal(t, sandbox.Limits{}, none)
	all, err := (&cli.Limits{
		Wall: time.Hour, CPU: time.Minute, Memory: 1 << 30, Processes: 5, OpenFiles: 64, FileSize: 7, Disk: 8, Output: 4096,
	}).Sandbox()
	require.NoError(t, err)
	require.Equal(t, sandbox.Limits{
		Wall: time.Hour, CPU: time.Minute, Memory: 1 << 30, Processes: 5, OpenFiles: 64, FileSize: 7, Disk: 8, Output: 4096,
	}, all)
	_, err = (&cli.Limits{Memory: 5, OpenFiles: 1, Wall: -time.Second}).Sandbox()
	var exit *cli.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, cli.ExitUsage, exit.Code)
	require.ErrorContains(t, err, "--limit-memory 5: must be 0 or 1048576 to")
	require.ErrorContains(t, err, "--limit-open-files 1: must be 0 or 8 to")
	require.ErrorContains(t, err, "--limit-wall -1s: must be 0 or 1ms to 168h0m0s")
}

// TestWarnings_NameLimitsThatAreNotHeld, of those that were asked for.
func TestWarnings_NameLimitsThatAreNotHeld(t *testing.T) {
	t.Parallel()
	caps := isolation.Caps{Driver: "d", Warnings: []string{"one"}, Limits: isolation.LimitKinds{
		CPU: isolation.LimitNone, Memory: isolation.LimitRlimit, Processes: isolation.LimitNone,
		OpenFiles: isolation.LimitNone, FileSize: isolation.LimitNone, Disk: isolation.LimitNone,
	}}
	require.Equal(t, []string{"one"}, cli.Warnings(sandbox.Limits{Memory: 1 << 30, Wall: time.Second}, caps))
	require.Equal(t, []string{"one", "driver d does not enforce --limit-processes, --limit-disk"},
		cli.Warnings(sandbox.Limits{Memory: 1 << 30, Processes: 5, Disk: 1 << 20}, caps))
	require.Len(t, caps.Warnings, 1)
}

// connects is a command line with all connection flags, in a command below a group.
type connects struct {
	cli.Common

	Group group `cmd:""`
}

type group struct {
	Nats string `placeholder:"URL"`
	cli.Connection
	cli.Pools
	cli.Signing
	Look struct{} `cmd:""`
}

// words are the words of a command line; ~ is a space in one.
func words(line string) []string {
	fields := strings.Fields(line)
	for i := range fields {
		fields[i] = strings.ReplaceAll(fields[i], "~", " ")
	}
	return fields
}

// reached returns the flags that the hints of a command print.
func reached(t *testing.T, args string) string {
	t.Helper()
	var g connects
	p := cli.Program{
		Name: "prog", Files: cli.Files{User: true}, Args: append([]string{"group", "look"}, words(args)...),
		Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
	}
	require.Equal(t, cli.ExitOK, cli.Run(p, &g, &g.Common, func(cli.Selected) error { return nil }))
	return g.Group.Reach()
}

// TestReach_IsTheShortestThatReachesTheFleet: other commands print it in their hints.
func TestReach_IsTheShortestThatReachesTheFleet(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	tool := filepath.Join(dir, "nats", "context")
	require.NoError(t, os.MkdirAll(tool, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(tool, "my fleet.json"), []byte(`{"url": "nats://host:3"}`), 0o600))
	require.NoError(t, cli.AddContext("prod", "nats://ann:s3cret@host:1", map[string]any{
		"creds": "/c/prod.creds", "fleet": "p", "pool-nats": map[string]string{"wide": "nats://host:2"},
	}))
	for args, want := range map[string]string{
		"":                                     "",
		"--fleet a":                            " --fleet a",
		"--nats nats://h:4222 --creds /c/t":    " --nats nats://h:4222 --creds /c/t",
		"--nats nats://h --sign-key /c/a'b":    ` --nats nats://h --sign-key "/c/a'b"`,
		"--nats nats://bob:s3cret@h --fleet a": " --nats nats://xxxxx@h --fleet a",
		"--nats nats://h --pool-nats b=nats://bob:s3cret@i;a=nats://j": ` --nats nats://h --pool-nats 'a=nats://j;b=nats://xxxxx@i'`,
		"--nats nats://h --bodies s3://b/p?endpoint=http://e":          ` --nats nats://h --bodies 's3://b/p?endpoint=http://e'`,
		"--context my~fleet":           ` --context 'my fleet'`,
		"--context prod":               " --context prod",
		"--context prod --fleet other": " --context prod --fleet other",
	} {
		require.Equal(t, want, reached(t, args), args)
	}
	require.NoError(t, cli.UseContext("prod"))
	require.Equal(t, " --context prod", reached(t, ""), "it may be another one later")
	require.Equal(t, " --context none", reached(t, "--context none"), "else it would be prod")
	require.Equal(t, " --nats nats://h", reached(t, "--nats nats://h"))
	t.Setenv("TOOLFLEET_NATS", "nats://h")
	t.Setenv("TOOLFLEET_FLEET", "a")
	require.Equal(t, " --nats nats://h --fleet a", reached(t, ""), "another terminal may not have the variables")
	t.Setenv("TOOLFLEET_NATS", "nats://bob:s3cret@h")
	require.Equal(t, " --fleet a", reached(t, ""), "a secret is left to the variable")
}
