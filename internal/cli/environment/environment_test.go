package environment_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestOpen_ChecksFlagsBeforeItWrites: a wrong flag is reported where nothing can be written, and
// with --nats no directory is needed at all.
func TestOpen_ChecksFlagsBeforeItWrites(t *testing.T) { //nolint:paralleltest // changes the environment
	none := filepath.Join(t.TempDir(), "none")
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(name, none)
	}
	for want, change := range map[string]func(*environment.Flags){
		"--fleet: ":       func(f *environment.Flags) { f.Fleet = "no fleet" },
		"--slots 0: ":     func(f *environment.Flags) { f.Slots = 0 },
		"--replicas 3: ":  func(f *environment.Flags) { f.Replicas = 3 },
		"connect to NATS": func(f *environment.Flags) { f.Nats = "nats://127.0.0.1:1" },
		none:              func(*environment.Flags) {},
	} {
		flags := environment.Flags{
			FleetFlags: environment.FleetFlags{Connection: environment.Connection{Connection: cli.Connection{Fleet: "tf"}}, Storage: cli.Storage{Replicas: 1}},
		}
		flags.Slots, flags.Sandbox = 1, "process"
		change(&flags)
		_, _, err := environment.Open(t.Context(), environment.Options{
			Process: environment.Process{Program: cli.Program{Name: "test", Stderr: os.Stderr, Getenv: os.Getenv}, Logger: slog.New(slog.DiscardHandler)},
			Flags:   &flags, Session: &environment.SessionFlags{}, ID: protocol.NewSessionID(), Temporary: true, Warn: func(string) {},
		})
		require.ErrorContains(t, err, want)
	}
}
