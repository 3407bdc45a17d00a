package mcpserver

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultPatience is the default of [Options].Patience: clients give up on a silent
// request after a minute.
const DefaultPatience = 50 * time.Second

// statusWorking is the status of a call that continues after its answer.
const statusWorking protocol.Status = "working"

// following are the calls that are followed here and may outlast their requests.
type following struct {
	mu    sync.Mutex
	calls map[protocol.CallID]*followed
	left  int // how many of them were left and have ended, about
	all   sync.WaitGroup

	sessions sync.WaitGroup // of the protocol
}

// maxLeft is how many calls that were left and have ended are remembered; with one more, all are
// forgotten. Reading the result of a forgotten one returns its text, without its status.
const maxLeft = 1000

type followed struct {
	pool    protocol.Pool
	session protocol.SessionID
	tool    string
	stop    context.CancelCauseFunc
	left    bool          // its client knows where its result will be
	done    chan struct{} // closed once that is there
}

func (f *following) add(call *protocol.Call, stop context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[protocol.CallID]*followed{}
	}
	f.calls[call.ID] = &followed{pool: call.Pool, session: call.SessionID, tool: call.Tool, stop: stop, done: make(chan struct{})}
}

// leave notes that the client of a call knows where its result will be.
func (f *following) leave(call protocol.CallID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[call]; c != nil {
		c.left = true
	}
}

// end notes that a call has its result.
func (f *following) end(call protocol.CallID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls[call]
	close(c.done)
	if !c.left {
		delete(f.calls, call)
		return
	}
	if f.left++; f.left > maxLeft {
		maps.DeleteFunc(f.calls, func(_ protocol.CallID, c *followed) bool { return c.ended() })
		f.left = 0
	}
}

func (c *followed) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// of is a call of a session that is followed here, or was left and has ended; nil is any other.
func (f *following) of(session protocol.SessionID, call protocol.CallID) *followed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[call]; c != nil && c.session == session {
		return c
	}
	return nil
}

// Close leaves calls that outlast their requests running if the fleet outlasts this server, and
// cancels them otherwise, and ends sessions of the protocol. It is called once no client is served
// any more.
func (s *Server) Close() {
	cause := context.Canceled
	if s.options.Lasting {
		cause = loop.ErrDetached
	}
	s.following.mu.Lock()
	for _, call := range s.following.calls {
		call.stop(cause)
	}
	s.following.mu.Unlock()
	s.following.all.Wait()
	servers := []*mcp.Server{s.server}
	s.offer.mu.Lock()
	if s.offer.reading != nil {
		servers = append(servers, s.offer.reading.server)
	}
	s.offer.mu.Unlock()
	for _, server := range servers {
		for session := range server.Sessions() {
			_ = session.Close() // the client is gone
		}
	}
	s.following.sessions.Wait()
}

// leave returns after which time a call continues without its request, and the answer to its client
// then; less than 0 means never.
func (s *Server) leave(request *mcp.CallToolRequest) (after time.Duration, tell func(context.Context, *protocol.Call) *mcp.CallToolResult) {
	switch {
	case knowsTasks(request.ClientCapabilities()) && s.options.TaskAfter != nil:
		return s.options.TaskAfter(request.Params.Name), becomeTask
	case knowsTasks(request.ClientCapabilities()):
		return DefaultTaskAfter, becomeTask
	case request.Params.GetProgressToken() != nil: // progress shows that the call continues
		return -1, nil
	default:
		return s.patience(), s.goesOn
	}
}

func (s *Server) patience() time.Duration { return cmp.Or(s.options.Patience, DefaultPatience) }

// orLater returns the result of work, which follows the call, or after some time that of tell. By
// then the call is stored, so its client can wait for it.
func (s *Server) orLater(
	ctx context.Context, call *protocol.Call, after time.Duration, tell func(context.Context, *protocol.Call) *mcp.CallToolResult,
	stored <-chan struct{}, work func(context.Context) (*mcp.CallToolResult, error),
) (*mcp.CallToolResult, error) {
	type answered struct {
		result *mcp.CallToolResult
		err    error
	}
	done := make(chan answered, 1)
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) }) // a client that gives up cancels a call that was not left
	s.following.add(call, stop)
	s.following.all.Go(func() {
		defer stop(nil)
		defer s.following.end(call.ID)
		result, err := work(working)
		done <- answered{result, err}
	})
	late := time.NewTimer(after)
	defer late.Stop()
	select {
	case <-late.C:
	case a := <-done:
		return a.result, a.err
	}
	select {
	case <-stored:
	case a := <-done:
		return a.result, a.err
	}
	if !unhook() { // it is being cancelled
		a := <-done
		return a.result, a.err
	}
	return tell(ctx, call), nil
}

// goesOn is the answer to a call that takes longer than a client waits that knows no tasks.
func (s *Server) goesOn(_ context.Context, call *protocol.Call) *mcp.CallToolResult {
	s.following.leave(call.ID)
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: "The call takes long, and continues. " + whereLater(call.ID)}, resultLink(call.ID)},
		StructuredContent: structured{Status: statusWorking, CallID: call.ID, SessionID: call.SessionID},
	}
}

func whereLater(call protocol.CallID) string {
	return "To wait for its result, read the path " + render.Handle(call, "", 0, 0) + " with the tool that reads files."
}

// await waits, as long as the client does, for the result of a call that still runs here, before
// the result is read. A non-nil outcome is the answer instead: that the call still runs, or what
// the call itself would have returned.
func (s *Server) await(ctx context.Context, session protocol.SessionID, read *wire.ResultRead) (*loop.Single, error) {
	call := s.following.of(session, read.CallID)
	if call == nil {
		return nil, nil //nolint:nilnil // the caller checks
	}
	var late <-chan time.Time
	if patience := s.patience(); patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-late:
		return &loop.Single{Status: statusWorking, Text: "The call still runs. " + whereLater(read.CallID)}, nil
	}
	result, err := s.options.Dispatcher.Result(ctx, &protocol.Call{Pool: call.pool, SessionID: session, ID: read.CallID})
	if err != nil || result == nil || read.Part != "" || read.Offset != 0 || read.Column != 0 {
		return nil, err
	}
	tool, _ := s.offer.tools.Load().Lookup(call.tool) // one that there is no more is shown as JSON
	return &loop.Single{Status: result.Status, Text: tool.Text(result), Error: result.Error, Result: result}, nil
}
