package limits

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Use counts how much of a rule is used, as callers do before they send a call. The pools are those
// whose calls are on this server. It changes nothing.
func Use(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, fleet protocol.Fleet, rule *Rule, pools []protocol.Pool) (use report.LimitUse, err error) {
	count := func(filter wire.Subject) int {
		n, _, failed := natsio.Count(ctx, nc, wire.CallsStream(fleet), filter)
		err = errors.Join(err, failed)
		return n
	}
	left := func(of string, b Bucket) *float64 {
		if b.Rate == 0 {
			return nil
		}
		n, failed := NewSpending(js, fleet, of).left(ctx, b)
		err = errors.Join(err, failed)
		return &n
	}
	provider, isModel := strings.CutPrefix(rule.Lane, ModelLanes)
	switch {
	case rule.Tenant != "":
		for _, pool := range pools {
			bounded := rule.Concurrent
			if pool == protocol.SessionPool {
				bounded = rule.Sessions
			}
			if bounded == 0 {
				continue
			}
			n := count(wire.InFlightSubject(fleet, pool, rule.Tenant, "*", "*"))
			if pool == protocol.SessionPool {
				use.Turns = n
			} else {
				use.Calls = max(use.Calls, n) // each pool has the bound
			}
		}
		if rule.Stored > 0 {
			stored, _, failed := natsio.Stored(ctx, nc, fleet, rule.Tenant)
			use.Stored, err = stored, errors.Join(err, failed)
		}
		use.Left = left(string(rule.Tenant), RateOf(rule))
	case rule.Pool != "":
		use.Waiting = count(wire.CallSubject(fleet, rule.Pool, "*", "*"))
	case isModel && !strings.Contains(provider, "*"):
		requests, tokens := (&Rules{list: []Rule{*rule}}).OfModel(provider)
		use.Left, use.TokensLeft = left(rule.Lane, requests), left(rule.Lane+"/tokens", tokens)
	}
	return use, err
}

// left is how much may be spent at once.
func (s *Spending) left(ctx context.Context, b Bucket) (float64, error) {
	if err := s.read(ctx); err != nil {
		return 0, fmt.Errorf("rate of %s: %w", s.subject, err)
	}
	now := time.Now() // a clock that is wrong by some seconds is wrong by what these fill up
	bucket := core.Limit{Rate: b.Rate, Burst: b.Burst}
	bucket.Restore(s.spent, max(now.Sub(s.at), 0), now)
	return float64(b.Burst) - bucket.Spent(now), nil
}
