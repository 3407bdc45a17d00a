package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// openedSession is the result of session/new, session/load and session/resume. Only the first one
// has the id.
type openedSession struct {
	SessionID protocol.SessionID    `json:"sessionId,omitempty"` //nolint:tagliatelle // as the protocol has it
	Modes     *acp.SessionModeState `json:"modes,omitempty"`

	announce func()
}

// sessionParams are those of the requests that open a session.
type sessionParams struct {
	ID      *string           `json:"sessionId"` //nolint:tagliatelle // as the protocol has it
	Cwd     *string           `json:"cwd"`
	Servers []json.RawMessage `json:"mcpServers"`            //nolint:tagliatelle // as the protocol has it
	More    []string          `json:"additionalDirectories"` //nolint:tagliatelle // as the protocol has it
}

// check checks the parameters, and returns what they name.
func (p *sessionParams) check(exists bool) (o Opening, wrong *acp.RequestError) {
	if exists {
		if o.ID, wrong = idOfSession(p.ID); wrong != nil {
			return o, wrong
		}
	}
	if p.Cwd == nil {
		return o, invalid("cwd", "is missing")
	}
	if o.Directory = filepath.Clean(*p.Cwd); !filepath.IsAbs(*p.Cwd) {
		return o, invalid("cwd", "%q: must be an absolute path", *p.Cwd)
	}
	if info, err := os.Stat(o.Directory); err != nil {
		return o, invalid("cwd", "%s: %v", o.Directory, errors.Unwrap(err))
	} else if !info.IsDir() {
		return o, invalid("cwd", "%s: is not a directory", o.Directory)
	}
	if len(p.More) > 0 {
		return o, invalid("additionalDirectories", "are not supported: a session works in cwd")
	}
	o.Servers, wrong = serversOf(p.Servers)
	return o, wrong
}

func idOfSession(given *string) (protocol.SessionID, *acp.RequestError) {
	if given == nil {
		return "", invalid("sessionId", "is missing")
	}
	id, err := protocol.ParseSessionID(*given)
	if err != nil {
		return "", invalid("sessionId", "%v", err)
	}
	return id, nil
}

// pair is a variable of a program, or a header.
type pair struct{ Name, Value string }

func pairs(list []pair) map[string]string {
	all := map[string]string{}
	for _, one := range list {
		all[one.Name] = one.Value
	}
	return all
}

// serversOf reads the MCP servers of the client.
func serversOf(list []json.RawMessage) (servers []mcp.Server, wrong *acp.RequestError) {
	for i, encoded := range list {
		field := fmt.Sprintf("mcpServers[%d]", i)
		var given struct {
			Type, Name, Command, URL string
			Args                     []string
			Env, Headers             []pair
		}
		if wrong := badJSON(field, json.Unmarshal(encoded, &given)); wrong != nil {
			return nil, wrong
		}
		if given.Type != "" && given.Type != "stdio" && given.Type != "http" {
			return nil, invalid(field+".type", "%q: must be stdio or http", given.Type)
		}
		server := mcp.Server{MCPServer: protocol.MCPServer{
			Name: given.Name, Command: given.Command, Args: given.Args, Env: pairs(given.Env), URL: given.URL, Headers: pairs(given.Headers),
		}}
		if err := server.Validate(); err != nil {
			return nil, invalid(field, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if slices.ContainsFunc(servers, func(other mcp.Server) bool { return other.Name == server.Name }) {
			return nil, invalid(field+".name", "%q: another server has this name", server.Name)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// openSession opens a session, a new one or one that exists, and sends its conversation if the
// client wants it. A session that is open stays as it is.
func (a *Agent) openSession(ctx context.Context, params json.RawMessage, exists, replay bool) (any, *acp.RequestError) {
	var request sessionParams
	if wrong := decode(params, &request); wrong != nil {
		return nil, wrong
	}
	o, wrong := request.check(exists)
	if wrong != nil {
		return nil, wrong
	}
	s, wrong := a.session(o.ID)
	if wrong != nil {
		if s, wrong = a.begin(ctx, o); wrong != nil {
			return nil, wrong
		}
	}
	if replay {
		events, err := s.History(ctx)
		if err != nil {
			return nil, internalError(err)
		}
		history := &updates{workspace: o.Directory, table: s.Tools, send: s.updates.send, calls: map[protocol.CallID]*running{}}
		history.replay(events)
	}
	opened := openedSession{Modes: a.modes(s), announce: func() {
		if commands := s.Commands(); len(commands) > 0 {
			s.updates.send(acp.SessionUpdate{AvailableCommandsUpdate: &acp.SessionAvailableCommandsUpdate{AvailableCommands: commands}})
		}
	}}
	if !exists {
		opened.SessionID = s.ID()
	}
	return opened, nil
}

// begin opens a session, unless the request is cancelled meanwhile.
func (a *Agent) begin(ctx context.Context, o Opening) (*open, *acp.RequestError) {
	s := &open{mode: a.options.Mode, allowed: map[string]bool{}}
	s.updates = &updates{workspace: o.Directory, calls: map[protocol.CallID]*running{}, send: func(update acp.SessionUpdate) {
		a.conn.notify(acp.ClientMethodSessionUpdate, acp.SessionNotification{SessionId: acp.SessionId(s.ID()), Update: update})
	}}
	s.updates.table = func() *tools.Table { return s.Tools() }
	o.Observe, o.Output = s.updates.observe, s.updates.output
	o.Approve = func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		return a.approve(ctx, s, request)
	}
	a.mu.Lock()
	offers := a.offers
	a.mu.Unlock()
	if form := string(offers.Elicitation.Form); form != "" && form != "null" {
		o.Fill = func(ctx context.Context, tool string, question *protocol.Question) (protocol.Answer, error) {
			return a.fill(ctx, s, tool, question)
		}
	}
	if offers.FS.ReadTextFile {
		o.ReadText = func(ctx context.Context, path string) (string, error) {
			var read acp.ReadTextFileResponse
			err := a.conn.request(ctx, acp.ClientMethodFsReadTextFile, acp.ReadTextFileRequest{SessionId: acp.SessionId(s.ID()), Path: path}, &read)
			return read.Content, err
		}
	}
	var err error
	opening, release := context.WithCancel(context.WithoutCancel(ctx)) // the session outlives the request
	opened := context.AfterFunc(ctx, release)
	s.release = release
	s.Session, err = a.options.Open(opening, o)
	opened()
	if err != nil {
		release()
		return nil, a.openError(o, err)
	}
	a.mu.Lock()
	ending := a.sessions == nil || ctx.Err() != nil
	if !ending {
		a.sessions[s.ID()] = s
	}
	a.mu.Unlock()
	if ending {
		s.end()
		return nil, internalError(errors.New("the request was cancelled"))
	}
	return s, nil
}

// CwdError is the error of [Options].Open about the directory of a session.
type CwdError struct {
	Fault string // begins with the directory
}

func (e *CwdError) Error() string { return "cwd: " + e.Fault }

// openError is why a session cannot be opened.
func (a *Agent) openError(o Opening, err error) *acp.RequestError {
	cwd, isCwd := errors.AsType[*CwdError](err)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return &acp.RequestError{
			Code: codeNotFound, Message: fmt.Sprintf("Resource not found: sessionId: there is no session %s", o.ID), Data: map[string]any{"field": "sessionId"},
		}
	case errors.Is(err, fleet.ErrSessionBusy):
		return invalid("sessionId", "another process runs session %s", o.ID)
	case isCwd:
		return invalid("cwd", "%s", cwd.Fault)
	}
	return internalError(err)
}
