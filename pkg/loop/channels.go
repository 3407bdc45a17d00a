package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
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

// runInOrder carries out those of a step's calls that are about channels and triggers, in their
// order.
func (b *batch) runInOrder(ctx context.Context) error {
	for _, p := range b.asking {
		var err error
		switch request := p.plan.Session.(type) {
		case wire.SendRequest:
			err = b.runOutside(ctx, p, func(ctx context.Context, _ *Event) (string, error) { return b.send(ctx, p, request) })
		case wire.ReadRequest:
			err = b.runOutside(ctx, p, func(ctx context.Context, e *Event) (string, error) { return b.readChannel(ctx, request, e) })
		case wire.TriggerRequest:
			err = b.runOutside(ctx, p, func(ctx context.Context, _ *Event) (string, error) { return b.addTrigger(ctx, p, request) })
		case wire.TriggersRequest:
			err = b.runOutside(ctx, p, func(ctx context.Context, _ *Event) (string, error) { return b.triggers(ctx, request) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runOutside carries out a call that the session answers with what is stored outside of its
// journal, and settles it. An error leaves the call without result.
func (b *batch) runOutside(ctx context.Context, p *pendingCall, do func(context.Context, *Event) (string, error)) error {
	if detached(ctx) {
		return context.Cause(ctx)
	}
	ctx, span := b.startTool(ctx, p)
	defer span.End()
	start := time.Now()
	var noted Event
	text, err := do(ctx, &noted)
	failure, refused := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		event := p.local(protocol.StatusOK, b.keeps(p).fitted(ctx, p.event.CallID, prose.Valid(text)), nil, time.Since(start))
		event.Read = noted.Read
		b.settle(event)
		return nil
	case refused:
		failSpan(span, failure)
		status := protocol.StatusFailed
		if failure.Code == protocol.CodeCancelled {
			status = protocol.StatusCancelled
		}
		b.settle(p.local(status, "", failure, time.Since(start)))
		return nil
	default:
		failSpan(span, err)
		return fmt.Errorf("tool %s: %w", p.event.Name, err)
	}
}

// channels are those of the dispatcher.
func (t *turnRun) channels() (ports.Channels, error) {
	channels, is := t.dispatcher.(ports.Channels)
	if !is {
		return nil, protocol.Errorf(protocol.CodeToolFailed, "There are no channels here. Go on without them.")
	}
	return channels, nil
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
