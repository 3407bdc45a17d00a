package crash

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// reverted undoes two effects by calls of their own.
func reverted() *operation {
	return &operation{
		name: "revert", thens: []then{resumes, cancels, removes}, once: []string{"a", "b", "a/undo", "b/undo"},
		set: func(p *process) {
			remote := tools.Remote{Kind: "effect", Resources: []tools.Resource{{Key: "effect/{$session}/{label}"}}, Delivery: protocol.AtMostOnce}
			charge := tools.NewRemote[effect]("charge", "An effect that can be undone.", remote)
			charge.Revert = &tools.Revert{Tool: "refund", Arguments: json.RawMessage(`{"label":"{label}/undo"}`)}
			p.table = append(p.table, charge, tools.NewRemote[effect]("refund", "Undoes an effect.", remote))
		},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			p.say(ctx, tb, calls(labelled(p, "charge", "a"), labelled(p, "charge", "b")), says("done"))
		},
		act: func(ctx context.Context, p *process) error {
			_, err := p.client.Sessions("").Revert(ctx, p.session, fleet.At{Turn: -1})
			return err
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			effects, err := p.client.Sessions("").Effects(tb.Context(), p.session, fleet.At{Turn: -1})
			require.NoError(tb, err)
			reverted := 0
			for _, e := range effects {
				if e.Reverted {
					reverted++
				}
			}
			require.Equal(tb, 2, reverted)
		},
	}
}

// count is how many events of a type a session has.
func (p *process) count(tb testing.TB, event loop.EventType) (n int) {
	tb.Helper()
	history, err := p.client.Sessions("").Log(tb.Context(), p.session)
	require.NoError(tb, err)
	for i := range history.Events {
		if history.Events[i].Type == event {
			n++
		}
	}
	return n
}

// rewound takes the second of two turns out of the conversation.
func rewound() *operation {
	return &operation{
		name: "rewind", thens: []then{resumes, cancels, removes},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			p.say(ctx, tb, calls(labelled(p, "once", "a")), says("1"))
			p.say(ctx, tb, calls(labelled(p, "once", "b")), says("2"))
		},
		act: func(ctx context.Context, p *process) error {
			runner, err := p.runner()
			if err == nil {
				err = runner.Rewind(ctx, p.session, 1)
			}
			return err
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Equal(tb, 1, p.count(tb, loop.EventRewound))
			p.say(tb.Context(), tb, says("3"))
		},
	}
}

// resolved notes what a person found out about a call of unknown outcome.
func resolved() *operation {
	return &operation{
		name: "resolve", thens: []then{resumes, cancels, removes},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			origin := p.fork()
			origin.say(ctx, tb, calls(labelled(origin, "once", "a")), says("done"))
			history, err := p.client.Sessions("").Log(ctx, origin.session)
			require.NoError(tb, err)
			for i := range history.Events {
				if e := &history.Events[i]; e.Type == loop.EventToolResult {
					e.Status = string(protocol.StatusOutcomeUnknown)
				}
			}
			_, err = p.client.Sessions("").Import(ctx, history.Events, p.session)
			require.NoError(tb, err)
		},
		act: func(ctx context.Context, p *process) error {
			info, err := p.client.Sessions("").Show(ctx, p.session)
			if err != nil {
				return err
			}
			if len(info.Unknown) == 0 {
				return nil // it is resolved
			}
			err = p.client.Sessions("").Resolve(ctx, p.session, info.Unknown[0].CallID, true, "a person")
			if errors.Is(err, loop.ErrJournalConflict) {
				return nil
			}
			return err
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Equal(tb, 1, p.count(tb, loop.EventCallResolved))
		},
	}
}
