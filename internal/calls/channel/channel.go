// Package channel stores messages between sessions on JetStream.
//
// A channel is the messages below one prefix of subjects, TENANT.NAME, in the order of the stream.
// The subject of a message ends with the sender and the call that sends it, and the stream takes
// one message a subject. So a call that is run again, by another coordinator or by one that was
// stopped for long, stores nothing, without a window of time, while the channel has the message.
// The server republishes each message when it is stored; readers that wait listen to that.
package channel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds. Beyond them the oldest messages go.
const (
	MaxMessages = 1000 // of a channel
)

const (
	lookAfter = time.Second // how often a reader that waits looks, in case it missed a notice
)

// Store is the channels of a fleet. It is safe for concurrent use.
type Store struct {
	fleet  protocol.Fleet
	js     jetstream.JetStream
	stream jetstream.Stream
}

// Open opens the store, which is made with the replicas of the fleet's journals if it is missing.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	stream, err := js.Stream(ctx, wire.ChannelsStream(fleet))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		var journals jetstream.Stream
		if journals, err = js.Stream(ctx, wire.SessionsStream(fleet)); err == nil {
			source, destination := wire.SentMapping(fleet)
			stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
				Name: wire.ChannelsStream(fleet), Subjects: []string{source}, Discard: jetstream.DiscardOld, MaxBytes: natsio.ChannelBytes,
				Replicas:  journals.CachedInfo().Config.Replicas,
				RePublish: &jetstream.RePublish{Source: source, Destination: destination, HeadersOnly: true},
				FirstSeq:  natsio.SequenceNow(), // sessions remember how far they have read
			})
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			stream, err = js.Stream(ctx, wire.ChannelsStream(fleet))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the channels of the fleet: %w", err)
	}
	return &Store{fleet: fleet, js: js, stream: stream}, nil
}

// headerOwner is the header with the principal who has sent the first message of a channel, which
// every later one repeats; the operator, and a channel of an earlier version, has none.
const headerOwner = "Tf-Owner"

// Owner returns the owner of a channel, whose name says which tenant that is of. A channel without
// messages belongs to the principal of ctx, who may make it.
func (s *Store) Owner(ctx context.Context, channel string) (judge.Owner, error) {
	tenant, _, _ := strings.Cut(channel, ".")
	owner := judge.Owner{Tenant: protocol.Tenant(tenant)}
	first, err := s.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(wire.MessageSubject(s.fleet, channel, "*", "*")))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		owner.By = judge.Of(ctx).By()
	case err != nil:
		return owner, fmt.Errorf("read channel %s: %w", channel, err)
	default:
		owner.By = first.Header.Get(headerOwner)
	}
	return owner, nil
}

// may judges an act on a channel.
func may(ctx context.Context, act judge.Act, channel string, owner judge.Owner) error {
	if err := judge.Judge(ctx, act, judge.Object{Kind: judge.Channel, ID: channel, Owner: owner}); err != nil {
		return protocol.Errorf(protocol.CodePolicyDenied, "%v", err)
	}
	return nil
}

// Send stores a message, unless the channel has the one of its call. It tries until ctx ends. A
// [protocol.Error] says that the server refused it; after any other error it may be stored.
func (s *Store) Send(ctx context.Context, channel string, m ports.ChannelMessage) error {
	var owner judge.Owner
	err := natsio.UntilKnown(ctx, func(ctx context.Context) (err error) {
		owner, err = s.Owner(ctx, channel)
		return err
	}, nil)
	if err == nil {
		err = may(ctx, judge.Use, channel, owner)
	}
	if err != nil {
		return err
	}
	header := nats.Header{}
	if owner.By != "" {
		header.Set(headerOwner, owner.By)
	}
	err = natsio.UntilKnown(ctx, func(ctx context.Context) error {
		message := &nats.Msg{Subject: wire.MessageSubject(s.fleet, channel, m.From, m.Call), Header: maps.Clone(header), Data: []byte(m.Text)}
		_, err := s.js.PublishMsg(ctx, message, jetstream.WithExpectLastSequencePerSubject(0))
		if natsio.OutcomeOf(err) == natsio.Conflict { // by an earlier try
			return nil
		}
		return err
	}, nil)
	switch {
	case err == nil:
		return s.stream.Purge(ctx, jetstream.WithPurgeSubject(wire.MessageSubject(s.fleet, channel, "*", "*")), jetstream.WithPurgeKeep(MaxMessages))
	case natsio.NoRoom(err):
		return protocol.Errorf(protocol.CodeFleetFull, "The fleet has no room for messages.")
	default:
		return fmt.Errorf("send to channel %s: %w", channel, err)
	}
}

// Next returns the first message behind a sequence that is not the reader's own; nil when there is
// none.
func (s *Store) Next(ctx context.Context, channel string, reader protocol.SessionID, after uint64) (*ports.ChannelMessage, error) {
	for {
		msg, err := s.stream.GetMsg(ctx, after+1, jetstream.WithGetMsgSubject(wire.MessageSubject(s.fleet, channel, "*", "*")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, nil //nolint:nilnil // there is none
		}
		if err != nil {
			return nil, fmt.Errorf("read channel %s: %w", channel, err)
		}
		_, from, call := wire.PartsOfMessage(msg.Subject)
		if after = msg.Sequence; from != reader {
			return &ports.ChannelMessage{Sequence: msg.Sequence, Time: msg.Time, From: from, Call: call, Text: string(msg.Data)}, nil
		}
	}
}

// Read returns messages as [ports.Fleet] says.
func (s *Store) Read(ctx context.Context, channel string, read ports.ChannelRead) ([]ports.ChannelMessage, error) {
	if judge.Bounded(ctx) {
		owner, err := s.Owner(ctx, channel)
		if err == nil {
			err = may(ctx, judge.See, channel, owner)
		}
		if err != nil {
			return nil, err
		}
	}
	sent := make(chan *nats.Msg, 1)
	if read.Wait > 0 {
		subscription, err := s.Listen(channel, sent)
		if err != nil {
			return nil, err
		}
		defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	}
	var messages []ports.ChannelMessage
	for end := time.Now().Add(read.Wait); ; {
		for len(messages) < read.Limit {
			m, err := s.Next(ctx, channel, read.Reader, read.After)
			if err != nil {
				return nil, err
			}
			if m == nil {
				break
			}
			messages, read.After = append(messages, *m), m.Sequence
		}
		left := time.Until(end)
		if len(messages) > 0 || left <= 0 {
			return messages, nil
		}
		select {
		case <-sent:
		case <-time.After(min(left, lookAfter)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Listen sends a notice for each message of a channel that is stored, "*.*" of any, as far as they
// are taken: more get lost.
func (s *Store) Listen(channel string, notices chan *nats.Msg) (*nats.Subscription, error) {
	subscription, err := s.js.Conn().ChanSubscribe(wire.SentFilter(s.fleet, channel), notices)
	if err != nil {
		return nil, fmt.Errorf("listen to channel %s: %w", channel, err)
	}
	return subscription, nil
}
