package endpoint

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Reply makes attempts until one returns a reply, or an error that is not worth another;
// delta is notified of each wait, and of what a failed attempt took: the Usage of its reply. An
// error is the cause of ctx's end or wraps an [*Error].
func (e *Endpoint) Reply(ctx context.Context, delta func(loop.Delta), attempt func() (loop.Reply, error)) (loop.Reply, error) {
	begun := time.Now()
	delays := &backoff.ExponentialBackOff{
		InitialInterval: e.opts.RetryDelay, MaxInterval: e.opts.MaxRetryDelay,
		Multiplier: 2, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	for number := 1; ; number++ {
		reply, err := attempt()
		if err == nil {
			return reply, nil
		}
		if reply.Usage != (protocol.Usage{}) {
			delta(loop.Delta{Failed: &loop.Reply{Usage: reply.Usage}})
		}
		if ctx.Err() != nil {
			return loop.Reply{}, fmt.Errorf("reply of model %s: %w", e.opts.Model, context.Cause(ctx))
		}
		failure, ok := errors.AsType[*Error](err)
		left := e.opts.MaxWait - time.Since(begun)
		spent := number >= e.opts.MaxAttempts
		if e.opts.MaxWait > 0 {
			spent = left <= 0
		}
		if !ok || !failure.retryable() || spent {
			return loop.Reply{}, afterAttempts(err, number)
		}
		delay := e.delay(failure, delays)
		if e.opts.MaxWait > 0 {
			delay = min(delay, left) // the last attempt is made at the end
		}
		e.opts.Logger.WarnContext(ctx, "model did not reply, trying again",
			slog.String("error_type", failure.Type), slog.String("error", failure.Error()),
			slog.Int("attempt", number), slog.Int64("delay_ms", delay.Milliseconds()))
		delta(loop.Delta{Waits: fmt.Sprintf("%v; next attempt in %v", failure, delay.Round(100*time.Millisecond)), Pause: delay})
		if !pause.For(ctx, delay) {
			return loop.Reply{}, fmt.Errorf("reply of model %s: %w (attempt %d: %w)", e.opts.Model, context.Cause(ctx), number, err)
		}
	}
}

// delay is the back-off, or what the server asked for when that is longer. On top of
// the latter comes a part of the jittered back-off, so that clients with the same
// time do not all send at once.
func (e *Endpoint) delay(failure *Error, delays backoff.BackOff) time.Duration {
	next := delays.NextBackOff()
	if failure.RetryAfter == 0 {
		return next
	}
	return max(next, min(failure.RetryAfter, e.opts.MaxRetryDelay)+next/8)
}

func afterAttempts(err error, attempts int) error {
	if attempts == 1 {
		return err
	}
	return fmt.Errorf("after %d attempts: %w", attempts, err)
}

// Stream sends a request as [Endpoint.post] does, and passes the data of each event of its answer
// to read, until the stream ends. A stream that ends without [DONE] is whole if parts has then read
// why the reply ended.
func (e *Endpoint) Stream(ctx context.Context, path string, body any, headers map[string]string, parts *Assembler, read func(data []byte) error) error {
	events, err := e.post(ctx, path, body, headers)
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	for {
		data, err := events.Next()
		if err == nil {
			err = read(data)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, ErrNotDone) && parts.Finish != "":
			return nil
		default:
			return e.typed(err)
		}
	}
}

// typed gives every error of a stream its type.
func (e *Endpoint) typed(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*lenient.FormError](err); ok {
		return e.localError(TypeInvalidResponse, "a chunk of the stream cannot be read: ", err)
	}
	return e.localError(TypeStreamBroken, "the answer broke off: ", err)
}

// Assembler puts a reply together from the pieces of a stream.
type Assembler struct {
	Text    lenient.Text
	Thought lenient.Text // what the model thinks, as people are shown it
	Finish  string       // why the reply ended, in the server's word; "" when it does not say
	Usage   protocol.Usage
	Model   string
	ID      string // of the reply; "" when the server does not say
	// Reasoning is [loop.Reply].Reasoning, and Native its calls that the provider ran.
	Reasoning *loop.Reasoning
	Native    []loop.NativeCall

	calls   []*partialCall
	emitted int // of calls, that were passed to delta as complete; -1 for no more
	byIndex map[int]*partialCall
}

type partialCall struct {
	id, name  string
	arguments lenient.Text
}

// CallPiece is a piece of a tool call.
type CallPiece struct {
	Index               int // -1 when there is none
	ID, Name, Arguments string
}

// Emit passes what is new of the texts to delta.
func (a *Assembler) Emit(delta func(loop.Delta)) {
	if piece := a.Thought.Fresh(); piece != "" {
		delta(loop.Delta{Reasoning: piece})
	}
	if piece := a.Text.Fresh(); piece != "" {
		delta(loop.Delta{Text: piece})
	}
	for a.emitted >= 0 && a.emitted < len(a.calls)-1 { // the last one may grow
		a.emitCall(delta)
	}
}

// emitCall passes the next call on, unless it is not complete, or has no id of its own.
func (a *Assembler) emitCall(delta func(loop.Delta)) {
	next := a.calls[a.emitted]
	call := &loop.ToolCall{ID: next.id, Name: next.name, Arguments: next.arguments.Raw()}
	same := func(other *partialCall) bool { return other.id == call.ID }
	if call.ID == "" || call.Name == "" || !json.Valid([]byte(call.Arguments)) || slices.ContainsFunc(a.calls[:a.emitted], same) {
		a.emitted = -1
		return
	}
	delta(loop.Delta{Call: call, Index: a.emitted})
	a.emitted++
}

// AddCall adds a piece of a tool call.
func (a *Assembler) AddCall(piece CallPiece) {
	call := a.continued(piece)
	if call == nil || begins(piece, call) {
		call = &partialCall{}
		a.calls = append(a.calls, call)
	}
	if piece.Index >= 0 {
		if a.byIndex == nil {
			a.byIndex = make(map[int]*partialCall)
		}
		a.byIndex[piece.Index] = call
	}
	call.id, call.name = cmp.Or(call.id, piece.ID), cmp.Or(call.name, piece.Name)
	call.arguments.Add(piece.Arguments)
}

// continued finds the call that a piece may belong to: by its index, else by its id,
// else the last one. It returns nil when there is none.
func (a *Assembler) continued(piece CallPiece) *partialCall {
	if piece.Index >= 0 {
		return a.byIndex[piece.Index]
	}
	if piece.ID != "" {
		for _, call := range a.calls {
			if call.id == piece.ID {
				return call
			}
		}
	}
	if len(a.calls) == 0 {
		return nil
	}
	return a.calls[len(a.calls)-1]
}

// begins reports whether the piece is the start of another call, although it names
// the index of this one. It brings a name then, and either another id (an id alone
// does not count: some servers make up a new one for every piece), or arguments while
// this one's are already whole.
func begins(piece CallPiece, call *partialCall) bool {
	if piece.Name == "" {
		return false
	}
	if piece.ID != "" && call.id != "" {
		return piece.ID != call.id
	}
	return piece.Arguments != "" && json.Valid([]byte(call.arguments.Raw()))
}

// Reply is what has been put together, with ids that are unique. Arguments with half a character
// stay so: they are refused when they are parsed.
func (a *Assembler) Reply() loop.Reply {
	reply := loop.Reply{Text: a.Text.String(), Usage: a.Usage, Model: a.Model, Reasoning: a.Reasoning, Native: a.Native, Cut: EndOf(a.Finish) == EndCut}
	taken := make(map[string]bool, len(a.calls))
	for _, partial := range a.calls {
		call := loop.ToolCall{ID: partial.id, Name: partial.name, Arguments: partial.arguments.Raw()}
		if call.Name == "" && strings.TrimSpace(call.Arguments) == "" {
			continue
		}
		if strings.TrimSpace(call.Arguments) == "" && !reply.Cut {
			call.Arguments = "{}" // how some servers say: none
		}
		for call.ID == "" || taken[call.ID] {
			call.ID = newCallID()
		}
		taken[call.ID] = true
		reply.ToolCalls = append(reply.ToolCalls, call)
	}
	return reply
}

// Failed returns the usage of a failed reply, as far as the server reported it.
func (a *Assembler) Failed() loop.Reply { return loop.Reply{Usage: a.Usage} }

// newCallID makes an id that every known server takes back: nine letters and digits.
func newCallID() string { return rand.Text()[:9] }

// Ending is what the reason says for which a reply ended.
type Ending int

// Every ending.
const (
	EndUnknown  Ending = iota // no known end: the reply is no answer
	EndWhole                  // the reply is whole
	EndCut                    // it ended at a limit of tokens
	EndFiltered               // a filter stopped it
	EndFailed                 // the server failed, and may not the next time
)

// EndOf judges the reason for which a reply ended. Only the words that are known for it make a
// reply whole, or cut; what is left is a failure.
func EndOf(reason string) Ending {
	word := strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(reason))
	mentions := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(word, part) })
	}
	switch word {
	case "", // some servers end with [DONE] alone
		"stop", "stop_sequence", "stop_token", "end_turn", "end_of_turn", "eos", "eos_token",
		"end", "done", "complete", "completed", "finished", "normal",
		"tool_calls", "tool_call", "tool_use", "function_call":
		return EndWhole
	case "length", "model_length", "max_length", "max_tokens", "max_new_tokens", "max_output_tokens",
		"max_completion_tokens", "token_limit", "error_limit", "model_context_window_exceeded":
		return EndCut
	case "other", "image_other", "no_image", "unexpected_tool_call", "too_many_tool_calls",
		"missing_thought_signature", "finish_reason_unspecified": // Gemini
		return EndFailed
	case "language":
		return EndFiltered
	}
	switch {
	case mentions("filter", "safety", "sensitive", "refus", "prohibited", "blocklist", "recitation", "guardrail", "toxic", "spii", "armor", "jailbreak"):
		return EndFiltered
	case mentions("abort", "error", "fail", "cancel", "network", "resource", "timeout", "timed_out", "overload", "unavailable", "malformed"):
		return EndFailed
	default:
		return EndUnknown
	}
}

// Finish judges a reply by the reason for which it ended.
func (e *Endpoint) Finish(parts *Assembler) (loop.Reply, error) {
	reply := parts.Reply()
	reply.ID, reply.Finish = parts.ID, parts.Finish
	end := EndOf(parts.Finish)
	switch {
	case parts.Finish == "" && reply.Text == "" && len(reply.ToolCalls) == 0 && len(reply.Native) == 0:
		return parts.Failed(), e.NewError(TypeStreamBroken, "the answer was empty")
	case end == EndWhole, end == EndCut:
		return reply, nil
	case end == EndFiltered:
		return parts.Failed(), e.NewError(TypeContentFilter,
			fmt.Sprintf("the provider's content filter stopped the reply (%s %q)", e.api.FinishField, parts.Finish))
	}
	failure := e.NewError(TypeUnfinished,
		fmt.Sprintf("the reply is not complete: it ended with %s %q", e.api.FinishField, parts.Finish))
	failure.permanent = end == EndUnknown
	return parts.Failed(), failure
}
