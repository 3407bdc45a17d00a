package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	internal "github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// setting is an operation on what a fleet has apart from sessions. What the removal leaves is none
// of it.
func setting(o *operation) *operation {
	o.gone, o.thens = true, []then{resumes, cancels}
	return o
}

// absent ignores that it is gone already.
func absent(err error) error {
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	return err
}

// schedules is how many schedules there are of the name of the case.
func (p *process) named(tb testing.TB) (n int) {
	tb.Helper()
	all, err := p.client.Schedules().List(tb.Context())
	require.NoError(tb, err)
	for i := range all {
		if all[i].Name == string(p.session) {
			n++
		}
	}
	return n
}

func addSchedule(ctx context.Context, p *process) error {
	_, err := p.client.Schedules().Add(ctx, fleet.Schedule{Name: string(p.session), Cron: "@yearly"}, fleet.Turn{Prompt: "go", Model: "none"})
	return complete(err)
}

// addedSchedule is a schedule that a user adds.
func addedSchedule() *operation {
	return setting(&operation{
		name: "schedule_add", act: addSchedule,
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Equal(tb, 1, p.named(tb))
		},
	})
}

// removedSchedule is one that a user removes.
func removedSchedule() *operation {
	return setting(&operation{
		name: "schedule_rm",
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, addSchedule(ctx, p))
		},
		act: func(ctx context.Context, p *process) error {
			return absent(p.client.Schedules().Remove(ctx, string(p.session)))
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Equal(tb, 0, p.named(tb))
		},
	})
}

// template is the template of the case; nil if there is none.
func (p *process) template(tb testing.TB) *report.Template {
	tb.Helper()
	all, err := p.client.Templates().List(tb.Context())
	require.NoError(tb, err)
	for i := range all {
		if all[i].Name == string(p.session) {
			return &all[i]
		}
	}
	return nil
}

func createTemplate(ctx context.Context, p *process) error {
	dir := p.t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(string(p.session)+name), 0o600); err != nil {
			return err
		}
	}
	return complete(p.client.Templates().Create(ctx, string(p.session), dir, fleet.Copy{}))
}

// createdTemplate is a template of two files.
func createdTemplate() *operation {
	return setting(&operation{
		name: "template_create", act: createTemplate,
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			template := p.template(tb)
			require.NotNil(tb, template)
			require.Equal(tb, 2, template.Files)
			_, err := p.client.Templates().List(tb.Context())
			require.NoError(tb, err)
		},
	})
}

// removedTemplate is one that is removed.
func removedTemplate() *operation {
	return setting(&operation{
		name: "template_rm",
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, createTemplate(ctx, p))
		},
		act: func(ctx context.Context, p *process) error {
			return absent(p.client.Templates().Remove(ctx, string(p.session)))
		},
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Nil(tb, p.template(tb))
		},
	})
}

// limitOf is a limit on a tenant that only the case has.
func limitOf(p *process) fleet.Limit {
	return fleet.Limit{Tenant: protocol.Tenant("t-" + p.session), Concurrent: 7}
}

// limits are the limits of the case.
func (p *process) limits(tb testing.TB) (mine []fleet.Limit) {
	tb.Helper()
	all, err := p.client.Limits().List(tb.Context())
	require.NoError(tb, err)
	for i := range all {
		if all[i].Tenant == limitOf(p).Tenant {
			mine = append(mine, all[i])
		}
	}
	return mine
}

// setLimit is a limit that is set.
func setLimit() *operation {
	return setting(&operation{
		name: "limits_set",
		act:  func(ctx context.Context, p *process) error { return p.client.Limits().Set(ctx, limitOf(p)) },
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			mine := p.limits(tb)
			require.Len(tb, mine, 1)
			require.Equal(tb, 7, mine[0].Concurrent)
			require.NoError(tb, p.client.Limits().Remove(tb.Context(), limitOf(p)))
		},
	})
}

// removedLimit is one that is removed.
func removedLimit() *operation {
	return setting(&operation{
		name: "limits_rm",
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, p.client.Limits().Set(ctx, limitOf(p)))
		},
		act: func(ctx context.Context, p *process) error { return absent(p.client.Limits().Remove(ctx, limitOf(p))) },
		done: func(tb testing.TB, p *process) {
			tb.Helper()
			require.Empty(tb, p.limits(tb))
		},
	})
}

// The limit of the operations that wait for it: 6 a minute.
const (
	perSecond = 0.1
	burst     = 2
)

// request is a request to a model that was sent, and billed.
type request struct {
	at       time.Time
	expected int64 // tokens
}

// billed is a model that notes what is sent to it.
type billed struct {
	*script

	p *process
}

// Reply implements [loop.Model].
func (b billed) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	if err := ctx.Err(); err != nil { // a process that was killed sends nothing
		return loop.Reply{}, err
	}
	b.p.mu.Lock()
	b.p.asked[protocol.SessionID(b.p.provider)] = append(b.p.asked[protocol.SessionID(b.p.provider)], request{time.Now(), req.Tokens()})
	b.p.mu.Unlock()
	return b.script.Reply(ctx, req, delta)
}

// late is how many requests are sent later than they were counted.
func (c *crash) late() int {
	if c.fault == delayed || c.fault == silent {
		return 1
	}
	return 0
}

// requireRate checks that no period has more than the limit allows, but for a number of what was on
// its way.
func requireRate(tb testing.TB, times []time.Time, late int) {
	tb.Helper()
	for i := range times {
		for n := i; n < len(times); n++ {
			allowed := burst + perSecond*times[n].Sub(times[i]).Seconds()
			require.LessOrEqual(tb, float64(n-i+1-late), allowed+0.01, "%v", times[i:n+1])
		}
	}
}

// spent is what the record of a limit says.
func (p *process) spent(tb testing.TB, of string) float64 {
	tb.Helper()
	bucket, err := p.JS.KeyValue(tb.Context(), wire.LimitsBucket(p.Name))
	require.NoError(tb, err)
	entry, err := bucket.Get(tb.Context(), "spent."+of)
	require.NoError(tb, err)
	var record struct {
		Spent float64 `json:"spent"`
	}
	require.NoError(tb, json.Unmarshal(entry.Value(), &record))
	return record.Spent
}

// modelLimit is a turn whose requests to the model wait for a limit.
func modelLimit() *operation {
	return ofModel("model_limit", fleet.Limit{Rate: "6/min", Burst: burst, Tokens: "6000/min"}, func(tb testing.TB, c *crash, _ *process, sent []request) {
		tb.Helper()
		var times []time.Time
		for _, r := range sent {
			times = append(times, r.at)
		}
		requireRate(tb, times, c.late())
	})
}

// modelCount is one whose requests are counted, by a limit that fills up by nearly nothing.
func modelCount() *operation {
	return ofModel("model_count", fleet.Limit{Rate: "1/h", Burst: 100, Tokens: "100000/h"}, func(tb testing.TB, _ *crash, p *process, sent []request) {
		tb.Helper()
		expected := int64(0)
		for _, r := range sent {
			expected = max(expected, r.expected)
		}
		n := float64(len(sent))
		require.InDelta(tb, n+0.5, p.spent(tb, p.lane()), 0.6, "each request counts, and at most one that was not sent")
		used := p.spent(tb, p.lane()+"/tokens")
		require.GreaterOrEqual(tb, used, 11*n-0.1*11*n-30, "the tokens of each reply count")
		require.LessOrEqual(tb, used, 11*n+2*float64(expected), "what counts too much is the estimate of a request")
	})
}

// lane has the limits of the model of the case.
func (p *process) lane() string { return "model/" + p.provider }

// ofModel is a turn behind the limits of its model.
func ofModel(name string, limit fleet.Limit, law func(tb testing.TB, c *crash, p *process, sent []request)) *operation {
	return &operation{
		name: name, once: []string{"a"}, thens: []then{resumes, cancels},
		set: func(p *process) { p.replies(calls(labelled(p, "once", "a")), says("done")) },
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			limit := limit // of the case
			limit.Lane = p.lane()
			require.NoError(tb, p.client.Limits().Set(ctx, limit))
			require.True(tb, pause.For(ctx, time.Second)) // by then all processes have read it
		},
		act: limited,
		law: func(tb testing.TB, c *crash, p *process) {
			tb.Helper()
			begun := time.Now()
			other := *p
			other.model, other.session = &script{}, "l"+p.session
			other.replies(says("done"))
			require.NoError(tb, limited(tb.Context(), &other))
			require.Less(tb, time.Since(begun), 30*time.Second, "another process waits for what was lost")
			p.mu.Lock()
			sent := p.asked[protocol.SessionID(p.provider)]
			p.mu.Unlock()
			law(tb, c, p, sent)
		},
	}
}

// limited runs a turn behind the limits of the model of the case.
func limited(ctx context.Context, p *process) error {
	f := &internal.Fleet{Name: p.Name, NC: p.nc, Logger: p.Logger}
	err := f.Open(ctx, true)
	if err != nil {
		return err
	}
	defer f.Close()
	p.gate = &model.Gate{}
	p.gate.Bind(f.Dispatcher.ModelLimits())
	return input(ctx, p)
}

// tenantLimit is calls of a tenant with a rate and a quota, three each time.
func tenantLimit() *operation {
	tenant := func(p *process) protocol.Tenant { return protocol.Tenant("t-" + p.session) }
	three := func(ctx context.Context, p *process) error {
		for range 3 {
			if err := p.call(ctx, tenant(p)); err != nil {
				return err
			}
		}
		return nil
	}
	return &operation{
		name: "tenant_limit", thens: []then{resumes, cancels}, gone: true, act: three,
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, p.client.Limits().Set(ctx, fleet.Limit{Tenant: tenant(p), Rate: "6/min", Burst: burst, Concurrent: 3}))
			require.True(tb, pause.For(ctx, time.Second)) // by then all processes have read it
		},
		law: func(tb testing.TB, _ *crash, p *process) {
			tb.Helper()
			stream, err := p.JS.Stream(tb.Context(), wire.CallsStream(p.Name))
			require.NoError(tb, err)
			requireSoon(tb, func() bool {
				info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(wire.InFlightSubject(p.Name, protocol.DefaultPool, tenant(p), "*", "*")))
				return err == nil && len(info.State.Subjects) == 0
			}, "a mark of a call without a caller stays")
			begun := time.Now()
			require.NoError(tb, p.call(tb.Context(), tenant(p)))
			require.Less(tb, time.Since(begun), 30*time.Second, "another process waits for what was lost")
			var times []time.Time
			for _, starts := range p.startsOf(p.session) {
				times = append(times, starts[0].at)
			}
			slices.SortFunc(times, time.Time.Compare)
			requireRate(tb, times, 1) // the call of the case may start later than it was accepted
		},
	}
}

// labels counts the calls of all tenants, so that no two have one label.
var labels atomic.Int64

// call makes a call of a tenant when its limits allow it; its outcome may be unknown.
func (p *process) call(ctx context.Context, tenant protocol.Tenant) error {
	label := p.label(fmt.Sprint(labels.Add(1)))
	for {
		result, err := p.client.Call(ctx, fleet.Call{
			Handler: "effect", Args: effect{Label: label}, Session: p.session, Tenant: tenant, Delivery: protocol.AtMostOnce,
			Resources: []protocol.Use{{Key: protocol.ResourceKey("effect/" + label), Access: protocol.Exclusive}},
		})
		if err == nil {
			err = result.Err()
		}
		switch {
		case errors.Is(err, fleet.ErrUnknownOutcome):
			return nil
		case !errors.Is(err, fleet.ErrQuota) || !pause.For(ctx, time.Second):
			return err
		}
	}
}
