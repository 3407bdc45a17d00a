// Package acp makes sessions available to editors, as an agent of the Agent Client Protocol,
// version 1 (https://agentclientprotocol.com):
//
//	editor ──prompt──► connection ──► Agent ──inputOf──► Session.Run
//	editor ◄─session/update─────── updates.observe ◄──── its events
//	editor ◄─session/request_permission─────── approve ◄ its policy
//
// It only translates. The caller of [New] opens the sessions, and defines their modes and commands.
package acp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// Options are what an [Agent] is made of. All fields but Modes are required.
type Options struct {
	Version string
	// Open opens a session for the client, which is used until its Close and until ctx ends.
	Open func(ctx context.Context, o Opening) (Session, error)
	// List returns the sessions that can be loaded. The error of Open and List about a session
	// that does not exist wraps [fleet.ErrNotFound].
	List func(ctx context.Context) ([]report.Session, error)
	// Delete removes a session that no client has open. One that does not exist is fine.
	Delete func(ctx context.Context, id protocol.SessionID) error
	// Modes are the modes of sessions, and Mode is that of a session that is opened.
	Modes []acp.SessionMode
	Mode  string
	// User is who answers at the client.
	User string
}

// Opening says which session is opened, and how it reports to the client.
type Opening struct {
	// ID is a session that exists; "" is a new one.
	ID protocol.SessionID
	// Directory is the absolute path of the workspace.
	Directory string
	// Servers are MCP servers of the client.
	Servers []mcp.Server
	// Observe gets the events of the session, Output what its running calls write, and Approve
	// asks the person at the client about a call.
	Observe func(loop.Event)
	Output  func(protocol.CallID, fleet.Output)
	Approve func(context.Context, loop.ApprovalRequest) (protocol.Approval, error)
	// Fill asks the person at the client what a running call or the model wants to know, and
	// ReadText reads a file of the workspace as the client has it, with changes that are not saved;
	// nil if the client does not offer that.
	Fill     func(ctx context.Context, tool string, question *protocol.Question) (protocol.Answer, error)
	ReadText func(ctx context.Context, path string) (string, error)
}

// Session is an open session. Of Run, SetMode and Command one is called at a time.
type Session interface {
	ID() protocol.SessionID
	Tools() *tools.Table
	// Check reports why the model cannot get an input.
	Check(input loop.Input) error
	Run(ctx context.Context, input loop.Input) (loop.TurnResult, error)
	History(ctx context.Context) ([]loop.Event, error)
	// SetMode selects one of [Options].Modes for the turns that follow.
	SetMode(mode string) error
	// RemembersApproval reports whether a person may approve all calls of a tool at once.
	RemembersApproval() bool
	Commands() []acp.AvailableCommand
	// Command runs a command. It returns an answer, or the text of the turn that it begins.
	Command(ctx context.Context, name, argument string) (answer, prompt string)
	Close()
}

// Agent serves one client.
type Agent struct {
	options Options
	conn    *connection
	running sync.WaitGroup // requests

	mu       sync.Mutex
	offers   offers
	inflight map[string]context.CancelFunc // requests that can be cancelled, by id
	sessions map[protocol.SessionID]*open
}

// offers are what the client can be asked for.
type offers struct {
	FS struct {
		ReadTextFile bool `json:"readTextFile"` //nolint:tagliatelle // as the protocol has it
	} `json:"fs"`
	Elicitation struct {
		Form json.RawMessage `json:"form"`
	} `json:"elicitation"`
}

// open is a session that the client has opened.
type open struct {
	Session

	updates *updates
	release context.CancelFunc
	mu      sync.Mutex
	mode    string
	cancel  context.CancelFunc // of the turn that runs; nil without one
	ended   chan struct{}      // closed when that turn has ended
	closed  bool               // no turn begins any more
	allowed map[string]bool    // tools whose calls the person approved for the whole session
}

// New makes an agent.
func New(options Options) *Agent {
	return &Agent{options: options, inflight: map[string]context.CancelFunc{}, sessions: map[protocol.SessionID]*open{}}
}

// Serve serves the client that writes to r and reads from w, until it closes the connection or ctx
// ends. Then it stops the turns that run, and closes the sessions.
func (a *Agent) Serve(ctx context.Context, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.conn = newConnection(w)
	received := make(chan error, 1)
	go func() { received <- a.conn.receive(r, func(m message) { a.handle(ctx, m) }) }()
	var err error
	select {
	case err = <-received:
	case <-ctx.Done(): // a read that waits for the client is left alone
	}
	cancel()
	a.mu.Lock() // no request begins any more
	all := a.sessions
	a.sessions = nil
	a.mu.Unlock()
	a.running.Wait()
	var closing sync.WaitGroup
	for _, s := range all {
		closing.Go(s.end)
	}
	closing.Wait()
	return err
}

// handle accepts a request or a notification, in the order of the client. What takes time runs
// concurrently.
func (a *Agent) handle(ctx context.Context, m message) {
	switch m.Method {
	case acp.AgentMethodSessionCancel:
		a.cancelTurn(m.Params)
	case "$/cancel_request":
		a.cancelRequest(m.Params)
	case acp.AgentMethodSessionPrompt: // a cancellation that follows must find the turn
		run, wrong := a.prompt(ctx, m.Params)
		a.answer(ctx, m.ID, func(ctx context.Context) (any, *acp.RequestError) {
			if wrong != nil {
				return nil, wrong
			}
			return run(ctx)
		})
	default:
		if m.ID == nil { // a notification that is not known
			return
		}
		method := a.method(m.Method)
		a.answer(ctx, m.ID, func(ctx context.Context) (any, *acp.RequestError) {
			if method == nil {
				return nil, &acp.RequestError{Code: codeNoMethod, Message: "Method not found: " + m.Method}
			}
			return method(ctx, m.Params)
		})
	}
}

// method is what answers a request; nil if the method is not known.
func (a *Agent) method(name string) func(context.Context, json.RawMessage) (any, *acp.RequestError) {
	switch name {
	case acp.AgentMethodInitialize:
		return a.initialize
	case acp.AgentMethodSessionNew:
		return func(ctx context.Context, params json.RawMessage) (any, *acp.RequestError) {
			return a.openSession(ctx, params, false, false)
		}
	case acp.AgentMethodSessionLoad:
		return func(ctx context.Context, params json.RawMessage) (any, *acp.RequestError) {
			return a.openSession(ctx, params, true, true)
		}
	case acp.AgentMethodSessionResume:
		return func(ctx context.Context, params json.RawMessage) (any, *acp.RequestError) {
			return a.openSession(ctx, params, true, false)
		}
	case acp.AgentMethodSessionList:
		return a.list
	case acp.AgentMethodSessionSetMode:
		return a.setMode
	case acp.AgentMethodSessionClose:
		return a.closeSession
	case methodDelete:
		return a.deleteSession
	}
	return nil
}

// answer runs a request concurrently, and sends its result. After it, what the result makes known
// to the client is sent.
func (a *Agent) answer(ctx context.Context, id json.RawMessage, run func(context.Context) (any, *acp.RequestError)) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	ending := a.sessions == nil
	if !ending {
		a.inflight[string(id)] = cancel
		a.running.Add(1)
	}
	a.mu.Unlock()
	if ending {
		cancel()
		return
	}
	go func() {
		defer a.running.Done()
		result, wrong := run(ctx)
		a.mu.Lock()
		delete(a.inflight, string(id))
		a.mu.Unlock()
		cancel()
		switch {
		case id == nil:
		case wrong != nil:
			a.conn.fail(id, wrong)
		default:
			a.conn.reply(id, result)
			if opened, is := result.(openedSession); is {
				opened.announce()
			}
		}
	}()
}

func (a *Agent) cancelRequest(params json.RawMessage) {
	var request struct {
		ID json.RawMessage `json:"requestId"` //nolint:tagliatelle // as the protocol has it
	}
	if decode(params, &request) != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.inflight[string(request.ID)]; cancel != nil {
		cancel()
	}
}

// Methods of the stable protocol that the library does not have yet.
const (
	methodDelete = "session/delete"
	methodElicit = "elicitation/create"
)

func (a *Agent) initialize(_ context.Context, params json.RawMessage) (any, *acp.RequestError) {
	var request struct {
		Version *int   `json:"protocolVersion"`    //nolint:tagliatelle // as the protocol has it
		Offers  offers `json:"clientCapabilities"` //nolint:tagliatelle // as the protocol has it
	}
	if wrong := decode(params, &request); wrong != nil {
		return nil, wrong
	}
	if request.Version == nil {
		return nil, invalid("protocolVersion", "is missing")
	}
	a.mu.Lock()
	a.offers = request.Offers
	a.mu.Unlock()
	offered := struct{}{}
	return map[string]any{
		"protocolVersion": acp.ProtocolVersionNumber, "authMethods": []acp.AuthMethod{},
		"agentInfo": acp.Implementation{Name: "toolfleet", Title: new("toolfleet"), Version: a.options.Version},
		"agentCapabilities": map[string]any{
			"loadSession":         true,
			"promptCapabilities":  acp.PromptCapabilities{Image: true, EmbeddedContext: true},
			"mcpCapabilities":     acp.McpCapabilities{Http: true},
			"sessionCapabilities": map[string]any{"close": offered, "delete": offered, "list": offered, "resume": offered},
		},
	}, nil
}

// session is a session that is open.
func (a *Agent) session(id protocol.SessionID) (*open, *acp.RequestError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sessions[id]
	if s == nil {
		return nil, invalid("sessionId", "session %s is not open: session/new, session/load or session/resume opens one", id)
	}
	return s, nil
}

// modes are the modes of a session, and the one that it has.
func (a *Agent) modes(s *open) *acp.SessionModeState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &acp.SessionModeState{AvailableModes: a.options.Modes, CurrentModeId: acp.SessionModeId(s.mode)}
}

func (a *Agent) setMode(_ context.Context, params json.RawMessage) (any, *acp.RequestError) {
	var request struct {
		ID   *string `json:"sessionId"` //nolint:tagliatelle // as the protocol has it
		Mode string  `json:"modeId"`    //nolint:tagliatelle // as the protocol has it
	}
	wrong := decode(params, &request)
	if wrong != nil {
		return nil, wrong
	}
	s, wrong := a.named(request.ID)
	if wrong != nil {
		return nil, wrong
	}
	var names []string
	for _, mode := range a.options.Modes {
		names = append(names, string(mode.Id))
	}
	if !slices.Contains(names, request.Mode) {
		return nil, invalid("modeId", "%q: must be one of %s", request.Mode, strings.Join(names, ", "))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = request.Mode
	return acp.SetSessionModeResponse{}, nil
}

// named is the open session that a request names.
func (a *Agent) named(given *string) (*open, *acp.RequestError) {
	id, wrong := idOfSession(given)
	if wrong != nil {
		return nil, wrong
	}
	return a.session(id)
}

func (a *Agent) closeSession(_ context.Context, params json.RawMessage) (any, *acp.RequestError) {
	var request sessionParams
	wrong := decode(params, &request)
	if wrong != nil {
		return nil, wrong
	}
	s, wrong := a.named(request.ID)
	if wrong != nil {
		return nil, wrong
	}
	a.closeOpen(s)
	return acp.CloseSessionResponse{}, nil
}

// closeOpen closes a session, after its turn.
func (a *Agent) closeOpen(s *open) {
	a.mu.Lock()
	own := a.sessions[s.ID()] == s // else another request closes it
	if own {
		delete(a.sessions, s.ID())
	}
	a.mu.Unlock()
	if own {
		if ended := s.stop(true); ended != nil {
			<-ended
		}
		s.end()
	}
}

// deleteSession removes a session with all that is stored of it; one that is open is closed before.
func (a *Agent) deleteSession(ctx context.Context, params json.RawMessage) (any, *acp.RequestError) {
	var request sessionParams
	wrong := decode(params, &request)
	if wrong != nil {
		return nil, wrong
	}
	id, wrong := idOfSession(request.ID)
	if wrong != nil {
		return nil, wrong
	}
	if s, closed := a.session(id); closed == nil {
		a.closeOpen(s)
	}
	switch err := a.options.Delete(ctx, id); {
	case errors.Is(err, fleet.ErrSessionBusy):
		return nil, invalid("sessionId", "another process runs session %s", id)
	case err != nil && !errors.Is(err, fleet.ErrNotFound):
		return nil, internalError(err)
	}
	return struct{}{}, nil
}

// end closes the session.
func (s *open) end() {
	s.Close()
	s.release()
}

// list lists the sessions that can be loaded, those of a directory if the request names one.
func (a *Agent) list(ctx context.Context, params json.RawMessage) (any, *acp.RequestError) {
	var request struct {
		Cwd    *string `json:"cwd"`
		Cursor *string `json:"cursor"`
	}
	if wrong := decode(params, &request); wrong != nil {
		return nil, wrong
	}
	if request.Cursor != nil {
		return nil, invalid("cursor", "%q: is unknown; the list has one page", *request.Cursor)
	}
	all, err := a.options.List(ctx)
	if err != nil {
		return nil, internalError(err)
	}
	response := acp.ListSessionsResponse{Sessions: []acp.SessionInfo{}}
	for i := range all {
		one := &all[i]
		if one.Parent != "" || one.Turns == 0 || one.Workspace == "" || request.Cwd != nil && filepath.Clean(*request.Cwd) != one.Workspace {
			continue
		}
		title, _, _ := strings.Cut(strings.TrimSpace(one.Prompt), "\n")
		response.Sessions = append(response.Sessions, acp.SessionInfo{
			SessionId: acp.SessionId(one.SessionID), Cwd: one.Workspace, Title: &title, UpdatedAt: new(one.UpdatedAt.UTC().Format("2006-01-02T15:04:05.000Z")),
		})
	}
	return response, nil
}
