// Package mcpserver is the fleet as a server of the Model Context Protocol
// (https://modelcontextprotocol.io/specification): its tools are tools of the protocol, and a
// request to call one becomes a call of the fleet.
//
//	client ──tools/call──► [Server] ──plan, policy──► dispatcher ──► lanes, workers
//	       ◄──progress────          ◄──live output───
//	       ◄──result──────          ◄──result────────
//
// The official SDK implements the protocol. This package adds sandboxes of clients, plans of tools,
// the order of calls, and questions to a person.
package mcpserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Dispatcher carries calls to workers; package calls has one.
type Dispatcher interface {
	loop.Dispatcher
	ports.Fleet
	CallWith(ctx context.Context, call *protocol.Call, o calls.CallOptions) (*protocol.Result, error)
	Result(ctx context.Context, call *protocol.Call) (*protocol.Result, error)
	Cancel(ctx context.Context, call *protocol.Call) error
}

// Options of a [Server]; nil and zero are the documented default.
type Options struct {
	// Version is the version of this program, for clients.
	Version string
	Fleet
	// Tools are what clients may call, until [Server.SetTools] says otherwise. Required.
	Tools *tools.Table
	Rules
	Tasks
	// Session is the sandbox of every client; "" gives each client its own, see [Server.session].
	Session protocol.SessionID
	// Instructions describe the tools to models; "" for none.
	Instructions string
	// ToolsChanged is called when an MCP server whose tool was called in a session has other tools
	// than it had before. It must not block; nil ignores that.
	ToolsChanged func(session protocol.SessionID)
	// Logger gets troubles at warn; nil discards them.
	Logger *slog.Logger
	// Configure changes the options of the SDK's servers, and Extend each server, to add more than
	// tools; call answers the server's tools. nil adds nothing.
	Configure func(*mcp.ServerOptions)
	Extend    func(server *mcp.Server, call mcp.ToolHandler)
}

// Fleet is where a [Server] sends the calls.
type Fleet struct {
	// Name is the name of the fleet, and At the connection by which live output and questions of a
	// pool's calls come. Required.
	Name protocol.Fleet
	At   func(protocol.Pool) *nats.Conn
	// Dispatcher is required.
	Dispatcher Dispatcher
	// Signer signs the answers of clients to questions of their calls; nil leaves them unsigned.
	Signer *signing.Signer
	// Journal gets the calls, as turns of their sessions; nil journals none.
	Journal loop.Journal
	// Ended is called when a client over HTTP ends its session of the protocol, whose id is that of
	// the sandbox that only it used: it removes the session. nil leaves it.
	Ended func(ctx context.Context, session protocol.SessionID) error
	// Pool has the sandboxes of clients; "" means [protocol.DefaultPool].
	Pool protocol.Pool
	// Lasting says that the fleet outlasts this server: see [Server.Close].
	Lasting bool
}

// Rules say which calls run, and who answers the questions about them.
type Rules struct {
	// Guard, Hooks, Policy and MinLevel are as in [loop.SingleOptions].
	Guard    protocol.Guard
	Hooks    []loop.Hook
	Policy   loop.Policy
	MinLevel string
	// Approve asks a person whether a call may be made; nil refuses such calls.
	Approve func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
	// ClientApproves lets the person at the client approve the client's own calls, if the client
	// can ask one. Whether a person answers, or the client itself, cannot be known here.
	ClientApproves bool
	// Ask passes the question of a running call to another program if the client cannot ask; nil
	// declines it.
	Ask func(call *protocol.Call, q *protocol.Question)
}

// Tasks say when a call that takes long continues without its client.
type Tasks struct {
	// Key signs what clients carry and bring back: the ids of tasks, and questions. Servers with
	// one key know those of each other. nil makes one, which ends with this server.
	Key []byte
	// TaskAfter is the time after which a call of a tool continues as a task, for clients that know
	// the extension; less than 0 means never. nil is [DefaultTaskAfter] for each.
	TaskAfter func(tool string) time.Duration
	// Patience is how long a client that knows no tasks and wants no progress waits for a call.
	// Then the call continues, and its answer says where its result will be. 0 means
	// [DefaultPatience], less than 0 forever.
	Patience time.Duration
}

// Server answers clients. It is safe for concurrent use.
type Server struct {
	options Options
	server  *mcp.Server
	order   *order
	ledger  *loop.Ledger
	answers answers

	offer     offer
	following *followedCalls
}

// beat is the time between two words about a call that says nothing itself: clients give up on
// silent requests.
const beat = 5 * time.Second

// New returns a server.
func New(o Options) *Server {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Key == nil {
		o.Key = []byte(rand.Text())
	}
	s := &Server{options: o, order: &order{turns: map[float64]*turn{}}, ledger: loop.NewLedger(o.Journal), following: &followedCalls{}}
	sdk := &mcp.ServerOptions{
		// What a sandbox has is no other client's, and no cache's on the way.
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
		Instructions: o.Instructions, Logger: o.Logger, Capabilities: capabilities(),
		GetSessionID: func() string { return string(protocol.NewSessionID()) },
	}
	if o.Configure != nil {
		o.Configure(sdk)
	}
	s.server = mcp.NewServer(&mcp.Implementation{Name: "toolfleet", Title: "toolfleet", Version: o.Version}, sdk)
	s.server.AddReceivingMiddleware(s.acting, s.measureSessions)
	s.SetTools(o.Tools)
	s.addResources()
	s.addTasks()
	if o.Extend != nil {
		o.Extend(s.server, s.call)
	}
	return s
}

// Run serves one client on a transport until it goes, or ctx ends. What it asks for one after
// another without waiting is sent to the fleet in that order.
func (s *Server) Run(ctx context.Context, t mcp.Transport) error {
	return s.server.Run(ctx, &orderedTransport{Transport: t, order: s.order})
}
