package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Kinds of messages of streams.
const (
	kindEvent  = "event"  // an event of a session; stored ones have an id
	kindOutput = "output" // a piece of the output of a running call
	kindLost   = "lost"   // live messages before it were lost; stored events never are
	kindState  = "state"  // the state of a call, which ends its stream
	kindEnd    = "end"    // why the stream of a session ends
)

// OutputPiece is a piece of what a running call writes.
type OutputPiece struct {
	CallID  protocol.CallID `json:"call_id"`
	Stream  string          `json:"stream" enum:"stdout,stderr"`
	Data    []byte          `json:"data" doc:"In base64."`
	Attempt int             `json:"attempt" doc:"Start of the call that wrote it, from 1."`
	Gap     bool            `json:"gap,omitempty" doc:"Something before it was lost, or written before the client followed; the result has it."`
}

// Lost says that live messages were lost.
type Lost struct {
	Reason string `json:"reason"`
}

// sessionEvents registers the streams of sessions.
func (a *api) sessionEvents(tag string) {
	op := operation(http.MethodGet, "/sessions/{session}/events", "follow-session", tag, "Follow the events of a session",
		eventStream(a, map[string]any{kindEvent: loop.Event{}, kindOutput: OutputPiece{}, kindLost: Lost{}, kindEnd: Problem{}}))
	huma.Register(a.huma, op,
		func(ctx context.Context, in *struct {
			SessionPath
			Last   string `header:"Last-Event-ID" maxLength:"64" doc:"Id of the last event that you have."` //nolint:tagliatelle // its name in the standard
			Output bool   `query:"output" doc:"Also what running calls write."`
			Turn   bool   `query:"until_turn_ended" doc:"The stream ends with the next turn_ended."`
		},
		) (*huma.StreamResponse, error) {
			ctx, cancel := context.WithCancel(ctx)
			next, stop := pulled(passing(a.Client.Sessions(a.Pool).Events(ctx, in.Session, in.Last)))
			end := func() { cancel(); stop() }
			first := <-next // what is wrong with the request is said by the status
			if first.err != nil {
				end()
				return nil, problem(first.err)
			}
			return streamed(func(s *stream) { passEvents(ctx, s, first, next, in.Output, in.Turn) }, end), nil
		})
}

// passEvents sends the events of a session until the client has gone or nothing more can come.
func passEvents(ctx context.Context, s *stream, p passed, next <-chan passed, output, untilTurn bool) {
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for more := true; more; {
		sent := true
		switch {
		case p.err != nil:
			if ctx.Err() == nil || errors.Is(p.err, loop.ErrRemoved) || errors.Is(p.err, access.ErrUnknown) {
				s.send(kindEnd, "", problem(p.err))
			}
			return
		case p.Event != nil:
			sent = s.send(kindEvent, p.ID, p.Event)
		case p.Lost:
			sent = s.send(kindLost, "", Lost{"the client did not keep up with what is live"})
		case output && p.Output != nil:
			sent = s.send(kindOutput, "", OutputPiece{p.CallID, p.Output.Stream, p.Output.Data, p.Output.Attempt, p.Output.Gap})
		}
		if !sent || untilTurn && p.Event != nil && p.Event.Type == loop.EventTurnEnded {
			return
		}
		select {
		case <-access.Draining(ctx):
			s.send(kindEnd, "", errDraining)
			return
		case <-idle.C:
			p = passed{}
			more = s.text(": \n\n")
		case p, more = <-next:
		}
	}
}

// passed is one of a sequence, or its error. The zero value has nothing to send.
type passed struct {
	fleet.Passed

	err error
}

// passing is a sequence with its errors as one of values.
func passing(from iter.Seq2[fleet.Passed, error]) iter.Seq[passed] {
	return func(yield func(passed) bool) {
		for p, err := range from {
			if !yield(passed{Passed: p, err: err}) {
				return
			}
		}
	}
}

// pulled reads a sequence in a goroutine, one ahead, until stop.
func pulled[T any](from iter.Seq[T]) (next <-chan T, stop func()) {
	out, ended, over := make(chan T), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		defer close(out)
		for p := range from {
			select {
			case out <- p:
			case <-ended:
				return
			}
		}
	}()
	return out, func() { close(ended); <-over }
}

// errDraining ends the streams of a server that ends.
var errDraining = &Problem{
	Title: http.StatusText(http.StatusServiceUnavailable), Status: http.StatusServiceUnavailable, Code: codeDraining,
	Detail: "the server ends: connect again, here or at another server of the fleet, with the id of the last event",
}

// callEvents registers the streams of calls.
func (a *api) callEvents(tag string) {
	op := operation(http.MethodGet, "/calls/{session}/{call}/events", "follow-call", tag, "Follow the output of a call, and its result",
		eventStream(a, map[string]any{kindOutput: OutputPiece{}, kindState: CallState{}, kindEnd: Problem{}}))
	huma.Register(a.huma, op, func(ctx context.Context, in *CallPath) (*huma.StreamResponse, error) {
		future, err := a.Client.Attach(ctx, in.ref())
		if err != nil {
			return nil, problem(err)
		}
		return streamed(func(s *stream) { a.passCall(ctx, s, in.ref(), future) }, func() {}), nil
	})
}

// passCall sends the output and the result of a call.
func (a *api) passCall(ctx context.Context, s *stream, ref protocol.CallRef, future *fleet.Future) {
	ctx, cancel := context.WithCancel(ctx)
	next, stop := pulled(future.Output(ctx))
	defer func() { cancel(); stop() }()
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for {
		select {
		case <-access.Draining(ctx):
			s.send(kindEnd, "", errDraining)
			return
		case <-idle.C:
			if !s.text(": \n\n") {
				return
			}
		case piece, more := <-next:
			if !more {
				s.sendResult(ctx, a, ref, future)
				return
			}
			if !s.send(kindOutput, "", OutputPiece{ref.ID, piece.Stream, piece.Data, piece.Attempt, piece.Gap}) {
				return
			}
		}
	}
}

// sendResult sends how a call ended, whose output is complete.
func (s *stream) sendResult(ctx context.Context, a *api, ref protocol.CallRef, future *fleet.Future) {
	result, err := future.Wait(ctx)
	var made *CallResult
	if err == nil || result.Status != "" {
		made, err = a.resultOf(ctx, result)
	}
	switch {
	case err == nil:
		s.send(kindState, "", CallState{ref.SessionID, ref.ID, stateEnded, made})
	case ctx.Err() == nil || errors.Is(err, access.ErrUnknown):
		s.send(kindEnd, "", problem(err))
	}
}

// keepAlive is after what time without an event a comment is sent. [access.Serve] bounds in what
// time the client must take it.
const keepAlive = 15 * time.Second

// stream writes text/event-stream.
type stream struct {
	ctx     huma.Context
	control *http.ResponseController
}

// streamed answers with a stream of events that write sends. end is called at its end, also if the
// client has gone before write is called.
func streamed(write func(*stream), end func()) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer end()
		ctx.SetHeader("Content-Type", "text/event-stream")
		ctx.SetHeader("Cache-Control", "no-store")
		ctx.SetHeader("X-Accel-Buffering", "no")
		s := &stream{ctx: ctx}
		if w, is := ctx.BodyWriter().(http.ResponseWriter); is {
			s.control = http.NewResponseController(w)
		}
		if s.text("retry: 1000\n\n") {
			write(s)
		}
	}}
}

// send writes an event, and reports whether the client takes it. Without an id the client continues
// behind the event before.
func (s *stream) send(kind, id string, data any) bool {
	body, err := json.Marshal(data)
	if err != nil {
		return false
	}
	text := "event: " + kind + "\n"
	if id != "" {
		text += "id: " + id + "\n"
	}
	return s.text(text + "data: " + string(body) + "\n\n") // JSON has no line breaks
}

// text writes and flushes.
func (s *stream) text(text string) bool {
	if _, err := s.ctx.BodyWriter().Write([]byte(text)); err != nil {
		return false
	}
	return s.control == nil || s.control.Flush() == nil
}

// eventStream documents that an operation answers with events: their kinds, and what their data is.
func eventStream(a *api, kinds map[string]any) func(*huma.Operation) {
	return func(op *huma.Operation) {
		text := "Server-Sent Events. After a break, send the id of the last event as Last-Event-ID: the stream continues behind it."
		for kind, of := range kinds { // programs find the types of data among the schemas
			a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(of), true, kind)
		}
		op.Responses = map[string]*huma.Response{"200": {
			Description: text, Content: map[string]*huma.MediaType{"text/event-stream": {}}, // a schema would be that of each event, or of all: programs differ
		}}
	}
}
