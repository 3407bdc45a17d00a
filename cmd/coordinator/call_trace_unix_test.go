//go:build unix

package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/telemetry/otlptest"
)

// Whoever exports traces is told which one a call was.
func TestCall_SaysWhichTrace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    []string
		traced string
	}{
		"exported": {otlptest.Start(t).Env(), `^[0-9a-f]{32}$`}, "not exported": {nil, `^$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := coordinator(t, "call", "--sandbox", "process", "--data", t.TempDir(), "bash", `{"command": "true"}`)
			cmd.Env = append(append(os.Environ(), "HOME="+t.TempDir()), c.env...)
			out, err := cmd.Output()
			require.NoError(t, err, "%s", out)
			var result callOutput
			require.NoError(t, json.Unmarshal(out, &result))
			require.Regexp(t, c.traced, result.TraceID)
		})
	}
}
