package fleet

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors of all methods that take names, ids or settings.
var (
	// ErrInvalid means that a value is not allowed. Nothing was changed. The error for a malformed
	// id, key or name also wraps [protocol.ErrInvalidName].
	ErrInvalid = codes.ErrInvalid
	// ErrNotFound means that there is nothing of that name or id: no such session, file, lane,
	// running call or open question, or a result that is not stored any more.
	ErrNotFound = codes.ErrNotFound
	// ErrExists means that there is something of that name already.
	ErrExists = codes.ErrExists
)

// invalid is an error that is [ErrInvalid], too; nil for nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return codes.As(ErrInvalid, err)
}

// Limit bounds the calls of lanes, of a tenant, or of a pool: it names one of the three. A lane
// follows one limit, the most specific one that matches.
type Limit = limits.Rule

// Limits are the limits of a fleet. They apply within a second.
type Limits struct{ client *Client }

// Limits returns the limits of the fleet.
func (c *Client) Limits() Limits { return Limits{c} }

// List returns the limits, the most specific one first.
func (l Limits) List(ctx context.Context) (list []Limit, err error) {
	f := l.client.inner
	err = act(ctx, l.client, []natsio.Rights{natsio.LimitListRights(f.Name)}, func(ctx context.Context) error {
		if err := judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Limit, Owner: judge.TheFleet()}); err != nil {
			return err
		}
		store, err := limits.OpenExisting(ctx, f.JS, f.Name)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		rules, err := store.Rules(ctx)
		list = slices.DeleteFunc(slices.Clone(rules.List()), func(rule Limit) bool { // those of lanes and pools bind all tenants
			about := judge.Object{Kind: judge.Limit, Owner: judge.Owner{Tenant: rule.Tenant}}
			return rule.Tenant != "" && judge.Judge(ctx, judge.See, about) != nil
		})
		for i := range list {
			usual := list[i]
			usual.Burst = 0
			list[i].DefaultBurst = limits.RateOf(&usual).Burst
		}
		return err
	})
	return list, err
}

// Use counts how much of a limit is used: of that of a tenant, of a pool, or of one model's
// provider. Calls are counted in the pools, or without one in the default pool; turns always. Of
// the limit of other lanes it says nothing, see [report.Lane].WaitsFor.
func (l Limits) Use(ctx context.Context, limit Limit, pools ...protocol.Pool) (use report.LimitUse, err error) {
	if err := limit.Validate(); err != nil {
		return use, err
	}
	if len(pools) == 0 {
		pools = []protocol.Pool{protocol.DefaultPool}
	}
	for _, pool := range pools {
		if _, err := protocol.ParsePool(string(pool)); err != nil {
			return use, invalid(err)
		}
	}
	if !slices.Contains(pools, protocol.SessionPool) {
		pools = append(slices.Clone(pools), protocol.SessionPool)
	}
	f := l.client.inner
	rights := []natsio.Rights{natsio.LimitListRights(f.Name)}
	for _, pool := range pools {
		rights = append(rights, natsio.LimitUseRights(f.Name, pool))
	}
	return do(ctx, l.client, rights, func(ctx context.Context) (sum report.LimitUse, err error) {
		owner := judge.TheFleet()
		if limit.Tenant != "" {
			owner = judge.Owner{Tenant: limit.Tenant}
		}
		if err := judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Limit, ID: string(limit.Tenant), Owner: owner}); err != nil {
			return sum, err
		}
		for _, part := range f.Parts() {
			use, err := limits.Use(ctx, part.NC, part.JS, part.Name, &limit, slices.DeleteFunc(slices.Clone(pools), func(pool protocol.Pool) bool { return f.At(pool) != part }))
			if err != nil {
				return sum, err
			}
			sum.Calls, sum.Turns, sum.Waiting, sum.Stored = max(sum.Calls, use.Calls), sum.Turns+use.Turns, sum.Waiting+use.Waiting, sum.Stored+use.Stored
			sum.Left, sum.TokensLeft = least(sum.Left, use.Left), least(sum.TokensLeft, use.TokensLeft)
		}
		return sum, nil
	})
}

// least is the lesser of two numbers, of which nil is none.
func least(a, b *float64) *float64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// Set stores the fields of a limit that are not zero. Other fields of a limit of the same lanes,
// tenant or pool stay; Remove removes it.
func (l Limits) Set(ctx context.Context, limit Limit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	return l.each(ctx, l.client.inner.Parts(), func(ctx context.Context, store *limits.Store) error { return store.Set(ctx, limit) })
}

// Remove removes the limit of the same lanes, tenant or pool; other fields do not count. The error
// wraps [ErrNotFound] if there is none.
func (l Limits) Remove(ctx context.Context, limit Limit) error {
	return l.each(ctx, l.client.inner.Parts(), func(ctx context.Context, store *limits.Store) error { return store.Remove(ctx, limit) })
}

// each opens the limits of parts of the fleet: pools with servers of their own have a copy.
func (l Limits) each(ctx context.Context, parts []*fleet.Fleet, method func(context.Context, *limits.Store) error) error {
	rights := []natsio.Rights{natsio.CallRights(l.client.inner.Name, protocol.DefaultPool)}
	return act(ctx, l.client, rights, func(ctx context.Context) error {
		for _, part := range parts {
			store, err := limits.Open(ctx, part.JS, part.Name)
			if err == nil {
				err = natsio.CheckRights(ctx, part.NC, natsio.LimitRights(part.Name))
			}
			if err == nil {
				err = method(ctx, store)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
