package crash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// long begins with the name of a script, and needs most of a message.
func long(name string) string { return name + " " + strings.Repeat("long ", 12<<10) }

// origin is a session of three turns that needs several messages.
const origin = "origin-1"

// talk makes the origin, once.
func talk(ctx context.Context, tb testing.TB, p *process) {
	tb.Helper()
	p.talk.Do(func() {
		o := *p
		o.session = origin
		o.replies(calls(labelled(&o, "once", "a")), says("1"), says("2"), says("3"))
		for range 3 {
			_, err := o.turn(ctx, loop.Input{Text: long("go")})
			require.NoError(tb, err)
		}
	})
}

// complete ignores that it is there already.
func complete(err error) error {
	if errors.Is(err, fleet.ErrExists) || errors.Is(err, loop.ErrJournalConflict) {
		return nil
	}
	return err
}

// sameTurns checks that a session is a copy of its origin, and that it can be continued.
func sameTurns(tb testing.TB, p *process) {
	tb.Helper()
	history, err := p.client.Sessions("").Log(tb.Context(), p.session)
	require.NoError(tb, err)
	turns, _, err := history.Turns()
	require.NoError(tb, err)
	require.Equal(tb, 3, turns)
	p.model.replies = map[string][]loop.Reply{"go": {says(""), says(""), says(""), says(""), says("4")}}
	require.NoError(tb, input(tb.Context(), p))
	require.Equal(tb, loop.OutcomeAnswered, p.result.Outcome)
}

// forked is a fork of a conversation that is larger than a message.
func forked() *operation {
	return &operation{
		name: "fork", thens: []then{resumes, removes},
		before: talk,
		act: func(ctx context.Context, p *process) error {
			_, err := p.client.Sessions("").Fork(ctx, origin, fleet.At{}, p.session)
			return complete(err)
		},
		done: sameTurns,
	}
}

// imported is an import of such a conversation.
func imported() *operation {
	return &operation{
		name: "import", thens: []then{resumes, removes},
		before: talk,
		act: func(ctx context.Context, p *process) error {
			history, err := p.client.Sessions("").Log(ctx, origin)
			if err == nil {
				_, err = p.client.Sessions("").Import(ctx, history.Events, p.session)
			}
			return complete(err)
		},
		done: sameTurns,
	}
}

// removed is a session that is removed, while a turn is open or after it.
func removed(open bool) *operation {
	o := &operation{
		name: "remove", thens: []then{removes, resumes}, gone: true,
		set: func(p *process) { p.replies(calls(labelled(p, "once", "a")), says("done")) },
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, input(ctx, p))
		},
		act: func(ctx context.Context, p *process) error {
			_, err := p.client.Sessions("").Remove(ctx, p.session, true)
			return err
		},
	}
	if !open {
		return o
	}
	o.name = "remove_open"
	o.set = func(p *process) { p.replies(calls(held(p, "once", "a")), says("done")) }
	o.before = func(ctx context.Context, tb testing.TB, p *process) {
		tb.Helper()
		ctx, detach := context.WithCancelCause(ctx)
		done := make(chan error, 1)
		go func() { done <- input(ctx, p) }()
		requireSoon(tb, func() bool { return len(p.starts(p.label("a"))) == 1 }, "the call is never started")
		detach(loop.ErrDetached)
		require.ErrorIs(tb, <-done, loop.ErrDetached)
	}
	return o
}

// writes is a call that writes a file.
func writes(path, content string) call {
	return call{"write", fmt.Sprintf(`{"path":%q,"content":%q}`, path, content)}
}

// say runs a turn of a session with the given replies, whatever it was before.
func (p *process) say(ctx context.Context, tb testing.TB, replies ...loop.Reply) {
	tb.Helper()
	history, err := p.client.Sessions("").Log(ctx, p.session)
	if err != nil {
		require.ErrorIs(tb, err, fleet.ErrNotFound)
	}
	before := 0
	for i := range history.Events {
		if history.Events[i].Type == loop.EventModelReply {
			before++
		}
	}
	p.replies(append(make([]loop.Reply, before), replies...)...)
	result, err := p.turn(ctx, loop.Input{Text: "go"})
	require.NoError(tb, err)
	require.Equal(tb, loop.OutcomeAnswered, result.Outcome, result.Error)
}

// requireFile checks a file of a session; "" is one that is not there.
func requireFile(tb testing.TB, p *process, path, content string) {
	tb.Helper()
	got, err := p.client.Sessions("").ReadFile(tb.Context(), p.session, path, "")
	if content == "" {
		require.ErrorIs(tb, err, fleet.ErrNotFound, path)
		return
	}
	require.NoError(tb, err, path)
	require.Equal(tb, content, string(got), path)
}

// fork is the session of a case's fork.
func (p *process) fork() *process {
	fork := *p
	fork.model = &script{}
	fork.session = "f" + p.session
	return &fork
}

// merged is the merge of a fork that has added a file into its origin, which has changed another.
func merged() *operation {
	return &operation{
		name: "merge", thens: []then{resumes}, set: func(p *process) { p.with("core") },
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			p.say(ctx, tb, calls(writes("a", "1")), says("done"))
			_, err := p.client.Sessions("").Fork(ctx, p.session, fleet.At{}, p.fork().session)
			require.NoError(tb, err)
			p.fork().say(ctx, tb, calls(writes("b", "of the fork")), says("done"))
			p.say(ctx, tb, calls(writes("a", "2")), says("done"))
		},
		act: func(ctx context.Context, p *process) error {
			_, err := p.client.Sessions("").Merge(ctx, p.fork().session, p.session)
			return err
		},
		between: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			files, err := p.client.Sessions("").Files(ctx, p.session, "")
			require.NoError(tb, err)
			if len(files) == 2 { // the merge has changed them: the session goes on, and removes what has come
				p.say(ctx, tb, calls(call{"bash", `{"command":"rm b"}`}), says("done"))
				p.note(p.label("removed"))
			}
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			requireFile(tb, p, "a", "2")
			if p.noted(p.label("removed")) {
				requireFile(tb, p, "b", "")
				return
			}
			requireFile(tb, p, "b", "of the fork")
			p.say(tb.Context(), tb, calls(writes("b", "later")), says("done"))
			_, err := p.client.Sessions("").Merge(tb.Context(), p.fork().session, p.session)
			require.NoError(tb, err)
			requireFile(tb, p, "b", "later") // it is not merged again
		},
	}
}

// restored goes back to the files of an earlier call.
func restored() *operation {
	return &operation{
		name: "restore", thens: []then{resumes}, set: func(p *process) { p.with("core") },
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			p.say(ctx, tb, calls(writes("a", "1")), calls(writes("a", "2"), writes("b", "new")), says("done"))
		},
		act: func(ctx context.Context, p *process) error {
			history, err := p.client.Sessions("").Log(ctx, p.session)
			if err != nil {
				return err
			}
			for i := range history.Events {
				if e := &history.Events[i]; e.Type == loop.EventToolResult {
					_, _, err := p.client.Sessions("").Restore(ctx, p.session, e.CallID)
					return err
				}
			}
			return errors.New("no call")
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			requireFile(tb, p, "a", "1")
			requireFile(tb, p, "b", "")
		},
	}
}

// agentOnAFork has a sub-agent work on a copy of the files, which is merged.
func agentOnAFork() *operation {
	return &operation{
		name: "agent_on_a_fork", act: input, once: []string{"a"},
		set: func(p *process) {
			p.with("core")
			p.with("agents")
			p.model.replies = map[string][]loop.Reply{
				"go": {
					calls(writes("a", "1")), calls(call{"agent", `{"prompt":"help","workspace":"fork"}`}), says("done"),
				},
				"help": {calls(writes("b", "of the agent"), labelled(p, "once", "a")), says("I helped")},
			}
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			requireFile(tb, p, "a", "1")
			requireFile(tb, p, "b", "of the agent")
		},
	}
}
