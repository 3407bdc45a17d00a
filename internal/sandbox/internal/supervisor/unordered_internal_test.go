//go:build unix

package supervisor

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestApart_WhatWasWrittenIsTakenHoweverLate, whether the output has ended by then or something
// holds it open.
func TestApart_WhatWasWrittenIsTakenHoweverLate(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]bool{"ended": true, "held open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, stdout, stderr, err := openUnordered()
			require.NoError(t, err)
			defer p.close()
			defer stdout.Close()
			defer stderr.Close()
			said := strings.Repeat("said ", 2000)
			_, err = stdout.WriteString(said)
			require.NoError(t, err)
			_, err = stderr.WriteString("too")
			require.NoError(t, err)
			if ended {
				require.NoError(t, stdout.Close())
				require.NoError(t, stderr.Close())
			}
			p.endAt(time.Now().Add(-time.Second))
			out := newOutput(0, nil)
			p.copy(func(stream sandbox.Stream, data []byte) { _, _ = out.Writer(stream).Write(data) })
			require.Equal(t, said, string(out.Captured(sandbox.Stdout).Data))
			require.Equal(t, "too", string(out.Captured(sandbox.Stderr).Data))
		})
	}
}
