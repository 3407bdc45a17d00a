package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxContent bounds a text or a value in an event, in bytes. What waits for a person is whole.
const maxContent = 64 << 10

// Event is the body of a delivery.
type Event struct {
	Type EventType `json:"type"`
	// Timestamp is when it happened.
	Timestamp time.Time `json:"timestamp"`
	Data      any       `json:"data"`
}

// TurnEnd is the data of [TurnEnded].
type TurnEnd struct {
	Tenant    protocol.Tenant    `json:"tenant"`
	SessionID protocol.SessionID `json:"session_id"`
	Turn      int                `json:"turn"`
	Outcome   string             `json:"outcome"` // answered, failed, limit_reached or interrupted
	Text      string             `json:"text"`
	Answer    json.RawMessage    `json:"answer,omitempty"` // the structured answer
	Error     *protocol.Error    `json:"error,omitempty"`
	Usage     *protocol.Usage    `json:"usage,omitempty"`
	CostUSD   *float64           `json:"cost_usd,omitempty"`
	// Truncated says that the session has more than Text and Answer.
	Truncated bool `json:"truncated,omitempty"`
}

// CallEnd is the data of [CallEnded].
type CallEnd struct {
	Tenant    protocol.Tenant    `json:"tenant"`
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	Status    protocol.Status    `json:"status"`
	Error     *protocol.Error    `json:"error,omitempty"`
	Value     json.RawMessage    `json:"value,omitempty"`
	// Truncated says that the call's result has a value, which is too large.
	Truncated bool `json:"truncated,omitempty"`
}

// Waiting is the data of [ApprovalWaiting] and [QuestionWaiting]: what the list of waiting calls
// has, whole. The model has written the arguments, and the question of a tool that asks for it, but
// nothing about them.
type Waiting struct {
	Tenant protocol.Tenant `json:"tenant"`
	report.Question
}

// TestData is the data of [Test].
type TestData struct {
	Webhook string `json:"webhook_id"`
}

// found is an event in a message of a source.
type found struct {
	index   int
	event   EventType
	session protocol.SessionID
	call    protocol.CallID // of a result
}

// journaled are the events of a journal that webhooks may get.
var journaled = map[loop.EventType]EventType{ //nolint:gochecknoglobals // a constant
	loop.EventTurnEnded: TurnEnded, loop.EventApprovalAsked: ApprovalWaiting, loop.EventQuestionAsked: QuestionWaiting,
}

// find returns the events that a message has.
func (s source) find(msg jetstream.Msg) ([]found, error) {
	if s.name != "s" {
		return findResult(msg)
	}
	may := false
	for e := range journaled {
		may = may || bytes.Contains(msg.Data(), []byte(`"type":"`+string(e)+`"`)) // in a text the quotes are escaped
	}
	if !may {
		return nil, nil
	}
	var events []loop.Event
	if err := json.Unmarshal(msg.Data(), &events); err != nil {
		return nil, err
	}
	var all []found
	for i := range events {
		if of, is := journaled[events[i].Type]; is {
			all = append(all, found{i, of, events[i].SessionID, ""})
		}
	}
	return all, nil
}

// findResult returns the end of a call if no turn has made the call. Calls of turns have ids that
// derive from a secret, and no digest.
func findResult(msg jetstream.Msg) ([]found, error) {
	r, err := wire.DecodeResult(msg.Data())
	if err != nil {
		return nil, err
	}
	made := r.Digest != "" && r.Digest != lane.DigestVoid || wire.IsRandomCallID(r.CallID)
	kind := wire.ValueKindOf(r.Value)
	ofFleet := kind == wire.KindTurnRun || kind == wire.KindMCPList || strings.HasPrefix(string(kind), "workspace_")
	if !made || ofFleet {
		return nil, nil
	}
	return []found{{0, CallEnded, r.SessionID, r.CallID}}, nil
}

// origin is what is known of a session when an event of it is found.
type origin struct {
	owner  judge.Owner
	known  bool               // something says who the owner is
	parent protocol.SessionID // of a sub-agent
	// begins is behind what the session has copied from another one.
	begins session.Position
}

// has reports whether an event is the session's own.
func (o origin) has(at session.Position) bool {
	return at.Sequence > o.begins.Sequence || at.Sequence == o.begins.Sequence && at.Index > o.begins.Index
}

// originOf reads the beginning of a journal, which says whose the session is, and up to where it is
// a copy.
func originOf(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) (o origin, err error) {
	owned, copies := false, protocol.CallID("")
	for m, err := range f.Journal.Messages(ctx, id, 1) {
		if err != nil {
			return o, err
		}
		if m.Removed {
			o, owned, copies = origin{}, false, ""
			continue
		}
		for i := range m.Events {
			switch e := &m.Events[i]; {
			case e.Type == loop.EventCopyStarted:
				o, owned, copies = origin{owner: judge.Owner{Tenant: e.Tenant, By: e.By}}, e.Tenant != "", e.CallID
			case e.Type == loop.EventSessionStarted:
				o.owner, owned = judge.Owner{Tenant: e.Tenant, By: e.By}, true
				if e.Parent != nil {
					o.parent = e.Parent.SessionID
				}
			case (e.Type == loop.EventSessionForked || e.Type == loop.EventImported) && e.CallID == copies:
				o.begins, copies = session.Position{Sequence: m.Sequence, Index: i}, ""
			}
		}
		if copies == "" {
			break
		}
	}
	if copies != "" { // it is not completed
		o.begins.Sequence = math.MaxUint64
	}
	if o.known = owned; !owned {
		owner, _, err := session.Owner(ctx, f, id)
		if err != nil {
			return o, err
		}
		if owner != nil {
			o.owner, o.known = *owner, true
		}
	}
	if o.owner.Tenant == "" {
		o.owner.Tenant = judge.DefaultTenant
	}
	return o, nil
}

// unknownTenant is the owner of a call whose sender is not known: only the fleet's operator gets
// it.
const unknownTenant protocol.Tenant = ""

// senderOf is the tenant of a call in a session that has no owner, which may have calls of several
// tenants. The sender has proved to the fleet which one it is: what the result says without a
// proof, its worker may have made up.
func (s *Sender) senderOf(ctx context.Context, header nats.Header, call protocol.CallRef) (protocol.Tenant, error) {
	about := wire.AboutOfHeader(header.Get(wire.HeaderAbout))
	if cmp.Or(about.Tenant, judge.DefaultTenant) == judge.DefaultTenant {
		return judge.DefaultTenant, nil
	}
	secret, err := s.fleet.Secret(ctx)
	if err != nil {
		return unknownTenant, err
	}
	if proof := wire.Proof(secret, s.fleet.Name, call, about.Tenant, about.By); !hmac.Equal([]byte(proof), []byte(header.Get(wire.HeaderProof))) {
		return unknownTenant, nil
	}
	return about.Tenant, nil
}

// errGone means that what an event is about is not stored any more.
var errGone = errors.New("what it is about is not stored any more: the session was removed, or the result has expired")

// body reads an event by its reference, and returns the body of its delivery.
func (s *Sender) body(ctx context.Context, h *Hook, ref reference) ([]byte, error) {
	var e *Event
	of, known := s.sources[ref.source]
	switch {
	case ref.source == sourceTest:
		e = &Event{Test, time.UnixMicro(int64(ref.sequence)).UTC(), TestData{h.ID}} //nolint:gosec // it was a time
	case !known:
		return nil, fmt.Errorf("this coordinator has no connection to the servers of %s (--pool-nats)", ref.source)
	default:
		stream, err := of.js.Stream(ctx, of.stream)
		if err != nil {
			return nil, err
		}
		msg, err := stream.GetMsg(ctx, ref.sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, errGone
		}
		if err == nil && ref.source == "s" {
			e, err = s.ofJournal(ctx, ref, msg)
		} else if err == nil {
			e, err = ofResult(ref, msg)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(e)
}

// ofJournal is an event of a session.
func (s *Sender) ofJournal(ctx context.Context, ref reference, msg *jetstream.RawStreamMsg) (*Event, error) {
	var events []loop.Event
	if err := json.Unmarshal(msg.Data, &events); err != nil || ref.index >= len(events) {
		return nil, errors.Join(errGone, err)
	}
	e := &events[ref.index]
	if e.Type == loop.EventTurnEnded {
		end := TurnEnd{Tenant: ref.Tenant, SessionID: e.SessionID, Turn: e.Turn, Outcome: e.Status, Error: cutError(e.Error), Usage: e.Usage, CostUSD: e.CostUSD}
		end.Text = prose.Cut(e.Text, maxContent)
		if len(e.Answer) <= maxContent {
			end.Answer = e.Answer
		}
		end.Truncated = len(e.Text) > maxContent || len(end.Answer) < len(e.Answer) || e.Status == string(loop.OutcomeAnswered) && e.Text == ""
		return &Event{TurnEnded, e.Time, end}, nil
	}
	waits := Waiting{Tenant: ref.Tenant, Question: report.Question{
		SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text, Rule: e.Rule, Source: e.Source, Scope: e.Scope,
		AskedAt: e.Time, Question: e.Question, Lane: e.Lane,
	}}
	if e.Question != nil {
		waits.Reason = e.Question.Message
	} else if e.Arguments == "" { // the journal had no room for them a second time
		var err error
		if waits.Arguments, err = s.arguments(ctx, e); err != nil {
			return nil, err
		}
	}
	return &Event{journaled[e.Type], e.Time, waits}, nil
}

// arguments are those of a call that waits, as its reply has them.
func (s *Sender) arguments(ctx context.Context, asked *loop.Event) (string, error) {
	history, err := s.fleet.Journal.Load(ctx, asked.SessionID)
	if err != nil {
		return "", err
	}
	for _, e := range slices.Backward(history.Events) {
		if e.Type == loop.EventModelReply && e.Turn == asked.Turn && e.Step == asked.Step && asked.Index < len(e.ToolCalls) {
			return e.ToolCalls[asked.Index].Arguments, nil
		}
	}
	return "", nil
}

// ofResult is the end of a call.
func ofResult(ref reference, msg *jetstream.RawStreamMsg) (*Event, error) {
	r, err := wire.DecodeResult(msg.Data)
	if err != nil {
		return nil, errors.Join(errGone, err)
	}
	end := CallEnd{Tenant: ref.Tenant, SessionID: r.SessionID, CallID: r.CallID, Status: r.Status, Error: cutError(r.Error)}
	if _, elsewhere := r.Value.(wire.Stored); elsewhere {
		end.Truncated = true
	} else if r.Value != nil {
		if end.Value, err = wire.EncodeValue(r.Value); err != nil {
			return nil, err
		}
		if end.Truncated = len(end.Value) > maxContent; end.Truncated {
			end.Value = nil
		}
	}
	return &Event{CallEnded, r.FinishedAt, end}, nil
}

// cutError is an error with a bounded message.
func cutError(e *protocol.Error) *protocol.Error {
	if e == nil || len(e.Message) <= maxContent {
		return e
	}
	cut := *e
	cut.Message = prose.Cut(e.Message, maxContent)
	return &cut
}
