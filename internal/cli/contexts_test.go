package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
)

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
