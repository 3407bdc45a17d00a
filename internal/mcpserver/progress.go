package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// pace is the least time between two words about a call.
	pace = 200 * time.Millisecond
	// maxSaid is how many bytes of output one word has, the last ones.
	maxSaid = 2000
)

// progress tells a client of a call, if it wants that: live output as it comes, and now and then
// that the call is not forgotten.
type progress struct {
	stop func()

	mu     sync.Mutex
	doing  string
	output []byte
}

func (s *Server) progress(ctx context.Context, request *mcp.CallToolRequest, call *protocol.Call) (*progress, error) {
	token := request.Params.GetProgressToken()
	if token == nil {
		return &progress{stop: func() {}}, nil
	}
	p := &progress{doing: "queued"}
	frames, err := s.options.NC.Subscribe(s.options.Fleet.OutputFilter(call.SessionID), func(message *nats.Msg) {
		f, err := protocol.DecodeFrame(message.Data)
		if err == nil && f.CallID == call.ID && (f.Kind == protocol.FrameStdout || f.Kind == protocol.FrameStderr) {
			p.wrote(f.Data)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listen to output of session %s: %w", call.SessionID, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		p.tell(ctx, func(said string, n int) {
			_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ // a client that has gone hears nothing
				ProgressToken: token, Progress: float64(n), Message: said,
			})
		})
	})
	p.stop = func() {
		_ = frames.Unsubscribe() // fails only when the connection is closed
		cancel()
		telling.Wait()
	}
	return p, nil
}

func (p *progress) wrote(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output = append(p.output, data...)
	if n := len(p.output); n > maxSaid {
		p.output = append(p.output[:0], p.output[n-maxSaid:]...)
	}
}

// state notes how far the call has come.
func (p *progress) state(u *loop.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case u.Waits != "":
		p.doing = "waiting: " + u.Waits
	case u.State == loop.StateRunning:
		p.doing = "running"
	}
}

// tell says what is new, until ctx ends.
func (p *progress) tell(ctx context.Context, say func(said string, n int)) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	begun, last := time.Now(), time.Now()
	for n := 1; ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		said := p.take()
		if said == "" && time.Since(last) < beat {
			continue
		}
		if said == "" {
			p.mu.Lock()
			said = fmt.Sprintf("%s, %s", p.doing, time.Since(begun).Round(time.Second))
			p.mu.Unlock()
		}
		say(said, n)
		n, last = n+1, time.Now()
	}
}

// take returns the output that was not told.
func (p *progress) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := strings.ToValidUTF8(string(p.output), "�")
	p.output = p.output[:0]
	return said
}
