package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
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
type Limit struct {
	// Lane is a pattern: the first two segments of resource keys, of which each may end with "*",
	// as in "account/*".
	Lane string `json:"lane,omitempty"`
	// Tenant is a tenant; "default" is that of calls that name none.
	Tenant protocol.Tenant `json:"tenant,omitempty"`
	Pool   protocol.Pool   `json:"pool,omitempty"`
	// Weight is the tenant's share of slots: with weights 3 and 1, two tenants get them 3 to 1. 0
	// means 1.
	Weight int `json:"weight,omitempty"`
	// Concurrent is how many calls of a lane run at once, or how many calls of a tenant are
	// accepted and have no result; 0 means no bound.
	Concurrent int `json:"concurrent,omitempty"`
	// Rate is how many calls of a lane start, or of a tenant are accepted, in a second, minute or
	// hour, as in "5/s", "60/min" and "1000/h"; "" means no bound.
	Rate string `json:"rate,omitempty"`
	// Burst is how many of them may come at once after a pause; 0 means DefaultBurst.
	Burst int `json:"burst,omitempty"`
	// Tokens is how many tokens the coordinators may ask of a model's provider, which is the lane
	// model/PROVIDER, with units as Rate; "" means no bound.
	Tokens string `json:"tokens,omitempty"`
	// Waiting is how many calls may wait in a lane or a pool; 0 means no bound.
	Waiting int `json:"waiting,omitempty"`
	// Sessions is how many turns of a tenant are submitted and have not ended; 0 means no bound.
	Sessions int `json:"sessions,omitempty"`
	// Stored is how many bytes may be stored for a tenant: results, large values, whole outputs,
	// workspaces and journals, as estimated; 0 means no bound.
	Stored int64 `json:"stored,omitempty"`
	// DefaultBurst is set in lists: what a tenth of a second has, for a tenant ten seconds.
	DefaultBurst int `json:"-"`
}

// Validate reports every invalid field; the error wraps [ErrInvalid]. It needs no fleet.
func (l Limit) Validate() error {
	_, err := l.rule()
	return err
}

// rule is the limit as it is stored.
func (l Limit) rule() (limits.Rule, error) {
	r := limits.Rule{
		Lane: limits.Pattern(l.Lane), Tenant: l.Tenant, Pool: l.Pool, Weight: l.Weight,
		Concurrent: l.Concurrent, Burst: l.Burst, Waiting: l.Waiting, Sessions: l.Sessions, Stored: l.Stored,
	}
	var err, tokensErr error
	if l.Rate != "" {
		r.Rate, err = limits.ParseRate(l.Rate)
	}
	if l.Tokens != "" {
		r.Tokens, tokensErr = limits.ParseRate(l.Tokens)
	}
	if some := (limits.Rate{N: 1, Per: time.Second}); err != nil { // one error is enough for a bad rate
		r.Rate = some
	} else if tokensErr != nil {
		r.Tokens = some
	}
	return r, errors.Join(err, tokensErr, r.Validate())
}

// Limits are the limits of a fleet. They apply within a second.
type Limits struct{ client *Client }

// Limits returns the limits of the fleet.
func (c *Client) Limits() Limits { return Limits{c} }

// List returns the limits, the most specific one first.
func (l Limits) List(ctx context.Context) (list []Limit, err error) {
	f := l.client.inner
	err = act(ctx, l.client, []natsio.Rights{natsio.LimitListRights(f.Name)}, func(ctx context.Context) error {
		store, err := limits.OpenExisting(ctx, f.JS, f.Name)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		rules, err := store.Rules(ctx)
		for _, r := range rules.List() {
			burst := r.Burst
			r.Burst = 0
			_, usual := r.PerSecond()
			list = append(list, Limit{
				Lane: string(r.Lane), Tenant: r.Tenant, Pool: r.Pool, Weight: r.Weight, Concurrent: r.Concurrent,
				Rate: r.Rate.String(), Burst: burst, Tokens: r.Tokens.String(), Waiting: r.Waiting, Sessions: r.Sessions, Stored: r.Stored, DefaultBurst: usual,
			})
		}
		return err
	})
	return list, err
}

// Set stores the fields of a limit that are not zero. Other fields of a limit of the same lanes,
// tenant or pool stay; Remove removes it.
func (l Limits) Set(ctx context.Context, limit Limit) error {
	rule, err := limit.rule()
	if err != nil {
		return err
	}
	return l.each(ctx, l.client.inner.Parts(), func(ctx context.Context, store *limits.Store) error { return store.Set(ctx, rule) })
}

// Remove removes the limit of the same lanes, tenant or pool; other fields do not count. The error
// wraps [ErrNotFound] if there is none.
func (l Limits) Remove(ctx context.Context, limit Limit) error {
	about := limits.Rule{Lane: limits.Pattern(limit.Lane), Tenant: limit.Tenant, Pool: limit.Pool}
	return l.each(ctx, l.client.inner.Parts(), func(ctx context.Context, store *limits.Store) error { return store.Remove(ctx, about) })
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
