package cli_test

import (
	"os"
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
	cli.Contexts
	cli.Login
	cli.Pools
	cli.Signing
	Fleet  string   `default:"tf"`
	Bodies string   `placeholder:"URL"`
	Look   struct{} `cmd:""`
}

// reached returns the flags that the hints of a command print.
func reached(t *testing.T, args string) string {
	t.Helper()
	var g connects
	p := cli.Program{
		Name: "prog", Files: cli.Files{User: true}, Args: append([]string{"group", "look"}, strings.Fields(args)...),
		Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
	}
	require.Equal(t, cli.ExitOK, cli.Run(p, &g, &g.Common, func(cli.Selected) error { return nil }))
	return g.Group.Reach()
}

// TestReach_IsTheShortestThatReachesTheFleet: other commands print it in their hints.
func TestReach_IsTheShortestThatReachesTheFleet(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	require.NoError(t, cli.AddContext("prod", map[string]any{
		"nats": "nats://ann:s3cret@host:1", "creds": "/c/prod.creds", "fleet": "p", "pool-nats": map[string]string{"wide": "nats://host:2"},
	}))
	for args, want := range map[string]string{
		"":                                     "",
		"--fleet a":                            " --fleet a",
		"--nats nats://h:4222 --creds /c/t":    " --nats nats://h:4222 --creds /c/t",
		"--nats nats://h --sign-key /c/a'b":    ` --nats nats://h --sign-key "/c/a'b"`,
		"--nats nats://bob:s3cret@h --fleet a": " --nats nats://xxxxx@h --fleet a",
		"--nats nats://h --pool-nats b=nats://bob:s3cret@i;a=nats://j": ` --nats nats://h --pool-nats 'a=nats://j;b=nats://xxxxx@i'`,
		"--nats nats://h --bodies s3://b/p?endpoint=http://e":          ` --nats nats://h --bodies 's3://b/p?endpoint=http://e'`,
		"--nats-context local":         " --nats-context local",
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
