package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// viewFlags say how a session is shown.
type viewFlags struct {
	JSON  bool   `name:"json" brief:"Print the events of the session as JSON lines." help:"Print the session's events on stdout as JSON, one per line, and nothing else."`
	Plain bool   `brief:"Plain output, for screen readers and logs." help:"Plain output for screen readers: progress in words, every line once, no drawing."`
	Price string `placeholder:"IN/OUT" help:"Price of a million input and output tokens in dollars, such as 2.50/10, instead of that of --prices; each turn then shows its cost."`

	fleet bool // workers are elsewhere: show their names
}

// price reads the price; nil without one.
func (f *viewFlags) price() (*loop.Price, error) {
	if f.Price == "" {
		return nil, nil //nolint:nilnil // it is unknown
	}
	in, out, ok := strings.Cut(f.Price, "/")
	input, err := strconv.ParseFloat(in, 64)
	output, err2 := strconv.ParseFloat(out, 64)
	if bad := func(n float64) bool { return !(n >= 0) || math.IsInf(n, 1) }; !ok || err != nil || err2 != nil || bad(input) || bad(output) {
		return nil, cli.Usagef("--price %q: must be dollars of a million input tokens, a slash, and those of output tokens, as in 2.50/10", f.Price)
	}
	return &loop.Price{Input: input, Output: output}, nil
}

// view shows a session: observe shows its events, warn a message of the command, alert a message
// that stands out.
type view struct {
	screen  *terminal.View
	live    bool // running calls are shown while they run
	json    bool // events are printed instead
	observe func(loop.Event)
	warn    func(string)
	alert   func(string)
	found   func(protocol.SessionID, []gitguard.Finding) // the event about git; a person gets an alert instead
	answer  func(loop.TurnResult) error                  // prints the answer, unless it has been shown; returns the first error of printing
}

// newView shows progress on stderr, or events on stdout with --json. The caller closes its screen.
func newView(p program, f *viewFlags) (view, error) {
	price, err := f.price()
	if err != nil {
		return view{}, err
	}
	options := &terminal.Options{
		Color: terminal.ColorWanted(p.Stderr, p.Getenv), Width: terminal.Width(p.Stderr), Plain: f.Plain, Workers: f.fleet,
	}
	if price != nil {
		options.Cost = price.Of
	}
	if terminal.IsTerminal(p.Stderr) && options.Width > 0 {
		options.Size = func() (int, int) { return terminal.Size(p.Stderr) }
		options.Live = !f.JSON && !f.Plain && p.Getenv("TERM") != "dumb"
	}
	progress := terminal.New(p.Stderr, options)
	v := view{screen: progress, live: options.Live, json: f.JSON, observe: progress.Observe, alert: progress.Alert}
	v.warn = func(message string) { progress.Notice("%s", message) }
	v.found = func(protocol.SessionID, []gitguard.Finding) {}
	v.answer = func(r loop.TurnResult) error { return printAnswer(p, r) }
	if f.JSON {
		events := newJSONEvents(terminal.JSONWriter(p.Stdout))
		v.observe, v.found, v.answer = events.observe, events.found, func(loop.TurnResult) error { return events.failed }
	}
	return v, nil
}

// printAnswer prints the answer, unless the terminal has shown it already.
func printAnswer(p program, r loop.TurnResult) error {
	if r.Outcome != loop.OutcomeAnswered || terminal.IsTerminal(p.Stdout) && terminal.IsTerminal(p.Stderr) {
		return nil
	}
	if _, err := fmt.Fprintln(p.out(), r.Text); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// busy shows on a terminal what is done outside of the turn; "" is nothing.
func (v view) busy(what string) {
	if v.live {
		v.screen.Waits(what)
	}
}

// output shows what running calls of a session write, as it comes.
func (v view) output(ctx context.Context, client *fleet.Client, session protocol.SessionID) (stop func(), err error) {
	if !v.live {
		return func() {}, nil
	}
	return client.Sessions("").Output(ctx, session, func(call protocol.CallID, o fleet.Output) { v.screen.Output(call, o.Data) })
}

// waitNotice is how long a call waits before the user is warned.
const waitNotice = 3 * time.Second

// noticeWaiting shows events, and warns when a call waits long, unless the terminal shows that.
// where says where its worker is.
func noticeWaiting(show view, where *environment.FleetFlags) func(loop.Event) {
	timers := map[protocol.CallID]*time.Timer{}
	return func(e loop.Event) {
		switch e.Type {
		case loop.EventToolQueued:
			id := e.CallID
			if timer := timers[id]; timer != nil {
				timer.Stop()
			}
			if e.Text != "" { // the event says why
				break
			}
			timers[id] = time.AfterFunc(waitNotice, func() { show.sayWaiting(id, where) })
		case loop.EventToolRunning, loop.EventWorkerLost, loop.EventToolResult:
			if timer := timers[e.CallID]; timer != nil {
				timer.Stop()
				delete(timers, e.CallID)
			}
		default:
		}
		show.observe(e)
	}
}

// sayWaiting warns why a call waits.
func (v view) sayWaiting(id protocol.CallID, where *environment.FleetFlags) {
	about, behind := v.screen.Waiting(id)
	switch {
	case about == "":
	case behind != "":
		if !v.live {
			v.warn(fmt.Sprintf("%s has waited %s, behind: %s", about, waitNotice, behind))
		}
	case where.Nats != "":
		v.warn(fmt.Sprintf("%s has waited %s: no worker is free, or another session has its lane (coordinator workers%s, coordinator lane ls%s)",
			about, waitNotice, where.Reach(), where.Reach()))
	default:
		v.warn(fmt.Sprintf("%s has waited %s for the worker in this process", about, waitNotice))
	}
}

// jsonEvents prints the events of a session, one JSON object a line.
type jsonEvents struct {
	w      io.Writer
	failed error // the first event that could not be printed
}

func newJSONEvents(w io.Writer) *jsonEvents { return &jsonEvents{w: w} }

// observe prints an event if it is part of the contract; live ones are not.
func (j *jsonEvents) observe(e loop.Event) {
	always, printed := alwaysThere(e.Type)
	if !printed {
		return
	}
	line, err := encodeEvent(e, always)
	if err != nil {
		panic(fmt.Sprintf("encode event: %v", err)) // strings and numbers always encode
	}
	j.write(line)
}

// alwaysThere names the fields that an event of a type always has, besides type and session_id;
// printed is false for events that are not part of the contract.
func alwaysThere(t loop.EventType) (fields string, printed bool) {
	switch t {
	case loop.EventSessionStarted:
		return "model tools", true
	case loop.EventInputAdded:
		return "step input", true
	case loop.EventModelReply:
		return "text tool_calls", true
	case loop.EventNativeCall:
		return "name status text content", true
	case loop.EventToolCall:
		return "index call_id name arguments", true
	case loop.EventToolResult:
		return "index call_id name status content worker_id attempt queue_ms run_ms", true
	case loop.EventSessionEnded:
		return "status text usage", true
	case loop.EventJobEnded:
		return "job index call_id name status content", true
	case loop.EventPartLeftOut:
		return "tool_call_id part text", true
	case loop.EventCompacted:
		return "text kept_turn kept_step", true
	case loop.EventRewound:
		return "kept_turn", true
	case loop.EventBudgetLow, loop.EventBudgetSpent, loop.EventAnswerRefused, loop.EventSessionMerged, loop.EventRevertEnded,
		loop.EventCallResolved, loop.EventModelWaits, loop.EventReplyFailed, loop.EventTurnPostponed:
		return "text", true
	case loop.EventPolicyDecision:
		return "index call_id name status rule text", true
	case loop.EventHookDecided:
		return "hook", true
	case loop.EventApprovalAsked:
		return "index call_id name rule text", true
	case loop.EventQuestionAsked:
		return "index call_id name lane question", true
	case loop.EventAnswered:
		return "index call_id name question status", true
	case loop.EventWorkerLost:
		return "index call_id name worker_id attempt text", true
	case loop.EventRevertStarted, loop.EventChangeStarted, loop.EventChangeEnded, loop.EventCopyStarted, loop.EventSessionForked,
		loop.EventImported, loop.EventRemoved, loop.EventTurnStarted, loop.EventTurnEnded, loop.EventTextDelta, loop.EventReasoningDelta,
		loop.EventToolQueued, loop.EventToolRunning, loop.EventAgentMoved, loop.EventCallJudged:
	}
	return "", false
}

// emptyField is the value of a field that an event always has, when it has none.
func emptyField(name string) string {
	switch name {
	case "step", "index", "attempt", "queue_ms", "run_ms", "kept_turn", "kept_step":
		return `0`
	case "tools", "tool_calls":
		return `[]`
	case "usage":
		return `{"input_tokens":0,"output_tokens":0}`
	case "question":
		return `{}`
	default:
		return `""`
	}
}

// encodeEvent returns the line of an event.
func encodeEvent(e loop.Event, always string) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if e.Reasoning != nil { // the rest is for the adapter of the model
		e.Reasoning = &loop.Reasoning{Text: e.Reasoning.Text}
	}
	if err := encoder.Encode(e); err != nil {
		return nil, err
	}
	var has map[string]json.RawMessage
	if err := json.Unmarshal(line.Bytes(), &has); err != nil {
		return nil, err
	}
	line.Truncate(line.Len() - len("}\n"))
	for name := range strings.FieldsSeq(always) {
		if _, there := has[name]; !there {
			fmt.Fprintf(&line, ",%q:%s", name, emptyField(name))
		}
	}
	line.WriteString("}\n")
	return line.Bytes(), nil
}

// gitFindings is the event of --json about what a session has left for git to run.
type gitFindings struct {
	Type      string             `json:"type"`
	SessionID protocol.SessionID `json:"session_id"`
	Time      time.Time          `json:"time"`
	Findings  []gitguard.Finding `json:"findings"`
}

// found prints the event of findings.
func (j *jsonEvents) found(session protocol.SessionID, findings []gitguard.Finding) {
	if len(findings) == 0 {
		return
	}
	line, err := json.Marshal(gitFindings{Type: "git_findings", SessionID: session, Time: time.Now().UTC(), Findings: findings})
	if err != nil {
		panic(fmt.Sprintf("encode findings: %v", err)) // strings always encode
	}
	j.write(append(line, '\n'))
}

// write prints a line. A reader that went away does not end the session.
func (j *jsonEvents) write(line []byte) {
	if _, err := j.w.Write(line); err != nil && j.failed == nil {
		j.failed = fmt.Errorf("print events: %w", err)
	}
}
