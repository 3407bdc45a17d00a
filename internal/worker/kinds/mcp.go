package kinds

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/webfetch"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// guestWorkspace is where sandboxes with a root of their own have the workspace.
const guestWorkspace = "/workspace"

// mcpList returns the tools of a server that lives in the sandbox.
func mcpList(ctx context.Context, a *Attempt, p wire.MCPList) (protocol.Value, error) {
	spec, err := a.env.serverOf(p.Server)
	if err != nil {
		return nil, err
	}
	return valued(a.box.Servers.List(ctx, a.serverPlace(nil), spec))
}

// mcpCall calls a tool of a server that lives in the sandbox.
func mcpCall(ctx context.Context, a *Attempt, p protocol.MCPCall) (_ protocol.Value, err error) {
	if p.Server, err = a.env.serverOf(p.Server); err != nil {
		return nil, err
	}
	place := a.serverPlace(a.Live)
	value, err := a.box.Servers.Call(ctx, place, p, a.Run.Call.Delivery == protocol.Idempotent)
	if value == nil {
		return nil, err
	}
	return *value, err
}

// mcpSize is the size of what a tool of a server returned.
func mcpSize(v protocol.MCPCallResult) int { return len(plain.MCP(v)) }

// serverOf is a server with the folder of tools in its command.
func (e *Env) serverOf(spec protocol.MCPServer) (protocol.MCPServer, error) {
	if spec.URL != "" {
		return spec, nil
	}
	argv, env, err := e.ofTools(append([]string{spec.Command}, spec.Args...), spec.Env)
	if err == nil {
		spec.Command, spec.Args, spec.Env = argv[0], argv[1:], env
	}
	return spec, err
}

// serverPlace is where servers of a call's sandbox run; without frames nothing is shown, and no
// person is asked.
func (a *Attempt) serverPlace(live *Live) toolserver.Surroundings {
	e := a.env
	place := toolserver.Surroundings{Sandbox: a.sandbox, Root: guestWorkspace, HTTP: e.Network.Servers, Logins: e.Logins, Variable: e.serverVariable}
	if e.Sandbox.Caps.Level < isolation.LevelFull {
		place.Root = a.box.Workspace()
	}
	if live != nil {
		show := live.Sparingly()
		place.Show = func(text string) { show(sandbox.Stdout, []byte(text)) }
		place.Ask = func(ctx context.Context, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
			return e.ask(ctx, a.Run.Call, q, fits)
		}
	}
	return place
}

// serverVariable is a variable of this process that servers may be given.
func (e *Env) serverVariable(name string) (string, error) {
	if !slices.Contains(e.MCPEnv, name) {
		return "", fmt.Errorf("${%s} is not allowed on worker %s: start it with --mcp-env %s", name, e.ID, name)
	}
	value, found := os.LookupEnv(name)
	if !found {
		return "", fmt.Errorf("${%s} is not set in the environment of worker %s", name, e.ID)
	}
	return value, nil
}

// errNobody is why a question is declined if no client takes it on.
var errNobody = errors.New("nobody who follows the call can be asked")

// askPart is the part of a call's remaining time that a question may take. The rest is for what
// becomes of the answer.
const askPart = 2

// tellTimeout bounds how long a call waits until the end of its question is sent.
const tellTimeout = time.Second

// ask sends a question of a running call to those who follow it, and waits for an answer that fits.
// An answer that does not fit is refused with that error, and the question stays. The error says
// why there is no answer.
func (e *Env) ask(ctx context.Context, call *protocol.Call, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
	body, err := wire.EncodeQuestion(q)
	if err != nil {
		return protocol.Answer{}, err
	}
	if len(body) > wire.MaxQuestion {
		return protocol.Answer{}, fmt.Errorf("the question has %d bytes, at most %d are put to a person", len(body), wire.MaxQuestion)
	}
	if deadline, bounded := ctx.Deadline(); bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/askPart)
		defer cancel()
	}
	answers := make(chan *nats.Msg, 8)
	subscription, err := e.NC.ChanSubscribe(wire.AnswerSubject(e.Fleet, call.Pool, call.SessionID, call.ID), answers)
	if err != nil {
		return protocol.Answer{}, err
	}
	defer func() { _ = subscription.Unsubscribe() }() // the connection may be gone
	if err := e.NC.Publish(wire.QuestionSubject(e.Fleet, call.Pool, call.SessionID, call.ID), body); err != nil {
		return protocol.Answer{}, err
	}
	answered := protocol.Answer{Question: q.ID, Action: protocol.ActionCancel}
	defer func() { e.tellAnswered(call, answered) }()
	unheard := time.NewTimer(wire.AskWait)
	defer unheard.Stop()
	for {
		select {
		case message := <-answers:
			if !natsio.IsRequest(message) {
				continue
			}
			answer, err := wire.ReadAnswer(message.Data, q.ID, func(a protocol.Answer) error { return fits(&a) })
			if !errors.Is(err, wire.ErrInvalidAnswer) { // otherwise a client only checks that the question is open
				unheard.Stop()
			}
			if err != nil {
				_ = message.Respond([]byte(err.Error())) // the client has gone or reads it
				continue
			}
			_ = message.Respond([]byte(wire.AnswerTaken)) // the answer counts in any case
			if answer.Action != protocol.ActionWait {
				answered.Action, answered.By = answer.Action, answer.By
				return answer, nil
			}
		case <-unheard.C:
			return protocol.Answer{}, errNobody
		case <-ctx.Done():
			return protocol.Answer{}, errors.New("nobody answered in time")
		}
	}
}

// tellAnswered reports the answer to those who follow a call, without its content, which may be a
// secret.
func (e *Env) tellAnswered(call *protocol.Call, answered protocol.Answer) {
	body, err := wire.EncodeAnswer(answered)
	if err == nil {
		err = e.NC.Publish(wire.QuestionSubject(e.Fleet, call.Pool, call.SessionID, call.ID), body)
	}
	if err == nil { // so that it comes before the call's result, which ends the question anyway
		_ = e.NC.FlushTimeout(tellTimeout)
	}
}

// httpFetch requests a page of the web, outside of any sandbox.
func httpFetch(ctx context.Context, a *Attempt, p protocol.HTTPFetch) (protocol.Value, error) {
	return valued(webfetch.Get(ctx, a.env.Network.Pages, p, a.env.Sandboxes.Spools()))
}

// pageSize is the length of the text of a page.
func pageSize(v protocol.HTTPFetchResult) int {
	if v.Image != "" {
		return 0
	}
	return len(v.Content)
}

// resultRead returns lines of the result of an earlier call of the session.
func resultRead(ctx context.Context, a *Attempt, p wire.ResultRead) (protocol.Value, error) {
	return a.env.Results.Read(ctx, a.Run.Call.SessionID, p, a.env.Result)
}

// noop waits for as long as the payload says.
func noop(ctx context.Context, _ *Attempt, p wire.Noop) (protocol.Value, error) {
	if !pause.For(ctx, p.WorkMS.Duration()) {
		return nil, ctx.Err()
	}
	return wire.NoopResult{}, nil
}

// refuseTurn refuses a turn that was sent to a pool of workers.
func refuseTurn(*Env, wire.TurnRun) *protocol.Error {
	return protocol.Errorf(codes.UnknownPayload, "turns are run by coordinators (pool %q), not by workers", protocol.SessionPool)
}
