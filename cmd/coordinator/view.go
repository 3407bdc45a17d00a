package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// viewFlags say how a session is shown.
type viewFlags struct {
	JSON  bool   `name:"json" brief:"Print the events of the session as JSON lines." help:"Print the session's events on stdout as JSON, one per line, and nothing else."`
	Plain bool   `brief:"Plain output, for screen readers and logs." help:"Plain output for screen readers: progress in words, every line once, no drawing."`
	Price string `placeholder:"IN/OUT" help:"Price of a million input and output tokens in dollars, such as 2.50/10; each turn then shows its cost."`

	fleet bool // workers are elsewhere: their names matter
}

// cost reads the price; nil without one.
func (f *viewFlags) cost() (func(protocol.Usage) float64, error) {
	if f.Price == "" {
		return nil, nil //nolint:nilnil // no price is no cost
	}
	in, out, ok := strings.Cut(f.Price, "/")
	input, err := strconv.ParseFloat(in, 64)
	output, err2 := strconv.ParseFloat(out, 64)
	if bad := func(n float64) bool { return !(n >= 0) || math.IsInf(n, 1) }; !ok || err != nil || err2 != nil || bad(input) || bad(output) {
		return nil, cli.Usagef("--price %q: must be dollars of a million input tokens, a slash, and those of output tokens, as in 2.50/10", f.Price)
	}
	return func(u protocol.Usage) float64 {
		return (float64(u.InputTokens)*input + float64(u.OutputTokens)*output) / 1e6
	}, nil
}

// view is how a session is shown: observe gets its events, warn what the command has to say, alert
// what of that nobody should overlook.
type view struct {
	screen  *terminal.View
	live    bool // what runs is seen while it does
	observe func(loop.Event)
	warn    func(string)
	alert   func(string)
	found   func(protocol.SessionID, []gitguard.Finding) // the event of what git would run; shown as text elsewhere
	answer  func(loop.TurnResult) error                  // prints it, unless it has been shown; the error is that of anything printed so far
}

// newView shows progress on stderr, or events on stdout with --json. Whoever makes one closes it.
func newView(p program, f *viewFlags) (view, error) {
	cost, err := f.cost()
	if err != nil {
		return view{}, err
	}
	options := &terminal.Options{
		Color: terminal.ColorWanted(p.Stderr, p.Getenv), Width: terminal.Width(p.Stderr), Plain: f.Plain, Cost: cost, Workers: f.fleet,
	}
	if terminal.IsTerminal(p.Stderr) && options.Width > 0 {
		options.Size = func() (int, int) { return terminal.Size(p.Stderr) }
		options.Live = !f.JSON && !f.Plain && p.Getenv("TERM") != "dumb"
	}
	progress := terminal.New(p.Stderr, options)
	v := view{screen: progress, live: options.Live, observe: progress.Observe, alert: progress.Alert}
	v.warn = func(message string) { progress.Notice("%s", message) }
	v.found = func(protocol.SessionID, []gitguard.Finding) {}
	v.answer = func(r loop.TurnResult) error { return printAnswer(p, r) }
	if f.JSON {
		events := newJSONEvents(terminal.JSONWriter(p.Stdout))
		v.observe, v.found, v.answer = events.observe, events.found, func(loop.TurnResult) error { return events.failed }
	}
	return v, nil
}

// printAnswer prints the answer. On a terminal that has shown it as it came, it is not shown twice.
func printAnswer(p program, r loop.TurnResult) error {
	if r.Outcome != loop.OutcomeAnswered || terminal.IsTerminal(p.Stdout) && terminal.IsTerminal(p.Stderr) {
		return nil
	}
	if _, err := fmt.Fprintln(p.out(), r.Text); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// busy shows what is done beside the turn, on a terminal; "" is nothing.
func (v view) busy(what string) {
	if v.live {
		v.screen.Waits(what)
	}
}

// output shows what running calls of a session write, as it comes.
func (v view) output(fl *fleet.Fleet, session protocol.SessionID) (stop func(), err error) {
	if !v.live {
		return func() {}, nil
	}
	var all []*nats.Subscription
	stop = func() {
		for _, frames := range all {
			_ = frames.Unsubscribe() // fails only when the connection is closed
		}
	}
	for _, part := range fl.Parts() {
		frames, err := part.NC.Subscribe(wire.OutputFilter(fl.Name, session), func(message *nats.Msg) {
			if f, err := wire.DecodeFrame(message.Data); err == nil && message.Subject == wire.OutputSubject(fl.Name, session, f.CallID) {
				v.frame(f)
			} // others are lost; the result has it all
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("listen to output of session %s: %w", session, err)
		}
		all = append(all, frames)
	}
	return stop, nil
}

func (v view) frame(f *wire.Frame) {
	if f.Kind == wire.FrameStdout || f.Kind == wire.FrameStderr {
		v.screen.Output(f.CallID, f.Data)
	}
}

// waitNotice is how long a call waits before the user is told.
const waitNotice = 3 * time.Second

// noticeWaiting passes events on, and says so when a call waits for long, unless that is seen. url
// is that of the fleet; "" for one of this process.
func noticeWaiting(show view, url string) func(loop.Event) {
	timers := map[protocol.CallID]*time.Timer{}
	return func(e loop.Event) {
		switch e.Type {
		case loop.EventToolQueued:
			id := e.CallID
			if timer := timers[id]; timer != nil {
				timer.Stop()
			}
			if e.Text != "" { // which says more
				break
			}
			timers[id] = time.AfterFunc(waitNotice, func() { show.sayWaiting(id, url) })
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

// sayWaiting says why a call waits.
func (v view) sayWaiting(id protocol.CallID, url string) {
	about, behind := v.screen.Waiting(id)
	switch {
	case about == "":
	case behind != "":
		if !v.live {
			v.warn(fmt.Sprintf("%s has waited %s, behind: %s", about, waitNotice, behind))
		}
	case url != "":
		v.warn(fmt.Sprintf("%s has waited %s: no worker is free, or another session has its lane (coordinator workers --nats %s, coordinator lane ls --nats %s)",
			about, waitNotice, natsio.Redact(url), natsio.Redact(url)))
	default:
		v.warn(fmt.Sprintf("%s has waited %s: the worker in this process is busy", about, waitNotice))
	}
}
