package limits

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Store is the rules as they are stored. It is safe for concurrent use.
type Store struct{ bucket jetstream.KeyValue }

// Open opens the bucket of a fleet, and creates it, with the replicas of the fleet's calls, if it
// is missing.
func Open(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	store, err := OpenExisting(ctx, js, fleet)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		var bucket jetstream.KeyValue
		var calls jetstream.Stream
		if calls, err = js.Stream(ctx, wire.CallsStream(fleet)); err == nil {
			bucket, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: wire.LimitsBucket(fleet), Replicas: calls.CachedInfo().Config.Replicas, MaxBytes: natsio.LimitBytes,
			})
		}
		store = &Store{bucket: bucket}
	}
	if err != nil {
		return nil, fmt.Errorf("open the limits of the fleet: %w", err)
	}
	return store, nil
}

// OpenExisting is [Open] for a process that only reads: the error is
// [jetstream.ErrBucketNotFound] in a fleet that never had a limit.
func OpenExisting(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (*Store, error) {
	bucket, err := js.KeyValue(ctx, wire.LimitsBucket(fleet))
	return &Store{bucket: bucket}, err
}

// record is what is stored.
type record struct {
	Type    string `json:"type"`
	Version int    `json:"version"`
	Rules   []Rule `json:"rules"`
}

const typeLimits = "limits"

func decode(body []byte) (*Rules, error) {
	var r record
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("read the limits of the fleet: %w", err)
	}
	if r.Type != typeLimits || r.Version != wire.Version {
		return nil, fmt.Errorf("read the limits of the fleet: type %q, version %d: must be %q, %d", r.Type, r.Version, typeLimits, wire.Version)
	}
	return newRules(r.Rules)
}

// Rules returns the stored rules.
func (s *Store) Rules(ctx context.Context) (*Rules, error) {
	stored, _, err := natsio.ReadKey(ctx, s.bucket, wire.LimitsKey)
	if err != nil {
		return nil, err
	}
	return decodeStored(stored)
}

// decodeStored is decode; nil for a fleet that never had a limit.
func decodeStored(stored []byte) (*Rules, error) {
	if stored == nil {
		return nil, nil //nolint:nilnil // none
	}
	return decode(stored)
}

// Set stores the fields of a rule that are not zero; others of a rule that is about the same lanes,
// tenant or pool stay. Errors about the rule wrap [ErrInvalid].
func (s *Store) Set(ctx context.Context, rule Rule) error {
	if err := rule.Validate(); err != nil {
		return err
	}
	return s.change(ctx, func(list []Rule) ([]Rule, error) {
		i := slices.IndexFunc(list, func(r Rule) bool { return r.same(&rule) })
		if i < 0 {
			return append(list, rule), nil
		}
		list[i] = rule.over(list[i])
		return list, nil
	})
}

// Replace stores rules and removes all others.
func (s *Store) Replace(ctx context.Context, rules []Rule) error {
	return s.change(ctx, func([]Rule) ([]Rule, error) { return rules, nil })
}

// Remove removes the rule that is about the same lanes, tenant or pool. The error wraps
// [ErrUnknown].
func (s *Store) Remove(ctx context.Context, about Rule) error {
	return s.change(ctx, func(list []Rule) ([]Rule, error) {
		left := slices.DeleteFunc(list, func(r Rule) bool { return r.same(&about) })
		if len(left) == len(list) {
			return nil, fmt.Errorf("%w: %s", ErrUnknown, cmp.Or(about.Lane, string(about.Tenant), string(about.Pool)))
		}
		return left, nil
	})
}

// change replaces the rules on the condition that they have not changed since they were read.
func (s *Store) change(ctx context.Context, by func([]Rule) ([]Rule, error)) error {
	if err := judge.Judge(ctx, judge.Change, judge.Object{Kind: judge.Limit, Owner: judge.TheFleet()}); err != nil {
		return err
	}
	return natsio.ChangeKey(ctx, s.bucket, wire.LimitsKey, func(stored []byte) ([]byte, error) {
		rules, err := decodeStored(stored)
		if err != nil {
			return nil, err
		}
		list, err := by(slices.Clone(rules.List()))
		if err != nil {
			return nil, err
		}
		if rules, err = newRules(list); err != nil {
			return nil, err
		}
		return json.Marshal(record{Type: typeLimits, Version: wire.Version, Rules: append([]Rule{}, rules.list...)})
	})
}

// Watch is the rules of a fleet as a worker knows them. Make one with [NewWatch], call Load once,
// and let Run keep it up to date. Rules is safe for concurrent use.
type Watch struct {
	js      jetstream.JetStream
	fleet   protocol.Fleet
	logger  *slog.Logger
	changed func() // called after the rules have changed

	rules    atomic.Pointer[Rules] // nil without rules, so that a holder compares one pointer
	revision uint64
}

const (
	// readPeriod is how often the rules are read without a notified change.
	readPeriod = 5 * time.Second
	// confirmPause is after how long they are read once more after a change: on several servers,
	// the first answer may come from a server that lags.
	confirmPause = 300 * time.Millisecond
	readTimeout  = time.Second
)

// NewWatch watches nothing yet. changed is called by the goroutine of Run.
func NewWatch(js jetstream.JetStream, fleet protocol.Fleet, logger *slog.Logger, changed func()) *Watch {
	return &Watch{js: js, fleet: fleet, logger: logger, changed: changed}
}

// Rules returns the rules; nil without any, and without a watch.
func (w *Watch) Rules() *Rules {
	if w == nil {
		return nil
	}
	return w.rules.Load()
}

// Load reads the rules. After an error they are as they were.
func (w *Watch) Load(ctx context.Context) error {
	msg, err := w.request(ctx)
	switch {
	case err != nil: // without the bucket no server answers, and a listener to all requests hides that
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if _, missing := w.js.Stream(ctx, "KV_"+wire.LimitsBucket(w.fleet)); errors.Is(missing, jetstream.ErrStreamNotFound) {
			w.apply(nil, 0)
			return nil
		}
		return fmt.Errorf("read the limits of the fleet: %w", err)
	case msg.Header.Get("Status") == "404" && w.revision == 0: // later, a server that is behind has none: the key is never removed
		return nil
	case msg.Header.Get("Status") != "":
		return fmt.Errorf("read the limits of the fleet: %s %s", msg.Header.Get("Status"), msg.Header.Get("Description"))
	}
	rules, err := decode(msg.Data)
	if err != nil {
		return err
	}
	var revision uint64
	_, _ = fmt.Sscan(msg.Header.Get(jetstream.SequenceHeader), &revision)
	w.apply(rules, revision)
	return nil
}

func (w *Watch) request(ctx context.Context) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return w.js.Conn().RequestWithContext(ctx, "$JS.API.DIRECT.GET.KV_"+wire.LimitsBucket(w.fleet)+"."+wire.LimitsSubject(w.fleet), nil)
}

// apply replaces the rules by newer ones; a deleted bucket has none.
func (w *Watch) apply(rules *Rules, revision uint64) {
	if revision == w.revision || revision != 0 && revision < w.revision {
		return
	}
	if w.revision = revision; len(rules.List()) == 0 {
		rules = nil
	}
	if before := w.rules.Swap(rules); before != rules {
		w.changed()
	}
}

// Run reads the rules whenever they change, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	natsio.FollowKey(ctx, w.js.Conn(), wire.LimitsSubject(w.fleet), readPeriod, func(changed bool) (time.Duration, error) {
		err := w.Load(ctx)
		if changed || err != nil {
			return confirmPause, err
		}
		return readPeriod, nil
	}, func(err error) {
		w.logger.WarnContext(ctx, "limits cannot be read: those that were read last stay in force", slog.Any("error", err))
	})
}

// LoadUntil reads the rules until that succeeds. It reports false when ctx ends first.
func (w *Watch) LoadUntil(ctx context.Context) bool {
	return pause.Until(ctx, pause.Resume, func() bool {
		err := w.Load(ctx)
		if err != nil {
			w.logger.WarnContext(ctx, "limits cannot be read: no call starts before they are", slog.Any("error", err))
		}
		return err == nil
	})
}

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
