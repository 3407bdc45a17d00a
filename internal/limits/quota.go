package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Spending is the rate of a tenant as one process sees it. What was spent is a record that each
// process replaces by compare-and-set for each call that it sends, so the rate holds for all
// processes together. Times are the server's. It is safe for concurrent use.
type Spending struct {
	js     jetstream.JetStream
	fleet  protocol.Fleet
	tenant protocol.Tenant

	mu       sync.Mutex
	bucket   jetstream.KeyValue
	known    bool // the fields below are those of the record, as far as is known
	revision uint64
	spent    float64
	at       time.Time // when that was so
}

// NewSpending reads nothing yet.
func NewSpending(js jetstream.JetStream, fleet protocol.Fleet, tenant protocol.Tenant) *Spending {
	return &Spending{js: js, fleet: fleet, tenant: tenant}
}

// spending is the record.
type spending struct {
	Type    string  `json:"type"`
	Version int     `json:"version"`
	Spent   float64 `json:"spent"`
}

const (
	typeSpending = "spending"
	// conflictPause is the pause after another process has replaced the record.
	conflictPause = 5 * time.Millisecond
)

// Take spends one token, and returns 0; or how long it takes until there is one. now is the time of
// the server.
func (s *Spending) Take(ctx context.Context, rule *Rule, now func() time.Time) (wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if !s.known {
			if err := s.read(ctx); err != nil {
				return 0, fmt.Errorf("rate of tenant %s: %w", s.tenant, err)
			}
		}
		var bucket core.Limit
		bucket.Rate, bucket.Burst = rule.PerSecond()
		at := now()
		bucket.Restore(s.spent, at.Sub(s.at), at)
		if blocked, wait := bucket.Blocked(0, at); blocked != core.NotBlocked {
			return wait, nil
		}
		spent := bucket.Spent(at) + 1
		err := s.write(ctx, spent)
		if err == nil {
			s.spent, s.at = spent, at
			return 0, nil
		}
		s.known = false
		if !errors.Is(err, jetstream.ErrKeyRevisionMismatch) && !errors.Is(err, jetstream.ErrKeyExists) || !pause.For(ctx, conflictPause) {
			return 0, fmt.Errorf("rate of tenant %s: %w", s.tenant, err)
		}
	}
}

func (s *Spending) key() string { return "spent." + string(s.tenant) }

func (s *Spending) read(ctx context.Context) error {
	var err error
	if s.bucket == nil {
		if s.bucket, err = s.js.KeyValue(ctx, wire.LimitsBucket(s.fleet)); err != nil {
			return err
		}
	}
	entry, err := s.bucket.Get(ctx, s.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		s.known, s.revision, s.spent, s.at = true, 0, 0, time.Time{}
		return nil
	}
	if err != nil {
		return err
	}
	var r spending
	if err := json.Unmarshal(entry.Value(), &r); err != nil {
		return err
	}
	s.known, s.revision, s.spent, s.at = true, entry.Revision(), r.Spent, entry.Created()
	return nil
}

func (s *Spending) write(ctx context.Context, spent float64) (err error) {
	body, err := json.Marshal(spending{Type: typeSpending, Version: wire.Version, Spent: spent})
	if err != nil {
		return err
	}
	if s.revision == 0 {
		s.revision, err = s.bucket.Create(ctx, s.key(), body)
	} else {
		s.revision, err = s.bucket.Update(ctx, s.key(), body, s.revision)
	}
	return err
}
