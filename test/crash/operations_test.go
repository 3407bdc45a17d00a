package crash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// operations are all that a session does.
func operations() []*operation {
	return []*operation{
		parallelTurn(false), parallelTurn(true), backgroundJob(), promotedCall(), approvedCall(), spentBudget(), compactedTurn(),
		cancelledTurn(), limitedTurn(), subAgent(false), subAgent(true),
		forked(), imported(), removed(false), removed(true), merged(), restored(), agentOnAFork(),
	}
}

// input runs a turn whose input has an id, so that the same input is answered once.
func input(ctx context.Context, p *process) error {
	result, err := p.turn(ctx, loop.Input{Text: "go", ID: protocol.CallID("turn-" + string(p.session))})
	if err != nil {
		return err
	}
	p.result = result
	return nil
}

func labelled(p *process, tool, name string) call {
	return call{tool, fmt.Sprintf(`{"label":%q}`, p.label(name))}
}

// parallelTurn has two steps: two calls at once, and one more.
func parallelTurn(stream bool) *operation {
	o := &operation{
		name: "turn", act: input, once: []string{"a", "b", "c"},
		set: func(p *process) {
			p.model.stream = stream
			p.model.replies = map[string][]loop.Reply{"go": {
				calls(labelled(p, "once", "a"), labelled(p, "again", "b")), calls(labelled(p, "once", "c")), says("done"),
			}}
		},
	}
	if stream { // a call that was sent before its reply was lost stays, the others are not asked for again
		o.name, o.once = "streamed", []string{"a", "c"}
	}
	return o
}

// replies sets what the model replies to "go".
func (p *process) replies(replies ...loop.Reply) {
	p.model.replies = map[string][]loop.Reply{"go": replies}
}

// with adds a set of built-in tools.
func (p *process) with(name string) {
	set, err := toolset.Named(name)
	require.NoError(p.t, err)
	p.table = append(p.table, set...)
	p.options.MinLevel = "none" // the files of the world need no isolation
}

// held is a call that does not end before its gate is opened.
func held(p *process, tool, name string) call {
	return call{tool, fmt.Sprintf(`{"label":%q,"held":true}`, p.label(name))}
}

// backgroundJob has a job run beside a call, and waits for it.
func backgroundJob() *operation {
	return &operation{
		name: "job", act: input, once: []string{"a", "b"},
		set: func(p *process) {
			p.replies(calls(labelled(p, "job", "a")), calls(labelled(p, "once", "b"), call{"job_wait", `{"job":"job_1_1_0"}`}), says("done"))
		},
	}
}

// promotedCall is a call that becomes a job, since it takes long.
func promotedCall() *operation {
	return &operation{
		name: "promotion", act: input, once: []string{"a", "b"},
		set: func(p *process) {
			p.options.PromoteAfter = time.Millisecond
			p.replies(calls(held(p, "once", "a")), calls(labelled(p, "again", "b"), call{"job_wait", `{"job":"job_1_1_0"}`}), says("done"))
			p.model.before = func(_ context.Context, _ string, n int) {
				if n == 1 {
					p.release(p.label("a"))
				}
			}
		},
	}
}

// approvedCall asks a person about each of two calls.
func approvedCall() *operation {
	return &operation{
		name: "approval", act: input, once: []string{"a", "b"},
		set: func(p *process) {
			judge, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"once"}}})
			require.NoError(p.t, err)
			p.options.Policy = judge
			p.options.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
				return protocol.Approval{Granted: true, By: "the test"}, nil
			}
			p.replies(calls(labelled(p, "once", "a"), labelled(p, "once", "b")), says("done"))
		},
	}
}

// spentBudget ends at its budget.
func spentBudget() *operation {
	return &operation{
		name: "budget", act: input, once: []string{"a"},
		set: func(p *process) {
			p.options.Budget = &protocol.Spending{Steps: 1}
			p.replies(calls(labelled(p, "once", "a")), says("all is spent"))
		},
		done: func(t *testing.T, p *process) {
			t.Helper()
			require.Equal(t, loop.OutcomeLimitReached, p.result.Outcome)
		},
	}
}

// summaries is a model that writes summaries.
type summaries struct{}

// Reply implements [loop.Model].
func (summaries) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	return says("a summary"), nil
}

// compactedTurn has its conversation compacted on the way.
func compactedTurn() *operation {
	return &operation{
		name: "compaction", act: input, once: []string{"a", "b", "c", "d"},
		set: func(p *process) {
			p.options.Compaction = &loop.Compaction{Model: summaries{}, ModelName: "summaries", At: 600}
			var replies []loop.Reply
			for _, name := range []string{"a", "b", "c", "d"} {
				reply := calls(labelled(p, "once", name))
				reply.Text = strings.Repeat("some words ", 200)
				replies = append(replies, reply)
			}
			p.replies(append(replies, says("done"))...)
		},
	}
}

// cancelledTurn is cancelled while one of its calls runs.
func cancelledTurn() *operation {
	return &operation{
		name: "cancel",
		set:  func(p *process) { p.replies(calls(held(p, "once", "a"), labelled(p, "again", "b")), says("not asked")) },
		act: func(ctx context.Context, p *process) error {
			for wait := time.Millisecond; ; wait *= 2 { // a cancel before the journal was read ends no turn
				turn, cancel := context.WithCancelCause(ctx)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for len(p.starts(p.label("a"))) == 0 && turn.Err() == nil {
						pause.For(turn, time.Millisecond)
					}
					pause.For(turn, wait)
					cancel(errors.New("a person cancels"))
				}()
				err := input(turn, p)
				cancel(nil)
				<-ended
				if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
					return err
				}
			}
		},
	}
}

// limitedTurn ends at its time limit, while one of its calls runs.
func limitedTurn() *operation {
	return &operation{
		name: "time_limit", act: input,
		set: func(p *process) {
			p.options.Timeout = 200 * time.Millisecond
			p.replies(calls(held(p, "once", "a"), labelled(p, "again", "b")), says("not asked"))
		},
	}
}

// subAgent has a sub-agent work, in the background or not.
func subAgent(background bool) *operation {
	name := map[bool]string{false: "agent", true: "background_agent"}[background]
	return &operation{
		name: name, act: input, once: []string{"a", "b"},
		set: func(p *process) {
			p.with("agents")
			p.model.replies = map[string][]loop.Reply{
				"go": {
					calls(call{"agent", fmt.Sprintf(`{"prompt":"help","background":%t}`, background)}, labelled(p, "once", "b")),
					calls(call{"job_wait", `{"job":"job_1_1_0"}`}), says("done"),
				},
				"help": {calls(labelled(p, "once", "a")), says("I helped")},
			}
		},
	}
}

// long begins with the name of a script, and needs most of a message.
func long(name string) string { return name + " " + strings.Repeat("long ", 12<<10) }

// origin is a session of three turns that needs several messages.
const origin = "origin-1"

// talk makes the origin, once.
func talk(ctx context.Context, t *testing.T, p *process) {
	t.Helper()
	p.talk.Do(func() {
		o := *p
		o.session = origin
		o.replies(calls(labelled(&o, "once", "a")), says("1"), says("2"), says("3"))
		for range 3 {
			_, err := o.turn(ctx, loop.Input{Text: long("go")})
			require.NoError(t, err)
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
func sameTurns(t *testing.T, p *process) {
	t.Helper()
	history, err := p.client.Sessions("").Log(t.Context(), p.session)
	require.NoError(t, err)
	turns, _, err := history.Turns()
	require.NoError(t, err)
	require.Equal(t, 3, turns)
	p.model.replies = map[string][]loop.Reply{"go": {says(""), says(""), says(""), says(""), says("4")}}
	require.NoError(t, input(t.Context(), p))
	require.Equal(t, loop.OutcomeAnswered, p.result.Outcome)
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
		before: func(ctx context.Context, t *testing.T, p *process) {
			t.Helper()
			require.NoError(t, input(ctx, p))
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
	o.before = func(ctx context.Context, t *testing.T, p *process) {
		ctx, detach := context.WithCancelCause(ctx)
		done := make(chan error, 1)
		go func() { done <- input(ctx, p) }()
		require.Eventually(t, func() bool { return len(p.starts(p.label("a"))) == 1 }, patience, time.Millisecond)
		detach(loop.ErrDetached)
		require.ErrorIs(t, <-done, loop.ErrDetached)
	}
	return o
}

// writes is a call that writes a file.
func writes(path, content string) call {
	return call{"write", fmt.Sprintf(`{"path":%q,"content":%q}`, path, content)}
}

// say runs a turn of a session with the given replies, whatever it was before.
func (p *process) say(ctx context.Context, t *testing.T, replies ...loop.Reply) {
	t.Helper()
	history, err := p.client.Sessions("").Log(ctx, p.session)
	if err != nil {
		require.ErrorIs(t, err, fleet.ErrNotFound)
	}
	before := 0
	for i := range history.Events {
		if history.Events[i].Type == loop.EventModelReply {
			before++
		}
	}
	p.replies(append(make([]loop.Reply, before), replies...)...)
	result, err := p.turn(ctx, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome, result.Error)
}

// requireFile checks a file of a session; "" is one that is not there.
func requireFile(t *testing.T, p *process, path, content string) {
	t.Helper()
	got, err := p.client.Sessions("").ReadFile(t.Context(), p.session, path, "")
	if content == "" {
		require.ErrorIs(t, err, fleet.ErrNotFound, path)
		return
	}
	require.NoError(t, err, path)
	require.Equal(t, content, string(got), path)
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
		before: func(ctx context.Context, t *testing.T, p *process) {
			p.say(ctx, t, calls(writes("a", "1")), says("done"))
			_, err := p.client.Sessions("").Fork(ctx, p.session, fleet.At{}, p.fork().session)
			require.NoError(t, err)
			p.fork().say(ctx, t, calls(writes("b", "of the fork")), says("done"))
			p.say(ctx, t, calls(writes("a", "2")), says("done"))
		},
		act: func(ctx context.Context, p *process) error {
			_, err := p.client.Sessions("").Merge(ctx, p.fork().session, p.session)
			return err
		},
		between: func(ctx context.Context, t *testing.T, p *process) {
			files, err := p.client.Sessions("").Files(ctx, p.session, "")
			require.NoError(t, err)
			if len(files) == 2 { // the merge has changed them: the session goes on, and removes what has come
				p.say(ctx, t, calls(call{"bash", `{"command":"rm b"}`}), says("done"))
				p.note(p.label("removed"))
			}
		},
		done: func(t *testing.T, p *process) {
			requireFile(t, p, "a", "2")
			if p.noted(p.label("removed")) {
				requireFile(t, p, "b", "")
				return
			}
			requireFile(t, p, "b", "of the fork")
			p.say(t.Context(), t, calls(writes("b", "later")), says("done"))
			_, err := p.client.Sessions("").Merge(t.Context(), p.fork().session, p.session)
			require.NoError(t, err)
			requireFile(t, p, "b", "later") // it is not merged again
		},
	}
}

// restored goes back to the files of an earlier call.
func restored() *operation {
	return &operation{
		name: "restore", thens: []then{resumes}, set: func(p *process) { p.with("core") },
		before: func(ctx context.Context, t *testing.T, p *process) {
			p.say(ctx, t, calls(writes("a", "1")), calls(writes("a", "2"), writes("b", "new")), says("done"))
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
		done: func(t *testing.T, p *process) {
			requireFile(t, p, "a", "1")
			requireFile(t, p, "b", "")
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
		done: func(t *testing.T, p *process) {
			requireFile(t, p, "a", "1")
			requireFile(t, p, "b", "of the agent")
		},
	}
}
