package cli_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
)

// TestRun_ErrorsNameTheVariableThatSetAFlag if they name the flag or its value, and only then.
func TestRun_ErrorsNameTheVariableThatSetAFlag(t *testing.T) {
	t.Setenv("TOOLFLEET_NATS", "nats://bob:s3cret@host:4222")
	t.Setenv("TOOLFLEET_SLOTS", "7")
	t.Setenv("TOOLFLEET_DRAIN", "-1s")
	for message, want := range map[string]string{
		"connect to NATS at nats://xxxxx@host:4222: refused": "refused (--nats is set by the variable TOOLFLEET_NATS)\n",
		"--nats: no":                         "--nats: no (--nats is set by the variable TOOLFLEET_NATS)\n",
		"--drain -1s and --slots 7: no":      "no (--slots is set by the variable TOOLFLEET_SLOTS, --drain is set by the variable TOOLFLEET_DRAIN)\n",
		"--drain-age, x--slots and 7":        "--drain-age, x--slots and 7\n",
		"TOOLFLEET_NATS is wrong for --nats": "is wrong for --nats\n",
	} {
		o := run(t, errors.New(message), "go", "home")
		require.Equal(t, cli.ExitFailed, o.code)
		require.Contains(t, o.stderr, want)
		require.NotContains(t, o.stderr, "s3cret")
	}
	o := run(t, fmt.Errorf("wrapped: %w", cli.Usagef("--slots 8: no")), "go", "home", "--slots=8")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Contains(t, o.stderr, "--slots 8: no\n", "an argument has set it")

	t.Setenv("TOOLFLEET_SPEED", "sideways")
	o = run(t, nil, "go", "home")
	require.Equal(t, cli.ExitUsage, o.code)
	require.Contains(t, o.stderr, `--speed must be one of "slow","fast" but got "sideways" (--speed is set by the variable TOOLFLEET_SPEED)`)
	o = run(t, nil, "go", "home", "--slot=3")
	require.NotContains(t, o.stderr, "is set by", "the list of flags is about none of them")
}
