package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Spending is the rate of a tenant, or of a model's provider, as one process sees it. What was
// spent is a record that each process replaces by compare-and-set for each call that it sends, so
// the rate holds for all processes together. Times are the server's, as far as processes know its
// clock. The record has the time of its writer, and time never goes back: so the differences
// between the clocks of processes count once. It is safe for concurrent use.
type Spending struct {
	js      jetstream.JetStream
	fleet   protocol.Fleet
	subject string // a tenant, or a lane

	turn     chan struct{} // has one element while a caller uses what follows
	bucket   jetstream.KeyValue
	known    bool // the fields below are those of the record, as far as is known
	revision uint64
	spent    float64
	at       time.Time // when that was so
}

// NewSpending reads nothing yet.
func NewSpending(js jetstream.JetStream, fleet protocol.Fleet, of string) *Spending {
	return &Spending{js: js, fleet: fleet, subject: of, turn: make(chan struct{}, 1)}
}

// spending is the record.
type spending struct {
	Type    string    `json:"type"`
	Version int       `json:"version"`
	Spent   float64   `json:"spent"`
	At      time.Time `json:"at,omitzero"` // when that was so; in older records, when it was stored
}

const (
	typeSpending = "spending"
	// conflictPause is the pause after another process has replaced the record.
	conflictPause = 5 * time.Millisecond
	// unknownFor is how long a write is repeated whose outcome is unknown.
	unknownFor = 10 * time.Second
	// maxAhead bounds how far the clock of a writer may be ahead of the server's. More is an error
	// of that clock, for which others do not wait.
	maxAhead = time.Second
)

// Bucket is a rate a second, and how much may be spent at once.
type Bucket struct {
	Rate  float64
	Burst int
}

// Spend spends n and returns 0 if the bucket has 1 or more; or it returns how long it takes until
// the bucket has that. So n may be more than the bucket has: those who come after wait for it. now
// is the time of the server.
func (s *Spending) Spend(ctx context.Context, b Bucket, n float64, now func() time.Time) (wait time.Duration, err error) {
	return s.change(ctx, b, n, true, now)
}

// Correct spends n, or gives it back if it is negative, whatever the bucket has.
func (s *Spending) Correct(ctx context.Context, b Bucket, n float64, now func() time.Time) error {
	_, err := s.change(ctx, b, n, false, now)
	return err
}

func (s *Spending) change(ctx context.Context, b Bucket, n float64, bounded bool, now func() time.Time) (wait time.Duration, err error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return 0, fmt.Errorf("rate of %s: %w", s.subject, context.Cause(ctx))
	}
	for fresh := false; ; {
		if !s.known {
			fresh = true
			if err := s.read(ctx); err != nil {
				return 0, fmt.Errorf("rate of %s: %w", s.subject, err)
			}
		}
		bucket := core.Limit{Rate: b.Rate, Burst: b.Burst}
		at := now()
		behind := max(s.at.Sub(at), 0) // this clock, behind that of another process
		at = at.Add(behind)
		bucket.Restore(s.spent, at.Sub(s.at), at)
		if blocked, wait := bucket.Blocked(0, at); bounded && blocked != core.NotBlocked {
			if fresh {
				return wait + behind, nil
			}
			s.known = false // another process may have given some back
			continue
		}
		spent := max(bucket.Spent(at)+n, 0)
		err := s.writeKnown(ctx, spent, at)
		if err == nil {
			s.spent, s.at = spent, at
			return 0, nil
		}
		s.known = false
		if !natsio.Overtaken(err) || !pause.For(ctx, conflictPause) {
			return 0, fmt.Errorf("rate of %s: %w", s.subject, err)
		}
	}
}

// writeKnown is write, repeated while its outcome is unknown: what was spent counts once, or twice
// if another process has written before the outcome was known.
func (s *Spending) writeKnown(ctx context.Context, spent float64, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, unknownFor)
	defer cancel()
	return natsio.UntilKnown(ctx, func(ctx context.Context) error { return s.write(ctx, spent, at) }, func(ctx context.Context) (bool, error) {
		err := s.read(ctx)
		return err == nil && s.spent == spent && s.at.Equal(at), err
	})
}

func (s *Spending) key() string { return "spent." + s.subject }

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
	if latest := s.at.Add(maxAhead); r.At.After(latest) {
		s.at = latest
	} else if !r.At.IsZero() {
		s.at = r.At
	}
	return nil
}

func (s *Spending) write(ctx context.Context, spent float64, at time.Time) error {
	body, err := json.Marshal(spending{Type: typeSpending, Version: wire.Version, Spent: spent, At: at})
	if err != nil {
		return err
	}
	revision := uint64(0)
	if s.revision == 0 {
		revision, err = s.bucket.Create(ctx, s.key(), body)
	} else {
		revision, err = s.bucket.Update(ctx, s.key(), body, s.revision)
	}
	if err == nil {
		s.revision = revision
	}
	return err
}
