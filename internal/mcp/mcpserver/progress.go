//nolint:staticcheck // older clients still use deprecated logging
package mcpserver

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

	frames chan *wire.Frame
	output []byte // not sent yet

	mu    sync.Mutex
	doing string
}

func (s *Server) progress(ctx context.Context, request *mcp.CallToolRequest) *progress {
	token := request.Params.GetProgressToken()
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
			if output {
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

// frame takes live output of the call.
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

// log sends output as log messages, one a line, to a client that has set a level.
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

// questionID is the name of the one question about a call.
const questionID = "approval"

// The questions about a call.
const (
	askApproval = "approval" // whether it may be made
	askUser     = "question" // of the tool ask_user
)

// question is what the client's person may be asked about a call. The client makes the same request
// again with the answer (multi round-trip requests, SEP-2322); for older clients the SDK does so
// itself.
type question struct {
	about  func(questionState) string // what the client carries: the question is about this call and no other
	who    string                     // who answers
	can    bool                       // whether the client can ask its person
	own    error                      // why that person may not approve the client's calls; nil if it may
	put    questionState              // the question that was answered; zero before
	call   protocol.CallID            // the id of the call that an answer is about; "" before
	answer *mcp.ElicitResult          // nil before it was asked
	other  func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
	wait   func()            // lets later calls continue, before the wait for a person
	asked  *mcp.ElicitParams // what the client is to ask; nil while there is nothing
	state  string            // of that
}

// questionState is what a client carries from a question to its answer, with a code.
type questionState struct {
	Kind string          `json:"kind"`
	Call protocol.CallID `json:"call"`
	Ends time.Time       `json:"ends"`
}

// errState refuses an answer to a question that this server did not put about this call, or that
// was answered before.
var errState = &jsonrpc.Error{
	Code: jsonrpc.CodeInvalidParams, Message: "requestState: belongs to another call or server, was used, or has expired; make the call without it to be asked again",
}

func (s *Server) question(request *mcp.CallToolRequest, session protocol.SessionID, arguments string, wait func()) (*question, error) {
	who := principal(request)
	q := &question{other: s.options.Approve, wait: wait, who: cmp.Or(who.Name, "the client's user")}
	if !s.options.ClientApproves {
		q.own = errOwnCalls
		if refusal := may(who, judge.Approve, judge.Call, request.Params.Name); refusal != nil {
			q.own = fmt.Errorf("%w: %w", errOwnCalls, refusal)
		}
	}
	q.about = func(state questionState) string {
		fields, _ := json.Marshal(state) // texts and a time always can be
		mac := hmac.New(sha256.New, s.options.Key)
		_ = json.NewEncoder(mac).Encode([]any{"question", who.ID(), session, request.Params.Name, arguments, fields}) // it never fails
		return hex.EncodeToString(append(mac.Sum(nil), fields...))
	}
	capabilities := request.ClientCapabilities()
	q.can = capabilities != nil && capabilities.Elicitation != nil
	given := request.Params.RequestState
	if given == "" {
		return q, nil
	}
	raw, err := hex.DecodeString(given)
	if err != nil || len(raw) < sha256.Size || json.Unmarshal(raw[sha256.Size:], &q.put) != nil ||
		!hmac.Equal([]byte(q.about(q.put)), []byte(given)) {
		return nil, errState
	}
	if err := s.answers.use(who.ID(), q.put, time.Now()); err != nil {
		return nil, err
	}
	q.answer, _ = request.Params.InputResponses[questionID].(*mcp.ElicitResult)
	q.call = q.put.Call
	return q, nil
}

// answers are the questions whose answers were used. Another server of the fleet does not know
// them: there the id of the call is known, and returns the result of the first.
type answers struct {
	mu sync.Mutex
	of map[string]*usedAnswers // by the id of the principal
}

// usedAnswers are the used answers of one principal.
type usedAnswers struct {
	ends      map[protocol.CallID]time.Time
	forgotten time.Time // the last end of the forgotten answers
}

// maxAnswers is how many used answers of a principal are known whose time has not passed. One more
// answer of this principal is refused until the time of another one has passed.
const maxAnswers = 10_000

var errAnswers = &jsonrpc.Error{
	Code:    jsonrpc.CodeInternalError,
	Message: fmt.Sprintf("requestState: %d questions of this token were answered within minutes, and that is the limit; make the call without it later", maxAnswers),
}

// use uses the answer to a question, which is allowed once, and in time. It stays refused when it
// is not known any more that it was used, also if the clock is set back.
func (a *answers) use(principal string, q questionState, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[string]*usedAnswers{}
	}
	used := a.of[principal]
	if used == nil {
		used = &usedAnswers{ends: map[protocol.CallID]time.Time{}}
		a.of[principal] = used
	}
	if len(used.ends) >= maxAnswers {
		maps.DeleteFunc(used.ends, func(_ protocol.CallID, ends time.Time) bool {
			passed := now.After(ends)
			if passed && ends.After(used.forgotten) {
				used.forgotten = ends
			}
			return passed
		})
	}
	switch _, again := used.ends[q.Call]; {
	case again, now.After(q.Ends), !q.Ends.After(used.forgotten):
		return errState
	case len(used.ends) >= maxAnswers:
		return errAnswers
	}
	used.ends[q.Call] = q.Ends
	return nil
}

// putToClient has the client put a question, whose answer is waited for as long as ctx.
func (q *question) putToClient(ctx context.Context, kind string, call protocol.CallID, asked *mcp.ElicitParams) {
	ends, _ := ctx.Deadline() // each question has one
	q.asked, q.state = asked, q.about(questionState{kind, call, ends})
}

// approve is the function of [loop.SingleOptions].Approve.
func (q *question) approve(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	switch {
	case q.answer != nil && q.put.Kind == askApproval && q.own == nil:
		note, _ := q.answer.Content["note"].(string)
		return protocol.Approval{Granted: q.answer.Action == "accept", By: q.who, Via: "mcp", Note: note}, nil
	case q.can && q.own == nil:
		q.putToClient(ctx, askApproval, request.CallID, &mcp.ElicitParams{
			Mode:            "form",
			Message:         fmt.Sprintf("%s\n\n%s %s\n\nMay this call be made?", request.Reason, request.Tool, request.Arguments),
			RequestedSchema: json.RawMessage(`{"type": "object", "properties": {"note": {"type": "string", "title": "Note", "description": "A word to the model."}}}`),
		})
		return protocol.Approval{}, loop.ErrAnsweredLater
	case q.other != nil:
		q.wait()
		return q.other(ctx, request)
	}
	if q.can {
		return protocol.Approval{}, q.own
	}
	return protocol.Approval{}, errCannotAsk
}

var (
	errCannotAsk = errors.New("the client cannot ask a person")
	errOwnCalls  = errors.New("the client may not approve its own calls: use --nats with coordinator approve, or allow it with --mcp-client-approves")
)

// user puts the question of the tool ask_user.
func (q *question) user(ctx context.Context, asked protocol.Question) (protocol.Answer, error) {
	switch {
	case q.answer != nil && q.put.Kind == askUser:
		content, err := json.Marshal(q.answer.Content)
		return protocol.Answer{Question: asked.ID, Action: protocol.Action(q.answer.Action), Content: content, By: q.who}, err
	case q.can && q.answer == nil:
		q.putToClient(ctx, askUser, wire.RandomCallID(), &mcp.ElicitParams{Mode: "form", Message: asked.Message, RequestedSchema: asked.Schema})
		return protocol.Answer{}, loop.ErrAnsweredLater
	}
	return protocol.Answer{}, errCannotAsk
}

// open reports whether the client is to ask.
func (q *question) open() bool { return q.asked != nil }

// result is the question as an answer to a request.
func (q *question) result() *mcp.CallToolResult {
	return &mcp.CallToolResult{RequestState: q.state, InputRequests: mcp.InputRequestMap{questionID: q.asked}}
}

// elicit passes the question of a running call to the client's person. If the client cannot ask in
// the middle of a request, as since 2026-07-28, [Options].Ask gets the question; without it the
// question is declined.
func (s *Server) elicit(ctx context.Context, request *mcp.CallToolRequest, call *protocol.Call, q *protocol.Question) {
	asked := approval.Asked{Pool: call.Pool, Session: call.SessionID, Call: call.ID, Signer: s.options.Signer}
	warn := func(err error) {
		if err != nil && ctx.Err() == nil {
			s.options.Logger.WarnContext(ctx, "question of a call is not answered", slog.String("call", string(call.ID)), slog.Any("error", err))
		}
	}
	capabilities := request.ClientCapabilities()
	can := capabilities != nil && capabilities.Elicitation != nil && request.ProtocolVersion() < firstStateless
	if can || s.options.Ask != nil {
		warn(approval.TakeOn(s.options.At(call.Pool), s.options.Name, asked, q.ID))
	}
	if !can && s.options.Ask != nil {
		s.options.Ask(call, q)
		return
	}
	answer := protocol.Answer{Question: q.ID, Action: protocol.ActionDecline, By: cmp.Or(principal(request).Name, "the client's user")}
	if can {
		params := &mcp.ElicitParams{Mode: "form", Message: call.Tool + " asks: " + q.Message}
		if params.RequestedSchema = json.RawMessage(`{"type":"object","properties":{}}`); q.Schema != nil {
			params.RequestedSchema = q.Schema
		}
		result, err := request.Session.Elicit(ctx, params)
		if warn(err); err == nil {
			answer.Action = protocol.Action(result.Action)
			answer.Content, _ = json.Marshal(result.Content) // it was JSON
		}
	}
	warn(approval.Reply(ctx, s.options.At(protocol.SessionPool), s.options.At(call.Pool), s.options.Name, asked, answer))
}
