package crash

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

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
