package limits

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
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
	rules, _, err := s.read(ctx)
	return rules, err
}

func (s *Store) read(ctx context.Context) (*Rules, uint64, error) {
	entry, err := s.bucket.Get(ctx, wire.LimitsKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the limits of the fleet: %w", err)
	}
	rules, err := decode(entry.Value())
	return rules, entry.Revision(), err
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
			return nil, fmt.Errorf("%w: %s", ErrUnknown, cmp.Or(string(about.Lane), string(about.Tenant), string(about.Pool)))
		}
		return left, nil
	})
}

// change replaces the rules on the condition that they have not changed since they were read.
func (s *Store) change(ctx context.Context, by func([]Rule) ([]Rule, error)) error {
	for {
		rules, revision, err := s.read(ctx)
		if err != nil {
			return err
		}
		list, err := by(slices.Clone(rules.List()))
		if err != nil {
			return err
		}
		if rules, err = newRules(list); err != nil {
			return err
		}
		body, err := encode(rules)
		if err != nil {
			return err
		}
		err = natsio.UntilKnown(ctx, func(ctx context.Context) (err error) {
			if revision == 0 {
				_, err = s.bucket.Create(ctx, wire.LimitsKey, body)
			} else {
				_, err = s.bucket.Update(ctx, wire.LimitsKey, body, revision)
			}
			return err
		}, func(ctx context.Context) (bool, error) {
			stored, _, err := s.read(ctx)
			if err != nil {
				return false, err
			}
			is, err := encode(stored)
			return bytes.Equal(is, body), err
		})
		if natsio.OutcomeOf(err) != natsio.Conflict {
			return err
		}
	}
}

// encode is the record of rules; nil for none.
func encode(rules *Rules) ([]byte, error) {
	if rules == nil {
		return nil, nil
	}
	return json.Marshal(record{Type: typeLimits, Version: wire.Version, Rules: append([]Rule{}, rules.list...)})
}
