package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// runner makes the runner of a turn; ask returns the tools of servers, and may be nil.
func (s *Server) runner(
	turn wire.TurnRun, ask func(rules mcptools.Rules, own []tools.Tool, servers []mcp.Server) ([]tools.Tool, error), observe func(loop.Event),
) (*loop.Runner, *protocol.Error) {
	name := s.model(turn)
	model, known := s.options.Models[name]
	if !known {
		return nil, protocol.Errorf(codes.InvalidPayload, "model %q is not served; allowed are: %s", name, strings.Join(s.models(), ", "))
	}
	toolsets := turn.Toolsets
	if len(toolsets) == 0 {
		toolsets = []string{"core"}
	}
	set, err := toolset.Named(toolsets...)
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "toolsets: %v", err)
	}
	set = append(set, s.options.Skills...)
	own, servers := s.userTools(set)
	set = append(set, own...)
	var names []string // of all tools that there are, if that is known
	if s.options.Tools == nil && len(servers) == 0 {
		names = toolset.AllTools()
		for i := range set {
			names = append(names, set[i].Name)
		}
	}
	rules, err := s.judge(turn, names)
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "%v", err)
	}
	if ask != nil {
		served, err := ask(mcptools.Rules{Policy: rules, MinLevel: s.options.MinLevel, Pool: s.options.Pool}, set, servers)
		if errors.Is(err, loop.ErrRemoved) || errors.Is(err, loop.ErrUncompleted) {
			return nil, protocol.Errorf(protocol.CodeNotFound, "%v", err)
		}
		if errors.Is(err, judge.ErrRefused) {
			return nil, refusedTurn(err)
		}
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeFleetUnavailable, "the tools of MCP servers cannot be listed: %v", err)
		}
		set = append(set, served...)
	}
	table, err := tools.NewTable(set...)
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "toolsets: %v", err)
	}
	table = table.InPool(cmp.Or(s.options.Pool, protocol.DefaultPool))
	guard, err := wire.ParseGuard(string(turn.Guard))
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "%v", err)
	}
	if err := (loop.Input{Attachments: attachments(turn), AnswerSchema: turn.AnswerSchema}).Check(model); err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "%v", err)
	}
	var price *loop.Price
	var compaction *loop.Compaction
	if s.options.About != nil {
		price, compaction = s.options.About(name)
	}
	runner, err := loop.New(model, s.options.Dispatcher, s.options.Journal, table, &loop.Options{
		ModelName: name, MaxSteps: lesser(turn.MaxSteps, s.options.MaxSteps), MaxTokens: lesser(turn.MaxTokens, s.options.MaxTokens), Budget: turn.Budget,
		PromoteAfter: cmp.Or(turn.PromoteAfter.Duration(), s.options.PromoteAfter), Price: price, Compaction: compaction, Agents: s.options.Agents,
		System: turn.System, Project: turn.Project, Author: turn.Author, Sandbox: s.options.Sandbox,
		Settings: loop.Settings{Temperature: turn.Temperature, Effort: turn.Reasoning, MaxOutput: turn.MaxOutput}.Or(s.options.Settings),
		Guard:    guard, Policy: rules, MinLevel: s.options.MinLevel, Approve: s.options.Approve, GiverValid: s.options.GiverValid,
		Hooks: s.options.Hooks, Observe: observe, Tracer: s.options.Tracer, Logger: s.options.Logger,
	})
	if err != nil {
		return nil, protocol.Errorf(codes.InvalidPayload, "%v", err)
	}
	return runner, nil
}

// attachments are those of a turn's input.
func attachments(turn wire.TurnRun) []loop.Attachment {
	list := make([]loop.Attachment, len(turn.Attachments))
	for i, a := range turn.Attachments {
		list[i] = loop.Attachment{Name: a.Name, Image: loop.Image{Data: a.Data}}
	}
	return list
}

// model is the name of the model that a turn asks for.
func (s *Server) model(turn wire.TurnRun) string { return cmp.Or(turn.Model, s.options.Default) }

// modelOf is the name of the model of a turn in a session: if it names none, that of the session,
// as far as this server has it.
func (s *Server) modelOf(ctx context.Context, id protocol.SessionID, turn wire.TurnRun) (string, *protocol.Error) {
	if turn.Model != "" || turn.Compact || len(s.options.Models) == 1 {
		return s.model(turn), nil
	}
	history, err := s.options.Journal.Load(ctx, id)
	switch {
	case errors.Is(err, loop.ErrJournalInvalid), errors.Is(err, loop.ErrRemoved), errors.Is(err, loop.ErrUncompleted), errors.Is(err, judge.ErrRefused): // the turn ends with it
	case err != nil:
		return "", protocol.Errorf(protocol.CodeFleetUnavailable, "the session cannot be read: %v", err)
	}
	if at := slices.IndexFunc(history.Events, func(e loop.Event) bool { return e.Type == loop.EventSessionStarted }); at >= 0 &&
		s.options.Models[history.Events[at].Model] != nil {
		return history.Events[at].Model, nil
	}
	return s.model(turn), nil
}

// judge makes the judge of a turn, nil when there is nothing to judge: the server's policies and
// the turn's all have to agree. A policy of the turn must name no tool that is not among names; nil
// are any.
func (s *Server) judge(turn wire.TurnRun, names []string) (loop.Policy, error) {
	all := slices.Clone(s.options.Policies)
	for i, encoded := range turn.Policies {
		p, err := policy.Parse(fmt.Sprintf("policies[%d]", i), encoded)
		if err == nil && names != nil {
			err = p.UnknownTools(names)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // everything is allowed
	}
	return policy.New(all...)
}

// userTools reads the folder of the user's own tools, and names all servers. What is wrong there is
// logged once, and ends no turn.
func (s *Server) userTools(builtIn []tools.Tool) ([]tools.Tool, []mcp.Server) {
	servers := slices.Clone(s.options.Servers)
	if s.options.Tools == nil {
		return nil, servers
	}
	names := mcptools.Prefixes(servers)
	for i := range builtIn {
		names = append(names, builtIn[i].Name)
	}
	loaded := s.options.Tools.Load(names...)
	if loaded.News {
		for _, problem := range loaded.Problems {
			s.options.Logger.Warn("tool manifest is broken", slog.String("problem", problem.Error()))
		}
		if len(loaded.Problems) == 0 {
			s.options.Logger.Warn("tool manifests are in order again")
		}
	}
	return loaded.Tools, append(servers, loaded.Servers...)
}

// served are the tools of servers, which live in the session's sandbox. What is wrong with one is
// logged.
func (s *Server) served(ctx context.Context, c *protocol.Call, rules mcptools.Rules, own []tools.Tool, servers []mcp.Server) ([]tools.Tool, error) {
	if len(servers) > 0 { // they would be started in the sandbox of a session that is being removed, or was
		history, err := s.options.Journal.Load(ctx, c.SessionID)
		if err == nil && history.Removed.Outlived(c.MadeAfter, c.IssuedAt) {
			err = loop.ErrRemoved
		}
		if err == nil {
			err = mayAdd(ctx, c.SessionID, history)
		}
		if err != nil {
			return nil, err
		}
	}
	made, problems, err := mcptools.Open(ctx, s.options.Do, c.SessionID, rules, servers, own)
	for _, problem := range problems {
		s.options.Logger.WarnContext(ctx, "MCP server is not whole", slog.Any("problem", problem))
	}
	return made, err
}

// lesser is the smaller of two bounds; 0 means no bound.
func lesser[T int | int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// events sends the events of a turn as live frames.
type events struct {
	server *Server
	run    *lane.Run

	mu  sync.Mutex
	seq uint64
}

func (e *events) send(event loop.Event) {
	if event.Type == loop.EventQuestionAsked && e.server.options.TakeOn != nil {
		e.server.options.TakeOn(event)
	}
	if event.Image != nil { // it may be more than a message holds, and the journal has it
		event.Image = &loop.Image{MediaType: event.Image.MediaType}
	}
	event.Attachments = slices.Clone(event.Attachments)
	for i := range event.Attachments {
		event.Attachments[i].Data = nil
	}
	data, err := json.Marshal(event)
	if err != nil {
		panic(fmt.Sprintf("encode event: %v", err)) // strings and numbers always encode
	}
	e.frame(wire.FrameEvent, data)
}

// started reports that the turn runs.
func (e *events) started() { e.frame(wire.FrameStarted, nil) }

func (e *events) frame(kind wire.FrameKind, data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	body, err := wire.Encode(&wire.Frame{
		CallID: e.run.Call.ID, Seq: e.seq, Kind: kind, WorkerID: e.server.options.ID, Attempt: e.run.Attempt, Data: data,
	})
	if err != nil {
		panic(fmt.Sprintf("encode frame: %v", err))
	}
	// Lossy by contract; the journal has what counts.
	_ = e.server.nc.Publish(wire.LiveSubject(e.server.options.Fleet, e.run.Call.SessionID, e.run.Call.ID), body)
}

// refused is a turn that was accepted and never began: no coordinator could run it as it was asked
// for, or its call ended while it waited.
type refused struct {
	id        protocol.CallID // of the input
	madeAfter uint64          // see [loop.Input]
	madeAt    time.Time
	tenant    protocol.Tenant
	by        string // the owner of the session, if the turn is its first
	input     string
	model     string // that the turn asked for
	outcome   loop.Outcome
	err       *protocol.Error
}

// maxRefusedInput bounds the input of a refused turn that the journal does not take whole.
const maxRefusedInput = 4096

// record journals the turn as begun and ended, and reports whether it did: it does nothing when the
// session has a turn of that input, or an open one, or was removed since, or if the principal of
// ctx may not add a turn. The caller holds the session.
func (r refused) record(ctx context.Context, journal loop.Journal, session protocol.SessionID) (bool, error) {
	history, err := journal.Load(ctx, session)
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	turns, open, err := history.Turns()
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	if open || mayAdd(ctx, session, history) != nil || history.Removed.Outlived(r.madeAfter, r.madeAt) ||
		slices.ContainsFunc(history.Events, func(e loop.Event) bool { return e.Type == loop.EventTurnStarted && e.CallID == r.id }) {
		return false, nil //nolint:nilerr // it is not recorded
	}
	events := func() []loop.Event { return r.events(session, turns+1, len(history.Events) == 0) }
	_, err = journal.Append(ctx, session, history.Last, events()...)
	if errors.Is(err, loop.ErrEventTooLarge) {
		r.input = prose.Short(r.input, maxRefusedInput)
		_, err = journal.Append(ctx, session, history.Last, events()...)
	}
	return err == nil, err
}

func (r refused) events(session protocol.SessionID, turn int, fresh bool) []loop.Event {
	at := loop.Event{SessionID: session, Time: time.Now().UTC()}
	var events []loop.Event
	if fresh {
		started := at
		started.Type, started.Model = loop.EventSessionStarted, r.model
		started.Tenant, started.By = r.tenant, r.by
		events = append(events, started)
	}
	at.Turn = turn
	started, ended := at, at
	started.Type, started.Input, started.CallID = loop.EventTurnStarted, prose.Valid(r.input), r.id
	ended.Type, ended.Status, ended.Usage, ended.Error = loop.EventTurnEnded, string(r.outcome), &protocol.Usage{}, r.err
	return append(events, started, ended)
}
