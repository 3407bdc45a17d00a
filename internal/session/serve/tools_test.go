package serve_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// lines passes on what is logged, a line at a time.
type lines struct{ news chan string }

func (w *lines) Write(line []byte) (int, error) {
	w.news <- string(line)
	return len(line), nil
}

func TestTurn_HasTheToolsOfTheFolderAsTheyAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "greet.yaml"), []byte(content), 0o600))
	}
	version := func(text string) string {
		return "name: greet\ndescription: Greet.\ncommand: printf " + text + " >greeting\n"
	}
	folder, err := manifest.Open(dir)
	require.NoError(t, err)
	log := &lines{news: make(chan string, 16)}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})) // as processes log by default
	r := newRig(t, `{"text":"Greeting.","tool_calls":[{"id":"c1","name":"greet","arguments":{}}]},`+answer)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Tools, o.Logger = folder, logger })
	greeting := func() string {
		t.Helper()
		call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "greet"}, 0)
		requireAnswered(t, r.submit(t.Context(), call))
		content, err := os.ReadFile(r.file(call.SessionID, "greeting"))
		if err != nil {
			return "none"
		}
		return string(content)
	}
	require.Equal(t, "none", greeting(), "there is no such tool")
	write(version("one"))
	require.Equal(t, "one", greeting())
	write(version("two"))
	require.Equal(t, "two", greeting())
	write("name: greet\n")
	require.Equal(t, "two", greeting(), "a broken one stays as it was")
	require.Contains(t, <-log.news, "tool manifest is broken")
	require.Contains(t, <-log.news, "stays as it was")
	require.NoError(t, os.Remove(filepath.Join(dir, "greet.yaml")))
	require.Equal(t, "none", greeting())
	require.Contains(t, <-log.news, "tool manifests are in order again")
}

// A fleet that cannot be asked for the tools of MCP servers refuses no turn: it is asked again,
// until the turn is cancelled.
func TestTurn_WaitsForTheToolsOfServers(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+answer)
	var asked, fails atomic.Int64
	var stop atomic.Pointer[context.CancelFunc]
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Servers = []mcp.Server{{MCPServer: protocol.MCPServer{Name: "theirs", Command: "p"}}}
		o.Do = func(_ context.Context, call *protocol.Call) (*protocol.Result, error) {
			if asked.Add(1) <= fails.Load() {
				if cancel := stop.Load(); cancel != nil {
					(*cancel)()
				}
				return nil, calls.ErrUnreachable
			}
			result := wire.NewResult(call, protocol.StatusOK, nil)
			result.Value = wire.MCPListResult{}
			return &result, nil
		}
	})
	fails.Store(2)
	requireAnswered(t, r.turn(wire.TurnRun{Prompt: "p"}))
	require.Equal(t, int64(3), asked.Load())

	fails.Store(1 << 30)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop.Store(&cancel)
	requireFault(t, r.submit(ctx, serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)), protocol.StatusCancelled, protocol.CodeCancelled)
}
