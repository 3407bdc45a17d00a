package session

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What an agent does is live only, and comes behind the reply that called it: each event of it is
// passed on, and a late piece of that reply is not.
func TestFollowers_GetWhatAnAgentDoes(t *testing.T) {
	t.Parallel()
	for name, follow := range map[string]func(context.Context, *rig, func(loop.Event)) error{
		"events": func(ctx context.Context, r *rig, passed func(loop.Event)) error {
			for p, err := range NewTails(r.Fleet).Tail(ctx, "s", Position{}) {
				if err != nil {
					return err
				}
				if p.Event != nil {
					passed(*p.Event)
				}
			}
			return nil
		},
		"turn": func(ctx context.Context, r *rig, passed func(loop.Event)) error {
			_, err := NewTails(r.Fleet).Follow(ctx, "s", passed, func(loop.Event) {})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			journaled(t, r.Fleet, "s", time.Unix(1, 0).UTC(), "")
			events, over := make(chan loop.Event, 1000), make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer func() {
				cancel()
				require.ErrorIs(t, <-over, context.Canceled)
			}()
			go func() { over <- follow(ctx, r, func(e loop.Event) { events <- e }) }()
			for (<-events).Type != loop.EventModelReply { //nolint:revive // up to the reply
			}
			turn, moves := wire.NewCallID("s", "", 1, 0, 0), 0
			for seq := 1; moves < 2; {
				for _, kind := range []loop.EventType{loop.EventTextDelta, loop.EventAgentMoved} {
					data, err := json.Marshal(loop.Event{Type: kind, SessionID: "s", Turn: 1, Step: 1, Text: "late or live"})
					require.NoError(t, err)
					body, err := wire.Encode(&wire.Frame{CallID: turn, Seq: uint64(seq), Kind: wire.FrameEvent, WorkerID: "w", Attempt: 1, Data: protocol.Bytes(data)})
					require.NoError(t, err)
					require.NoError(t, r.NC.Publish(wire.LiveSubject(r.Name, "s", turn), body))
					seq++
				}
				select {
				case e := <-events:
					require.Equal(t, loop.EventAgentMoved, e.Type)
					moves++
				case <-time.After(50 * time.Millisecond): // it may not listen yet
				}
			}
		})
	}
}

// Readers of one session read its history once together, and one that takes nothing holds up no
// other one.
func TestTails_ShareHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var last uint64
	const messages, readers = 300, 30 // more than are kept
	for n := range messages {
		last = mustAppend(t, r.Journal, "s", last, loop.Event{Type: loop.EventBudgetLow, Turn: 1, Step: n})
	}
	tails := NewTails(r.Fleet)
	ctx, cancel := context.WithCancel(t.Context())
	var idle, all sync.WaitGroup
	defer idle.Wait()
	defer cancel()
	began := make(chan struct{})
	idle.Go(func() {
		for _, err := range tails.Tail(ctx, "s", Position{}) {
			assert.NoError(t, err) //nolint:testifylint // in another goroutine
			close(began)
			<-ctx.Done()
			return
		}
	})
	<-began
	before := r.NC.Stats().OutMsgs
	for range readers {
		all.Go(func() {
			var seen int
			for p, err := range tails.Tail(ctx, "s", Position{}) {
				if err != nil || p.Event != nil && p.Event.Step != seen {
					t.Errorf("event %d: %v, %v", seen, p.Event, err)
					return
				}
				if p.Event != nil {
					seen++
				}
				if seen == messages {
					return
				}
			}
		})
	}
	all.Wait()
	require.Less(t, r.NC.Stats().OutMsgs-before, uint64(messages*readers/5))
}
