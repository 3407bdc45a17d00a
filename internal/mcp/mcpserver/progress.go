//nolint:staticcheck // older clients still use deprecated logging
package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

const (
	// updateInterval is the least time between two updates about a call.
	updateInterval = 200 * time.Millisecond
	// maxUpdate is how many bytes of output an update has, the last ones.
	maxUpdate = 2000
	// maxFrames is how many pieces of live output wait to be sent; more are dropped.
	maxFrames = 1024
)

// progress notifies the client of a call, on its request: of live output as it comes, and regularly
// that the call still runs.
type progress struct {
	stop func() // sends what has arrived, and ends

	frames chan *wire.Frame // nil without a client that listens
	output []byte           // not sent yet

	mu    sync.Mutex
	doing string
}

func (s *Server) progress(ctx context.Context, request *mcp.CallToolRequest) *progress {
	token, logs := request.Params.GetProgressToken(), s.listeners.wantsLogs(request)
	if token == nil && !logs {
		return &progress{stop: func() {}}
	}
	p := &progress{doing: "queued", frames: make(chan *wire.Frame, maxFrames)}
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		n := 0
		p.sendUpdates(ended, func(said string, output bool) {
			n++
			if token != nil {
				_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // the client may be gone
					ProgressToken: token, Progress: float64(n), Message: said,
				})
			}
			if logs && output {
				log(ctx, request, said)
			}
		})
	})
	p.stop = func() {
		close(ended)
		telling.Wait()
	}
	return p
}

// frame takes live output of the call; a nil channel takes none.
func (p *progress) frame(f *wire.Frame) {
	if f.Kind != wire.FrameStdout && f.Kind != wire.FrameStderr {
		return
	}
	select {
	case p.frames <- f:
	default:
	}
}

// add adds live output to what is sent next.
func (p *progress) add(f *wire.Frame) {
	p.output = append(p.output, f.Data...)
	if n := len(p.output); n > maxUpdate {
		p.output = append(p.output[:0], p.output[n-maxUpdate:]...)
	}
}

// state notes how far the call has come.
func (p *progress) state(u *loop.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case u.Waits != "":
		p.doing = "waiting: " + u.Waits
	case u.Lost != "":
		p.doing = u.Lost
	case u.State == loop.StateRunning:
		p.doing = "running"
	}
}

// sendUpdates sends new output until the call has ended. Output arrives before the result.
func (p *progress) sendUpdates(ended <-chan struct{}, say func(said string, output bool)) {
	ticker := time.NewTicker(updateInterval)
	defer ticker.Stop()
	begun, last := time.Now(), time.Now()
	flush := func() {
		if len(p.output) > 0 {
			said := prose.Valid(string(p.output))
			p.output, last = p.output[:0], time.Now()
			say(said, true)
		}
	}
	for {
		select {
		case f := <-p.frames:
			p.add(f)
			continue
		case <-ticker.C:
		case <-ended:
			for len(p.frames) > 0 {
				p.add(<-p.frames)
			}
			flush()
			return
		}
		flush()
		if time.Since(last) < beat {
			continue
		}
		p.mu.Lock()
		said := fmt.Sprintf("%s, %s", p.doing, time.Since(begun).Round(time.Second))
		p.mu.Unlock()
		last = time.Now()
		say(said, false)
	}
}

// listeners are the sessions of the protocol that asked for log messages: they get live output as
// such. The level itself the SDK keeps.
type listeners struct {
	mu       sync.Mutex
	sessions map[*mcp.ServerSession]bool
}

// middleware notes who sets a level.
func (l *listeners) middleware(server *mcp.Server) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
			if session, ok := request.GetSession().(*mcp.ServerSession); ok && method == "logging/setLevel" {
				l.add(server, session)
			}
			return next(ctx, method, request)
		}
	}
}

// measureSessions records how long sessions of the protocol last, from the greeting to the end of
// the connection. Versions since 2026-07-28 have no sessions.
func (s *Server) measureSessions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, request)
		greeting, greets := result.(*mcp.InitializeResult)
		session, of := request.GetSession().(*mcp.ServerSession)
		if err == nil && greets && of {
			transport := genaiconv.TransportPipe
			if session.ID() != "" {
				transport = genaiconv.TransportTCP
			}
			ended := telemetry.StartMCPSession(ctx, trace.SpanKindServer, greeting.ProtocolVersion, transport)
			s.following.sessions.Go(func() { ended(session.Wait()) })
		}
		return result, err
	}
}

// add notes a session, and forgets ended ones.
func (l *listeners) add(server *mcp.Server, session *mcp.ServerSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := map[*mcp.ServerSession]bool{session: true}
	for s := range server.Sessions() {
		if l.sessions[s] {
			live[s] = true
		}
	}
	l.sessions = live
}

// wantsLogs reports whether the client of a call may want log messages.
func (l *listeners) wantsLogs(request *mcp.CallToolRequest) bool {
	if _, given := request.Params.Meta[mcp.MetaKeyLogLevel]; given {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[request.Session]
}

// log sends output as log messages, one a line.
func log(ctx context.Context, request *mcp.CallToolRequest, output string) {
	for line := range strings.Lines(output) {
		_ = request.Session.Log(ctx, &mcp.LoggingMessageParams{ // the client may be gone
			Level: "info", Logger: request.Params.Name, Data: strings.TrimRight(line, "\r\n"),
		})
	}
}

func capabilities() *mcp.ServerCapabilities {
	c := &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}}
	c.AddExtension(tasksExtension, nil)
	return c
}
