package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// journalTimeout bounds one append. An append is never cut short by the end of a
// run, because what was learned must not be lost.
const journalTimeout = 15 * time.Second

// overLimitTimeout is journalTimeout for a turn whose time limit is over.
const overLimitTimeout = 5 * time.Second

// recorder extends one session: in the journal first, then in the fold, then
// before the observer, which sees [urgent] events first. It is safe for concurrent use.
type recorder struct {
	id      protocol.SessionID
	journal Journal
	observe func(Event)
	logger  *slog.Logger

	mu      pause.Mutex
	session *session // written under mu; the turn reads it while nothing else runs
	last    uint64   // sequence that the next append builds on
	fresh   bool     // nothing was journaled when the session was loaded
	removed Removal  // the last removal of a session of its name
	lost    error    // the first failed append; nothing is journaled after it
	above   *account // of the parents of a sub-agent; nil without
	author  string   // the person
	owner   judge.Owner
	additions
}

// newRecorder loads a session.
func (r *Runner) newRecorder(ctx context.Context, id protocol.SessionID) (*recorder, error) {
	history, err := r.journal.Load(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("load session %s: %w", id, err)
	}
	s, err := fold(history.Events)
	if err != nil {
		return nil, fmt.Errorf("load session %s: %w", id, err)
	}
	return &recorder{
		id: id, journal: r.journal, observe: r.opts.Observe, logger: r.opts.Logger,
		session: s, last: history.Last, fresh: len(history.Events) == 0, removed: history.Removed, author: prose.Valid(r.opts.Author.Name),
		owner: judge.OwnerOf(history),
	}, nil
}

// sequence returns the sequence of the last event that this process knows to be journaled.
func (r *recorder) sequence() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// record journals events in their order, with less in them where the journal takes no more. An
// error that wraps [ErrEventTooLarge] stored nothing. After any other one it is not known whether
// they were stored, so every later call fails with the same error.
func (r *recorder) record(ctx context.Context, events ...Event) error {
	if len(events) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != nil {
		return r.lost
	}
	events, err := r.store(ctx, events)
	if err != nil {
		return err
	}
	return r.publish(ctx, events)
}

// store journals events, and returns them as they were journaled. The lock is held.
func (r *recorder) store(ctx context.Context, events []Event) ([]Event, error) {
	now := time.Now().UTC()
	for i := range events {
		events[i].SessionID, events[i].Time = r.id, now
		if urgent(&events[i]) {
			r.observe(events[i])
		}
	}
	most := journalTimeout
	if isTimeLimit(context.Cause(ctx)) {
		most = overLimitTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	last, err := r.journal.Append(ctx, r.id, r.last, events...)
	if errors.Is(err, ErrEventTooLarge) {
		events = lean(events)
		last, err = r.journal.Append(ctx, r.id, r.last, events...)
	}
	if err != nil {
		err = fmt.Errorf("journal %s of session %s: %w", events[0].Type, r.id, err)
		if !errors.Is(err, ErrEventTooLarge) {
			r.lost = err
		}
		return nil, err
	}
	r.last = last
	return events, nil
}

// lean returns events that were too large for the journal, so that the session can continue:
// without arguments (the reply has them) and reasoning, and with shortened results. What a person
// is asked stays whole.
func lean(events []Event) []Event {
	events = slices.Clone(events)
	for i := range events {
		switch e := &events[i]; e.Type {
		case EventToolCall:
			e.Arguments = ""
		case EventTurnEnded:
			e.Text, e.Answer = "", nil
		case EventModelReply:
			e.Reasoning = nil
		case EventToolResult, EventJobEnded, EventNativeCall:
			e.Content, e.Diff, e.Image, e.Tries = cut(e.Content, tooLargeForJournal), "", nil, nil
			if e.Effect != nil {
				e.Effect = &Effect{Reaches: e.Effect.Reaches}
			}
			if e.Error != nil {
				e.Error = &protocol.Error{Code: e.Error.Code, Message: cut(e.Error.Message, tooLargeForJournal)}
			}
		default:
		}
	}
	return events
}

// tooLargeForJournal is why a result is cut.
const tooLargeForJournal = "the session journal takes no more at once"

// publish folds and logs what has been journaled, and passes it to the observer.
func (r *recorder) publish(ctx context.Context, events []Event) error {
	for i := range events {
		before := r.session.spent
		if err := r.session.apply(&events[i]); err != nil {
			r.lost = err
			return err
		}
		r.above.add(withoutTime(subtract(r.session.spent, before)))
		if events[i].Type == EventToolResult {
			r.logResult(ctx, &events[i])
		}
		if urgent(&events[i]) {
			continue
		}
		told := events[i]
		told.Seed, told.Bound = "", nil
		r.observe(told)
	}
	return nil
}

// urgent reports whether observers see an event before the journal has it, which may take long: a
// call declines its question if no observer accepts it within [wire.AskWait].
func urgent(e *Event) bool { return e.Type == EventQuestionAsked }

// logResult writes the one record of a tool call. Its name stays out: a model wrote it.
func (r *recorder) logResult(ctx context.Context, e *Event) {
	var code protocol.Code
	if e.Error != nil {
		code = e.Error.Code
	}
	r.logger.DebugContext(ctx, "tool call ended",
		slog.String("session_id", string(r.id)), slog.String("call_id", string(e.CallID)),
		slog.Int("turn", e.Turn), slog.Int("step", e.Step), slog.Int("index", e.Index),
		slog.String("status", e.Status), slog.String("code", string(code)))
}

// notify passes a live event to the observer only.
func (r *recorder) notify(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.SessionID, e.Time = r.id, time.Now().UTC()
	r.observe(e)
}

// uniqueIDs returns the calls as they are journaled: with ids that no other tool
// call of the conversation has, because providers answer calls by id alone. An id
// that is empty or taken is replaced. A journal is JSON and would replace what is not UTF-8 itself;
// doing it first keeps a session that runs and one that is resumed the same.
func uniqueIDs(calls []ToolCall, taken map[string]bool, turn, step int) []ToolCall {
	unique := make([]ToolCall, len(calls))
	own := make(map[string]bool, len(calls))
	for i, call := range calls {
		id := prose.Valid(call.ID)
		place := fmt.Sprintf("call_%d_%d_%d", turn, step, i)
		for n := 1; id == "" || taken[id] || own[id]; n++ {
			id = place
			place = fmt.Sprintf("call_%d_%d_%d", turn, step, i) + "_" + strconv.Itoa(n)
		}
		own[id] = true
		unique[i] = ToolCall{ID: id, Name: prose.Valid(call.Name), Arguments: validArguments(call.Arguments)}
	}
	return unique
}

// validArguments replaces invalid UTF-8 in arguments by \u escapes of half a surrogate pair, which
// no argument may have. So the tool call is refused, and never made with other characters than the
// model wrote. Half a pair keeps its number, and a byte becomes \udc00 and its value.
func validArguments(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r != utf8.RuneError || size > 1:
			b.WriteString(s[:size])
		case len(s) >= 3 && s[0] == 0xED && s[1]&0xE0 == 0xA0 && s[2]&0xC0 == 0x80:
			size = 3
			fmt.Fprintf(&b, `\u%04x`, 0xD000|int(s[1]&0x3F)<<6|int(s[2]&0x3F))
		default:
			fmt.Fprintf(&b, `\udc%02x`, s[0])
		}
		s = s[size:]
	}
	return b.String()
}

// Keys of span attributes that package genaiconv does not have. Prompts never are
// attributes, arguments and outputs only if [genaiconv.Captures].
const (
	keyErrorType = attribute.Key("error.type")
	keyTurn      = attribute.Key("toolfleet.turn")
	keyStep      = attribute.Key("toolfleet.step")
	keySteps     = attribute.Key("toolfleet.steps")
	keyOutcome   = attribute.Key("toolfleet.outcome")
	keyCallID    = attribute.Key("toolfleet.call_id")
	keyToolNames = attribute.Key("toolfleet.tool_names")
)

// attributes returns the span attributes of an operation of the turn's model.
func (t *turnRun) attributes(operation string) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		genaiconv.Operation.String(operation), genaiconv.ConversationID.String(string(t.id)), genaiconv.RequestModel.String(t.opts.ModelName),
	}
	if provider := t.provider(); provider != "" {
		attributes = append(attributes, genaiconv.Provider.String(provider))
	}
	if name := t.agentName(); name != "" {
		attributes = append(attributes, genaiconv.AgentName.String(name))
	}
	if operation == genaiconv.OperationChat && t.session.summary != nil {
		attributes = append(attributes, genaiconv.ConversationCompacted.Bool(true))
	}
	return attributes
}

// replyAttributes returns the span attributes that only some providers and replies have.
func replyAttributes(reply *Reply, first time.Duration) []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if reply.ID != "" {
		attributes = append(attributes, genaiconv.ResponseID.String(reply.ID))
	}
	if reply.Finish != "" {
		attributes = append(attributes, genaiconv.FinishReasons.StringSlice([]string{reply.Finish}))
	}
	if first > 0 {
		attributes = append(attributes, genaiconv.TimeToFirstChunk.Float64(first.Seconds()))
	}
	if n := reply.Usage.CachedTokens; n > 0 {
		attributes = append(attributes, genaiconv.CacheReadTokens.Int64(n))
	}
	if n := reply.Usage.ReasoningTokens; n > 0 {
		attributes = append(attributes, genaiconv.ReasoningTokens.Int64(n))
	}
	return attributes
}

func spanName(operation, subject string) string {
	if subject == "" {
		return operation
	}
	return operation + " " + subject
}

// failSpan marks a span as failed. The message stays out of it: it may quote what
// a model or a tool wrote.
func failSpan(span trace.Span, err error) {
	kind := "_OTHER"
	var typed interface{ ErrorType() string }
	if errors.As(err, &typed) {
		kind = typed.ErrorType()
	}
	span.SetAttributes(keyErrorType.String(kind))
	span.SetStatus(codes.Error, kind)
}
