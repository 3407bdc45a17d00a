package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// fault is what happens to one write of a process.
type fault string

// The faults. With the first two the process ends; with the others it lives.
const (
	lost       fault = "lost"       // the write is not made
	unanswered fault = "unanswered" // the write is made, and its answer does not arrive
	refused    fault = "refused"    // the write is not made: the answer says that JetStream is unavailable
	made       fault = "made"       // the write is made, but the answer says that JetStream is unavailable
	silent     fault = "silent"     // the write is made, and its answer is lost on the way
	delayed    fault = "delayed"    // the write, and all that follows, is held until another process has gone on
)

// kills reports whether the process ends.
func (f fault) kills() bool { return f == lost || f == unanswered }

// write names one write of a process: the n-th, from 1, of its kind, which is the subject without
// ids, as in "tf.event.* 2".
type write struct {
	kind string
	n    int
}

func (w write) String() string { return fmt.Sprintf("%s_%d", w.kind, w.n) }

// faulty is the network of a process that has a fault at one of its writes.
type faulty struct {
	at      write
	fault   fault
	reached chan struct{}

	mu     sync.Mutex
	begun  bool
	after  natsiotest.Fate // of all that is said behind the write
	counts map[string]int
	seen   []write
}

// newFaulty puts the fault into a link. The zero write has none.
func newFaulty(link *natsiotest.Link, at write, f fault) *faulty {
	n := &faulty{at: at, fault: f, reached: make(chan struct{}), counts: map[string]int{}}
	link.OnWrite(n.decide)
	return n
}

// begin counts the writes from now on.
func (n *faulty) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun = true
}

// writes are those so far.
func (n *faulty) writes() []write {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen)
}

// notWrites are subjects of questions, acknowledgements, messages that may be lost, marks of what a
// tenant stores, and probes of rights.
var notWrites = regexp.MustCompile(`^(_INBOX|\$JS\.ACK|\$JS\.API\.(INFO|CONSUMER|DIRECT|STREAM\.(INFO|NAMES|LIST|MSG\.GET))|` +
	`[^.]+\.(heartbeat|who|ask|output|live)|\$O\.\w+\.C\.[^.]+\.(journal|result)|.*\.rights)\b`)

// word is a token of a subject that is no id.
var word = regexp.MustCompile(`^(\$?[A-Za-z_]{1,16})$`)

func kindOf(subject string) string {
	tokens := strings.Split(subject, ".")
	for i := range tokens {
		if !word.MatchString(tokens[i]) || i > 1 && tokens[0] == "$KV" || i > 2 && tokens[0] == "$O" {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// decide says what becomes of a message.
func (n *faulty) decide(subject string) natsiotest.Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.begun || n.after != natsiotest.Passes {
		return n.after
	}
	if notWrites.MatchString(subject) {
		return natsiotest.Passes
	}
	kind := kindOf(subject)
	n.counts[kind]++
	now := write{kind, n.counts[kind]}
	n.seen = append(n.seen, now)
	if now != n.at {
		return natsiotest.Passes
	}
	close(n.reached)
	switch n.fault {
	case lost:
		n.after = natsiotest.Lost
		return natsiotest.Lost
	case unanswered:
		n.after = natsiotest.Lost
		return natsiotest.Unanswered
	case refused:
		return natsiotest.Refused
	case made:
		return natsiotest.Made
	case silent:
		return natsiotest.Unanswered
	default: // delayed
		n.after = natsiotest.Held
		return natsiotest.Held
	}
}

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

// pool is that of the case's own workers.
func (p *process) pool() protocol.Pool { return protocol.Pool(p.session) }

// inPool has the calls of tools go to the workers of the case.
func (p *process) inPool(table ...tools.Tool) {
	for _, tool := range table {
		plan := tool.Plan
		tool.Plan = func(scope tools.Scope, arguments json.RawMessage) (tools.Plan, *protocol.Error) {
			planned, refusal := plan(scope, arguments)
			planned.Pool = p.pool()
			return planned, refusal
		}
		p.table = append(p.table, tool)
	}
	p.options.MinLevel = "none"
}

// work has the process be a worker while do runs.
func (p *process) work(ctx context.Context, do func(ctx context.Context) error) error {
	w, err := p.client.StartWorker(ctx, worker.Options{
		Pool: p.pool(), Driver: "process", Data: p.t.TempDir(), Handlers: []worker.Handler{worker.Handle("effect", p.run)},
	})
	if err != nil {
		return err
	}
	p.begin()
	err = do(ctx)
	drained := w.Drain(ctx)
	if ctx.Err() != nil { // it was killed
		return err
	}
	return errors.Join(err, drained)
}

// committed is a turn whose worker meets the faults: calls that change files, in one lane with an
// effect that must not be repeated.
func committed() *operation {
	return &operation{
		name: "commit", begins: true, thens: []then{resumes, cancels, denies},
		set: func(p *process) {
			core, err := toolset.Named("core")
			require.NoError(p.t, err)
			p.inPool(core...)
			p.inPool(tools.NewRemote[effect]("effect", "An effect in the lane of the files.", tools.Remote{Kind: "effect", Delivery: protocol.AtMostOnce}))
			p.replies(
				calls(writes("a", "1"), labelled(p, "effect", "e")),
				calls(call{"bash", `{"command":"echo x >>log"}`}, writes("b", "2")), says("done"),
			)
		},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			_, _, err := natsio.EnsurePool(ctx, p.JS, p.Name, p.pool(), lease)
			require.NoError(tb, err)
		},
		act: func(ctx context.Context, p *process) error {
			coordinator := *p
			coordinator.end = p.world.end // which never fails
			return p.work(ctx, func(ctx context.Context) error {
				for { // the coordinator of the other worker lives, and may be faster
					if err := input(ctx, &coordinator); !errors.Is(err, loop.ErrJournalConflict) {
						return err
					}
				}
			})
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, p.work(tb.Context(), func(ctx context.Context) error {
				for path, content := range map[string]string{"a": "1", "log": "x\n", "b": "2"} {
					got, err := p.client.Sessions(p.pool()).ReadFile(ctx, p.session, path, "")
					require.NoError(tb, err, path)
					require.Equal(tb, content, string(got), path)
				}
				return nil
			}))
		},
	}
}
