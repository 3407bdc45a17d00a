package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ChannelPosition is how far a session has read a channel. It is the fold of the journal's reads,
// so a resumed session and a fork read on where the journal is.
type ChannelPosition struct {
	Channel  string `json:"channel"`
	Sequence uint64 `json:"sequence"`
}

// noteRead notes how far a channel is read.
func (s *session) noteRead(p *ChannelPosition) {
	if p == nil {
		return
	}
	if s.positions == nil {
		s.positions = make(map[string]uint64)
	}
	s.positions[p.Channel] = max(s.positions[p.Channel], p.Sequence)
}

// channels returns the fleet, whose sessions send each other messages.
func (t *turnRun) channels() (ports.Fleet, error) {
	if t.fleet == nil {
		return nil, protocol.Errorf(protocol.CodeToolFailed, "There are no channels here. Go on without them.")
	}
	return t.fleet, nil
}

// send sends a message. The end of ctx does not cut it short: a message that may be stored has no
// result.
func (t *turnRun) send(ctx context.Context, p *pendingCall, request wire.SendRequest) (string, error) {
	channels, err := t.channels()
	if err != nil {
		return "", err
	}
	name := wire.ChannelName(ctx, request.Channel)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	err = channels.SendMessage(ctx, name, ports.ChannelMessage{From: t.id, Call: p.event.CallID, Text: request.Text})
	return fmt.Sprintf("[sent to channel %s]", request.Channel), err
}

// readChannel reads messages, and notes how far.
func (t *turnRun) readChannel(ctx context.Context, request wire.ReadRequest, noted *Event) (string, error) {
	channels, err := t.channels()
	if err != nil {
		return "", err
	}
	read := ports.ChannelRead{Reader: t.id, Limit: request.Limit, Wait: request.Wait}
	if !request.All {
		t.mu.Lock()
		read.After = t.session.positions[request.Channel]
		t.mu.Unlock()
	}
	messages, err := channels.ReadMessages(ctx, wire.ChannelName(ctx, request.Channel), read)
	switch {
	case err != nil && ctx.Err() != nil && !detached(ctx):
		return "", protocol.Errorf(protocol.CodeCancelled, "The turn was stopped before a message came.")
	case err != nil:
		return "", err
	}
	if len(messages) == 0 {
		return fmt.Sprintf("[channel %s has no new messages]", request.Channel), nil
	}
	noted.Read = &ChannelPosition{Channel: request.Channel, Sequence: messages[len(messages)-1].Sequence}
	return messageTexts(messages), nil
}

// messageTexts is what a model reads of messages.
func messageTexts(messages []ports.ChannelMessage) string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = fmt.Sprintf("[message %d, from session %s, %s]\n%s", m.Sequence, m.From, m.Time.UTC().Format(time.RFC3339), m.Text)
	}
	return strings.Join(texts, "\n\n")
}

// maxTriggers bounds the triggers of a session.
const maxTriggers = 20

// errNoTriggers is the result of tools about triggers where no coordinator serves the turns.
func errNoTriggers() error {
	return protocol.Errorf(protocol.CodeToolFailed, "Triggers begin turns on coordinators that serve them, and this session is not served: "+
		"the user has started it with coordinator run, or it is a sub-agent. Wait with a command such as sleep or with read_messages and its argument wait, "+
		"or end your turn and tell the user when to go on. The user can use coordinator serve with coordinator submit or coordinator schedule.")
}

// triggerStore returns the triggers of the session. The turns of a sub-agent are not served.
func (t *turnRun) triggerStore(ctx context.Context) (ports.Triggers, error) {
	store := ports.TriggersOf(ctx)
	if store == nil || t.lineage.parent != nil {
		return nil, errNoTriggers()
	}
	return store, nil
}

// addTrigger sets a trigger of the session.
func (t *turnRun) addTrigger(ctx context.Context, p *pendingCall, request wire.TriggerRequest) (string, error) {
	store, err := t.triggerStore(ctx)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	seed, position := t.session.seed, t.session.positions[request.Channel]
	t.mu.Unlock()
	trigger := ports.Trigger{
		ID: "t-" + string(p.event.CallID), Call: p.event.CallID, Secret: wire.SeedOf(seed, p.event.CallID),
		At: request.At, Cron: request.Cron, TimeZone: request.TimeZone,
	}
	trigger.Firing = ports.Firing{Name: trigger.ID, By: trigger.Call}
	name := "The trigger " + trigger.ID
	switch {
	case request.Delay > 0:
		trigger.At = time.Now().UTC().Add(request.Delay).Round(time.Millisecond)
		fallthrough
	case request.Cron == "" && request.Channel == "":
		trigger.Prompt = "[" + name + " has fired: its time has come. It is removed.]"
	case request.Cron != "":
		trigger.Prompt = fmt.Sprintf("[%s has fired: a time of %q. It stays until remove_trigger.]", name, request.Cron)
	default:
		trigger.Channel, trigger.After = wire.ChannelName(ctx, request.Channel), position
		trigger.Firing.Channel = request.Channel
		trigger.Prompt = fmt.Sprintf("[%s has fired: channel %s has a message. It is removed; watch_channel waits for more.]", name, request.Channel)
	}
	if request.Prompt != "" {
		trigger.Prompt += "\n" + request.Prompt
	}
	all, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	here := func(other ports.Trigger) bool { return other.ID == trigger.ID }
	if len(all) >= maxTriggers && !slices.ContainsFunc(all, here) {
		return "", protocol.Errorf(protocol.CodeLimitReached, "The session has %d triggers, which is the maximum: remove one first.", maxTriggers)
	}
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	if err := store.Add(storing, trigger); err != nil {
		return "", err
	}
	if request.Delay > 0 { // a call that is made again has the time of the first one
		return fmt.Sprintf("[trigger %s is set: it fires after %s]", trigger.ID, request.Delay), nil
	}
	if request.Channel != "" {
		return fmt.Sprintf("[trigger %s is set: a new turn begins when a message comes to channel %s. End your turn now, unless you have other work.]",
			trigger.ID, request.Channel), nil
	}
	return fmt.Sprintf("[trigger %s is set: %s]", trigger.ID, when(&trigger)), nil
}

// when says when a trigger fires.
func when(t *ports.Trigger) string {
	at := t.At.UTC().Format(time.RFC3339)
	switch {
	case t.Channel != "":
		_, name, _ := strings.Cut(t.Channel, ".")
		return "at a message in channel " + name
	case t.Cron == "":
		return "at " + at
	case t.At.IsZero():
		return fmt.Sprintf("at the times %q", t.Cron)
	default:
		return fmt.Sprintf("at the times %q, next at %s", t.Cron, at)
	}
}

// triggers lists or removes triggers of the session.
func (t *turnRun) triggers(ctx context.Context, request wire.TriggersRequest) (string, error) {
	store, err := t.triggerStore(ctx)
	if err != nil {
		return "", err
	}
	if request.Remove != "" {
		return fmt.Sprintf("[trigger %s is removed]", request.Remove), store.Remove(ctx, request.Remove)
	}
	all, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "[The session has no triggers]", nil
	}
	lines := make([]string, len(all))
	for i := range all {
		_, prompt, _ := strings.Cut(all[i].Prompt, "\n")
		lines[i] = strings.TrimRight(fmt.Sprintf("%s: %s: %s", all[i].ID, when(&all[i]), prompt), ": ")
	}
	return strings.Join(lines, "\n"), nil
}

// aDay is the period of [ports.Unattended].Most.
const aDay = 24 * time.Hour

// unattended is what turns that no person began have used in the last day, and since a person began
// one; first is when the first of them began.
func (s *session) unattended(now time.Time) (used protocol.Spending, first time.Time) {
	for i := range slices.Backward(s.turns[s.first:]) {
		t := &s.turns[s.first+i]
		if t.trigger == "" || now.Sub(t.at) >= aDay {
			break
		}
		used, first = used.Add(t.spent), t.at
	}
	return used, first
}

// notBefore says why a turn that a firing begins must not begin yet, and when it may; "" if it may.
func (s *session) notBefore(u *ports.Unattended, now time.Time) (why string, at time.Time) {
	var begun []time.Time // the latest first
	for i := range slices.Backward(s.turns[s.first:]) {
		if t := &s.turns[s.first+i]; t.trigger != "" {
			begun = append(begun, t.at)
		}
	}
	if used, first := s.unattended(now); reached(u.Most, used, 1) != "" {
		return fmt.Sprintf("what the session may use in 24 hours without a person is used up (%s)", reached(u.Most, used, 1)), first.Add(aDay)
	}
	if u.Firing.By == "" { // a user has set its times
		return "", time.Time{}
	}
	if n := u.PerHour; n > 0 && len(begun) >= n && now.Sub(begun[n-1]) < time.Hour {
		return fmt.Sprintf("triggers have begun %d turns of the session within an hour, which is the maximum", n), begun[n-1].Add(time.Hour)
	}
	if len(begun) > 0 && now.Sub(begun[0]) < u.Floor {
		return fmt.Sprintf("turns that triggers begin are at least %s apart", u.Floor), begun[0].Add(u.Floor)
	}
	return "", time.Time{}
}

// postponed reports whether the turn of an input comes later, or not at all, because its session
// does too much without a person. Its trigger is stored again before that is journaled, so a
// coordinator that is lost in between leaves nothing behind that is not done again.
func (r *Runner) postponed(ctx context.Context, rec *recorder, input Input) (*protocol.Error, error) {
	u := ports.UnattendedOf(ctx)
	if rec.session.postponed[input.ID] {
		return protocol.Errorf(codes.TurnPostponed, "the turn was postponed"), nil
	}
	if u == nil || u.Firing == nil {
		return nil, nil //nolint:nilnil // it begins now
	}
	why, at := rec.session.notBefore(u, time.Now())
	if why == "" {
		return nil, nil //nolint:nilnil // as above
	}
	what, err := r.fireLater(ctx, rec, input, u.Firing, at)
	if err != nil {
		return nil, err
	}
	failure := protocol.Errorf(codes.TurnPostponed, "%s: %s", what, why)
	return failure, rec.record(ctx, Event{
		Type: EventTurnPostponed, Text: failure.Message, CallFields: CallFields{CallID: input.ID}, StartFields: StartFields{Trigger: u.Firing.Name},
	})
}

// fireLater has a trigger fire again at a time, unless it is a schedule, which comes again by
// itself: one turn stands for all of its times until then.
func (r *Runner) fireLater(ctx context.Context, rec *recorder, input Input, firing *ports.Firing, at time.Time) (what string, err error) {
	store := ports.TriggersOf(ctx)
	if store == nil || firing.By == "" {
		return fmt.Sprintf("the turn of %s is left out", firing.Name), nil
	}
	all, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	later := ports.Trigger{
		ID: "t-" + string(input.ID), Call: firing.By, Secret: wire.SeedOf(rec.session.seed, input.ID), At: at.UTC().Round(time.Millisecond),
		Prompt: input.Text, Firing: *firing,
	}
	waits := func(t ports.Trigger) bool { return t.Call == firing.By && t.Cron == "" && t.ID != later.ID }
	if slices.ContainsFunc(all, waits) {
		return fmt.Sprintf("the turn of trigger %s is left out, as one waits already", firing.Name), nil
	}
	if err := store.Add(ctx, later); err != nil {
		return "", fmt.Errorf("postpone trigger %s: %w", firing.Name, err)
	}
	return fmt.Sprintf("the turn of trigger %s is postponed to %s", firing.Name, later.At.Format(time.RFC3339)), nil
}

// Bounds of the messages with which a turn begins; the session reads the others.
const (
	maxDelivered      = 20
	maxDeliveredBytes = 64 << 10
)

// deliver adds the unread messages of a watched channel to the text of an input, and returns how
// far that is; nil if there are none.
func (r *Runner) deliver(ctx context.Context, rec *recorder, input *Input) (*ChannelPosition, error) {
	u := ports.UnattendedOf(ctx)
	if u == nil || u.Firing == nil || u.Firing.Channel == "" {
		return nil, nil //nolint:nilnil // there is no channel
	}
	name := u.Firing.Channel
	messages, err := r.fleet.ReadMessages(ctx, wire.ChannelName(ctx, name), ports.ChannelRead{Reader: rec.id, After: rec.session.positions[name], Limit: maxDelivered + 1})
	if err != nil {
		return nil, fmt.Errorf("read the messages of watched channel %s: %w", name, err)
	}
	if len(messages) == 0 {
		input.Text += "\n[Its messages have been read meanwhile.]"
		return nil, nil //nolint:nilnil // as above
	}
	n, size := 1, len(messages[0].Text)
	for n < min(len(messages), maxDelivered) && size+len(messages[n].Text) <= maxDeliveredBytes {
		size += len(messages[n].Text)
		n++
	}
	input.Text += "\n\n" + messageTexts(messages[:n])
	if n < len(messages) {
		input.Text += fmt.Sprintf("\n\n[Channel %s has more messages: read_messages returns them.]", name)
	}
	return &ChannelPosition{Channel: name, Sequence: messages[n-1].Sequence}, nil
}

// askUser puts the question of a tool call to a person, and returns the answer; a failure says why
// there is none. The question is in the journal before it counts, so a resumed turn asks again.
func (t *turnRun) askUser(ctx context.Context, p *pendingCall, request wire.PersonRequest, noted *Event) (string, error) {
	if t.fleet == nil {
		return "", protocol.Errorf(protocol.CodeToolFailed, "There is nobody to ask. Go on without an answer.")
	}
	asked := p.as(EventQuestionAsked)
	asked.Question, asked.Lane = &request.Question, string(protocol.SessionPool)+"/session/"+string(t.id)
	listening := func() error {
		if p.asked[request.Question.ID] != nil { // by an earlier run
			t.notify(asked)
			return nil
		}
		return t.record(ctx, asked)
	}
	limited, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	answer, err := t.fleet.Ask(limited, t.id, p.event.CallID, request.Question, request.Fits, listening)
	noted.By = prose.Valid(answer.By)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrDetached):
		return "", cause
	case err != nil && cause != nil:
		return "", protocol.Errorf(protocol.CodeCancelled, "The turn was stopped before anybody answered.")
	case errors.Is(err, context.DeadlineExceeded):
		return "", protocol.Errorf(protocol.CodeDeadline, "Nobody answered within %s. Go on without an answer, or end your turn and say what you need.", request.Timeout)
	case err != nil:
		return "", fmt.Errorf("ask a person: %w", err)
	case answer.Action != protocol.ActionAccept:
		return "", protocol.Errorf(protocol.CodeToolFailed, askedDeclined)
	}
	return textOf(answer), nil
}

// askedDeclined is what a model reads of a person who does not answer.
const askedDeclined = "The user was asked and declined to answer. Go on without an answer."

// textOf is the text of an answer that fits.
func textOf(answer protocol.Answer) string {
	var content struct {
		Answer string `json:"answer"`
	}
	_ = json.Unmarshal(answer.Content, &content) // it fits
	return prose.Valid(content.Answer)
}
