package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// operations are all that a session does.
func operations() []*operation {
	return []*operation{
		parallelTurn(false), parallelTurn(true), backgroundJob(), cancelledJob(), promotedCall(), approvedCall(), spentBudget(), compactedTurn(),
		cancelledTurn(), limitedTurn(), subAgent(false), subAgent(true),
		forked(), imported(), removed(false), removed(true), merged(), restored(), agentOnAFork(),
		submittedTurn(), scheduledTurn(), triggeredTurn(), addedTrigger(), removedTrigger(),
		reverted(), rewound(), resolved(), committed(),
		addedSchedule(), removedSchedule(), createdTemplate(), removedTemplate(), setLimit(), removedLimit(), modelLimit(), modelCount(), tenantLimit(),
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
			p.with("jobs")
			p.replies(calls(labelled(p, "job", "a")), calls(labelled(p, "once", "b"), call{"job_wait", `{"job":"job_1_1_0"}`}), says("done"))
		},
	}
}

// cancelledJob is a job that a later step cancels.
func cancelledJob() *operation {
	return &operation{
		name: "job_cancel", act: input, once: []string{"b"}, thens: []then{resumes, cancels, removes}, // a job that was denied its cancel continues
		set: func(p *process) {
			p.with("jobs")
			p.replies(calls(held(p, "job", "a")), calls(labelled(p, "once", "b"), call{"job_cancel", `{"job":"job_1_1_0"}`}), says("done"))
		},
	}
}

// promotedCall is a call that becomes a job, since it takes long.
func promotedCall() *operation {
	return &operation{
		name: "promotion", act: input, once: []string{"a", "b"},
		set: func(p *process) {
			p.with("jobs")
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
			p.policies = []policy.Policy{{Approval: policy.Approval{Tools: []string{"once"}}}}
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
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Equal(tb, loop.OutcomeLimitReached, p.result.Outcome)
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

// scene is the test of one case. All cases run in one bubble of [testing/synctest], where a test
// has no subtests, and are reported as subtests behind it.
type scene struct {
	testing.TB // that of the bubble

	name string
	ctx  context.Context //nolint:containedctx // that of a test, as testing.TB has one

	mu       sync.Mutex
	failed   bool
	log      strings.Builder
	cleanups []func()
}

// Name implements [testing.TB], as the methods below.
func (s *scene) Name() string { return s.name }

// Helper has nothing to do: the log has no lines of code.
func (s *scene) Helper() {}

// Context ends before the cleanups.
func (s *scene) Context() context.Context { return s.ctx }

// Log notes what is shown if the case fails.
func (s *scene) Log(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintln(&s.log, args...)
}

// Logf is [scene.Log] with a format.
func (s *scene) Logf(format string, args ...any) { s.Log(fmt.Sprintf(format, args...)) }

// Errorf notes a failure.
func (s *scene) Errorf(format string, args ...any) {
	s.Logf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

// FailNow ends the goroutine.
func (s *scene) FailNow() {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	runtime.Goexit()
}

// Failed reports whether there was a failure.
func (s *scene) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Cleanup has f called at the end.
func (s *scene) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir is a directory that is removed at the end.
func (s *scene) TempDir() string {
	dir, err := os.MkdirTemp(s.TB.TempDir(), "")
	if err != nil {
		s.Errorf("no directory: %v", err)
		s.FailNow()
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) }) // the bubble's end removes what is left
	return dir
}

// run runs the case, then its cleanups, the last one first.
func (s *scene) run(play func(tb testing.TB)) {
	ctx, cancel := context.WithCancel(s.TB.Context())
	s.ctx = ctx
	apart := func(f func()) { // FailNow ends only its goroutine
		var done sync.WaitGroup
		done.Go(f)
		done.Wait()
	}
	apart(func() { play(s) })
	cancel()
	s.mu.Lock()
	cleanups := slices.Clone(s.cleanups)
	s.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		apart(f)
	}
}
