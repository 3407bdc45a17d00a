package kinds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/internal/worker/webfetch"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	// toolsVar is the variable with the path of the folder of tools, for the command of a tool.
	toolsVar = "TOOLFLEET_TOOLS"
	// toolsPlace stands for that folder in the command.
	toolsPlace = "{tools}"
	// maxErrorOutput is how much of what a failed tool wrote goes into the error, in characters.
	maxErrorOutput = 2000
	// maxToolOutput bounds what a tool may return, and the output that is stored whole, in bytes.
	maxToolOutput = 512 << 10
)

// toolRun runs the command of a tool of the user's own.
func toolRun(ctx context.Context, a *Attempt, p protocol.ToolRun) (protocol.Value, error) {
	if len(p.Argv) == 0 {
		return nil, protocol.Errorf(codes.InvalidPayload, "tool_run: argv is empty")
	}
	argv, env, err := a.env.ofTools(p.Argv, p.Env)
	if err != nil {
		return nil, err
	}
	done, err := a.exec(ctx, sandbox.Cmd{Argv: argv, Env: env, Stdin: p.Arguments})
	if err != nil {
		return nil, err
	}
	execution := done.execution
	whole := wholeOf(execution, done.written)
	_ = done.written.Close() // it was read
	output, fault := toolOutput(&whole, p.Text)
	value := toolValue(execution, whole, output)
	switch {
	case done.fault != nil:
		return value, done.fault
	case execution.Signal != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool was ended by signal %s%s", execution.Signal, errorOutput(a.Run.Call, &whole))
	case execution.ExitCode != 0:
		return value, protocol.Errorf(protocol.CodeToolFailed, "the tool failed (exit code %d)%s", execution.ExitCode, errorOutput(a.Run.Call, &whole))
	case fault != "":
		return value, protocol.Errorf(protocol.CodeToolFailed, "%s", fault)
	}
	return value, nil
}

// ofTools is the command of a tool, or of a server of tools, with the folder of tools.
func (e *Env) ofTools(argv []string, env map[string]string) ([]string, map[string]string, error) {
	folder := e.Sandboxes.ToolsPath()
	argv, env = slices.Clone(argv), maps.Clone(env)
	for i, arg := range argv {
		if strings.Contains(arg, toolsPlace) && folder == "" {
			return nil, nil, protocol.Errorf(codes.InvalidPayload,
				"the tool's command needs a folder of tools (%s), and worker %s has none: start it with --tools DIR", toolsPlace, e.ID)
		}
		argv[i] = strings.ReplaceAll(arg, toolsPlace, folder)
	}
	if folder != "" {
		if env == nil {
			env = map[string]string{}
		}
		env[toolsVar] = folder
	}
	return argv, env, nil
}

// wholeOf returns an execution with its whole output instead of the shortened one, unless that is
// too much.
func wholeOf(e protocol.Execution, written *spool.Spool) protocol.Execution {
	if !e.Truncated {
		return e
	}
	whole := func(kept *protocol.Bytes, streams ...sandbox.Stream) {
		if len(*kept) == 0 || written.Total(streams...) > maxToolOutput {
			return
		}
		if all, err := io.ReadAll(written.Reader(streams...)); err == nil && int64(len(all)) == written.Total(streams...) {
			*kept = all
		}
	}
	whole(&e.Stdout, sandbox.Stdout)
	whole(&e.Stderr, sandbox.Stderr)
	whole(&e.Combined, sandbox.Stdout, sandbox.Stderr)
	e.Truncated = int64(len(e.Stdout)) != e.StdoutBytes || int64(len(e.Stderr)) != e.StderrBytes
	return e
}

// toolValue is what the command of a tool returned, and kept whole where it may be shown cut.
func toolValue(shown, whole protocol.Execution, output json.RawMessage) protocol.Value {
	valueOf := func(e protocol.Execution) protocol.ToolRunResult {
		if output != nil {
			e.Stdout, e.Combined = protocol.Bytes{}, nil
		}
		return protocol.ToolRunResult{Output: output, Execution: e}
	}
	value := valueOf(shown)
	if toolSize(value) > plain.MaxShown || shown.Truncated || utf8.RuneCount(whole.Stderr) > maxErrorOutput {
		return results.Partial{Value: value, Whole: results.Value(valueOf(whole))}
	}
	return value
}

// toolSize is the size of what a tool returned, or wrote.
func toolSize(v protocol.ToolRunResult) int { return max(outputSize(v), len(v.Output)) }

// toolOutput reads the whole standard output of a tool, or returns why it is invalid.
func toolOutput(e *protocol.Execution, isText bool) (output json.RawMessage, fault string) {
	if int64(len(e.Stdout)) != e.StdoutBytes {
		return nil, fmt.Sprintf("the tool wrote %d bytes to standard output: what it returns has %d bytes at most", e.StdoutBytes, maxToolOutput)
	}
	if isText {
		text := strings.TrimSuffix(prose.Valid(string(e.Stdout)), "\n")
		encoded, err := json.Marshal(text)
		if err != nil {
			return nil, fmt.Sprintf("the tool's output cannot be sent: %v", err)
		}
		return encoded, ""
	}
	trimmed := bytes.TrimSpace(e.Stdout)
	var compact bytes.Buffer
	switch {
	case len(trimmed) == 0:
		return json.RawMessage("null"), ""
	case !utf8.Valid(trimmed):
		return nil, "the tool must write one JSON value to standard output, and what it wrote is not UTF-8"
	}
	if err := json.Compact(&compact, trimmed); err != nil {
		return nil, fmt.Sprintf("the tool must write one JSON value to standard output, and what it wrote is none: %v", err)
	}
	return compact.Bytes(), ""
}

// errorOutput is the end of what a tool that failed wrote, to standard error if anything.
func errorOutput(c *protocol.Call, e *protocol.Execution) string {
	wrote := strings.TrimSpace(prose.Valid(string(e.Stderr)))
	if wrote == "" {
		return ""
	}
	if all := []rune(wrote); len(all) > maxErrorOutput {
		return fmt.Sprintf(": ...%s\n[these are the last %d of %d characters of what it wrote to stderr; all of it: read with path=%q]",
			string(all[len(all)-maxErrorOutput:]), maxErrorOutput, len(all), "result:"+string(c.ID)+"#"+wire.PartStderr)
	}
	return ": " + wrote
}

// guestWorkspace is where sandboxes with a root of their own have the workspace.
const guestWorkspace = "/workspace"

// mcpList returns the tools of a server that lives in the sandbox.
func mcpList(ctx context.Context, a *Attempt, p wire.MCPList) (protocol.Value, error) {
	spec, err := a.env.serverOf(p.Server)
	if err != nil {
		return nil, err
	}
	return valued(a.laneSandbox.Servers.List(ctx, a.serverSurroundings(nil), spec))
}

// mcpCall calls a tool of a server that lives in the sandbox.
func mcpCall(ctx context.Context, a *Attempt, p protocol.MCPCall) (_ protocol.Value, err error) {
	if p.Server, err = a.env.serverOf(p.Server); err != nil {
		return nil, err
	}
	place := a.serverSurroundings(a.Live)
	place.Running = &toolserver.Running{SessionID: a.Run.Call.SessionID, CallID: a.Run.Call.ID, Attempt: a.Run.Attempt, Fence: a.Run.Fence}
	value, err := a.laneSandbox.Servers.Call(ctx, place, p, a.Run.Call.Delivery == protocol.Idempotent)
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

// serverSurroundings is where servers of a call's sandbox run; without frames nothing is shown, and
// no person is asked.
func (a *Attempt) serverSurroundings(live *Live) toolserver.Surroundings {
	e := a.env
	place := toolserver.Surroundings{Sandbox: a.sandbox, Root: guestWorkspace, HTTP: e.Network.Servers, Logins: e.Logins, Variable: e.serverVariable}
	if e.Sandbox.Caps.Level < isolation.LevelFull {
		place.Root = a.laneSandbox.Workspace()
	}
	if live != nil {
		show := live.Sparingly()
		place.Show = func(text string) { show(sandbox.Stdout, []byte(text)) }
		place.Ask = func(ctx context.Context, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
			return e.askPerson(ctx, a.Run.Call, q, fits)
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

// errNoAnswerer is why a question is declined if no client takes it on.
var errNoAnswerer = errors.New("nobody who follows the call can be asked")

// questionShare is the part of a call's remaining time that a question may take. The rest is for
// what becomes of the answer.
const questionShare = 2

// reportTimeout bounds how long a call waits until the end of its question is sent.
const reportTimeout = time.Second

// askPerson sends a question of a running call to those who follow it, and waits for an answer that
// fits, of one who may use the call's session. Another answer is refused with the reason, and the
// question stays. The error says why there is no answer.
func (e *Env) askPerson(ctx context.Context, call *protocol.Call, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
	body, err := wire.Encode(&q)
	if err != nil {
		return protocol.Answer{}, err
	}
	if len(body) > wire.MaxQuestion {
		return protocol.Answer{}, fmt.Errorf("the question has %d bytes, at most %d are put to a person", len(body), wire.MaxQuestion)
	}
	if deadline, bounded := ctx.Deadline(); bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/questionShare)
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
	defer func() { e.reportAnswered(call, answered) }()
	owned := wire.WithOwner(ctx, judge.Owner{Tenant: call.Tenant, By: call.By})
	unheard := time.NewTimer(wire.AskWait)
	defer unheard.Stop()
	for {
		select {
		case message := <-answers:
			if !natsio.IsRequest(message) {
				continue
			}
			answer, by, err := e.Keys.ReadAnswer(owned, e.Fleet, call.SessionID, message, q.ID, func(a protocol.Answer) error { return fits(&a) })
			if !errors.Is(err, wire.ErrInvalidBody) {
				unheard.Stop()
			}
			if err == nil && answer.Action != protocol.ActionWait {
				if answered.Action, answered.By = answer.Action, answer.By; by != "" {
					answered.By = strings.TrimSpace(answer.By + " (" + by + ")")
				}
				return answer, nil
			}
		case <-unheard.C:
			return protocol.Answer{}, errNoAnswerer
		case <-ctx.Done():
			return protocol.Answer{}, errors.New("nobody answered in time")
		}
	}
}

// reportAnswered reports the answer to those who follow a call, without its content, which may be a
// secret.
func (e *Env) reportAnswered(call *protocol.Call, answered protocol.Answer) {
	body, err := wire.Encode(&answered)
	if err == nil {
		err = e.NC.Publish(wire.QuestionSubject(e.Fleet, call.Pool, call.SessionID, call.ID), body)
	}
	if err == nil { // so that it comes before the call's result, which ends the question anyway
		_ = e.NC.FlushTimeout(reportTimeout)
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
