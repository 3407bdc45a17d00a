//go:build linux

package escapetest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// openNeighbour opens another sandbox, with a process, a socket and a file that the one
// under test must not see.
func (b *bench) openNeighbour(t *testing.T, d isolation.Driver) {
	t.Helper()
	n := canary.Neighbour{Marker: "neighbour-" + rand.Text()}
	n.Abstract = n.Marker
	workspace := directory(t)
	install(t, b.program, workspace+"/probe")
	s := b.openAt(t, d, "neighbour", workspace, isolation.Network{})
	ctx, cancel := context.WithCancel(t.Context())
	lines, done := make(chan string, 16), make(chan struct{})
	go func() {
		defer close(done)
		result, err := s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"./probe", "neighbour", n.Marker}, Limits: sandbox.Limits{Grace: time.Millisecond},
			Live: func(_ sandbox.Stream, data []byte) {
				select {
				case lines <- string(data):
				default:
				}
			},
		})
		if err != nil || result.Reason != sandbox.ReasonCancelled {
			t.Errorf("the neighbour ended: %v, %s: %s", err, result.Reason, result.Stderr.Data)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case line := <-lines:
		n.TmpFile = strings.TrimSpace(line)
	case <-done:
		require.FailNow(t, "the neighbour does not run")
	}
	b.host.Neighbour = n
}
