package crash

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
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
