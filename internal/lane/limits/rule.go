// Package limits is the rules that bound how a fleet is used: how many calls of a lane run at once,
// how many start in a time, how many may wait, and what a tenant may use.
//
//	coordinator limits set ──► TF_LIMITS, key "rules": all rules, replaced by compare-and-set
//	                                 │ watched: within a second
//	                                 ├─► each worker: Watch ──► rule of a lane ──► core.Limit, counted by its holder
//	                                 └─► each caller: bounds of what waits, quotas of tenants
//
// All rules are one record, so that a change is checked against the rules that it meets. The record
// decides; a worker that cannot read it keeps the rules that it read last. Without the bucket there
// are no rules.
package limits

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of rules.
const (
	MaxRules      = 1000
	MaxConcurrent = 1_000_000
	MaxBurst      = 1_000_000
	MaxWaiting    = 10_000_000
	MaxWeight     = 1000
	// MinStored and MaxStored bound a quota of stored bytes.
	MinStored = 1 << 20
	MaxStored = 1 << 50
	// MaxRate is the highest rate, in starts a second, and MinRate the lowest: one a day.
	MaxRate = 100_000
	MinRate = 1.0 / (24 * 60 * 60)
	// maxPattern bounds a pattern, in bytes.
	maxPattern = 256
)

// Errors of rules.
var (
	ErrInvalid = codes.As(codes.ErrInvalid, errors.New("invalid limit"))
	ErrUnknown = codes.As(codes.ErrNotFound, errors.New("there is no such limit"))
)

// Rule bounds each lane that matches its pattern, a tenant or a pool; one of the three is set. A
// lane follows one rule: the most specific one.
type Rule struct {
	// Lane is the pattern, such as account/*.
	Lane Pattern `json:"lane,omitempty"`
	// Tenant is whose share of the slots and whose quotas the rule is about. "default" is the
	// tenant of calls that name none.
	Tenant protocol.Tenant `json:"tenant,omitempty"`
	Pool   protocol.Pool   `json:"pool,omitempty"`
	// Weight is the tenant's share: with weights 3 and 1, two tenants get slots 3 to 1. Tenants
	// without a rule have 1.
	Weight int `json:"weight,omitempty"`
	// Concurrent is how many calls of a lane run at once, or how many calls of a tenant are
	// accepted and have no result; 0 is no bound.
	Concurrent int `json:"concurrent,omitempty"`
	// Rate is how many calls of a lane start in a time, or how many of a tenant are accepted; the
	// zero value is no bound.
	Rate Rate `json:"rate,omitzero"`
	// Burst is how many of them may start at once; 0 means [Rate.DefaultBurst] for lanes, and what
	// ten seconds have for tenants.
	Burst int `json:"burst,omitempty"`
	// Tokens is how many tokens go to and come from a model's provider in a time; of lanes
	// model/* only. A minute's worth may be used at once.
	Tokens Rate `json:"tokens,omitzero"`
	// Waiting is how many calls a lane or a pool may have in its mailboxes; 0 is no bound.
	Waiting int `json:"waiting,omitempty"`
	// Sessions is how many turns of a tenant are accepted and have not ended; 0 is no bound.
	Sessions int `json:"sessions,omitempty"`
	// Stored is how many bytes may be stored for the calls and sessions of a tenant; 0 is no bound.
	Stored int64 `json:"stored,omitempty"`
}

// Validate reports every invalid field, joined; each error wraps [ErrInvalid].
func (r *Rule) Validate() error {
	var all []error
	invalid := func(format string, args ...any) {
		all = append(all, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	bounded := func(name string, value, most int) {
		if value < 0 || value > most {
			invalid("%s %d: must be 1 to %d", name, value, most)
		}
	}
	bounded("weight", r.Weight, MaxWeight)
	bounded("concurrent", r.Concurrent, MaxConcurrent)
	bounded("burst", r.Burst, MaxBurst)
	bounded("waiting", r.Waiting, MaxWaiting)
	bounded("sessions", r.Sessions, MaxConcurrent)
	if r.Stored != 0 && (r.Stored < MinStored || r.Stored > MaxStored) {
		invalid("stored %d: must be 1 MiB to 1024 TiB, in bytes %d to %d", r.Stored, MinStored, int64(MaxStored))
	}
	if err := r.Rate.validate(); err != nil {
		all = append(all, err)
	}
	if err := r.Tokens.validate(); err != nil {
		all = append(all, err)
	}
	if !r.Tokens.IsZero() && !strings.HasPrefix(string(r.Lane), ModelLanes) {
		invalid("tokens %s: only lanes of models have them, such as model/openai", r.Tokens)
	}
	if r.Burst > 0 && r.Rate.IsZero() {
		invalid("burst %d: needs a rate", r.Burst)
	}
	return errors.Join(append(all, r.validateSubject()...)...)
}

// validateSubject checks what the rule is about, and that it says something about that.
func (r *Rule) validateSubject() (all []error) {
	invalid := func(format string, args ...any) {
		all = append(all, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	running := r.Concurrent != 0 || !r.Rate.IsZero()
	switch {
	case r.Tenant != "" && r.Pool != "", (r.Tenant != "" || r.Pool != "") && r.Lane != "":
		invalid("a rule is about one of lane, tenant and pool")
	case r.Tenant != "":
		if _, err := protocol.ParseTenant(string(r.Tenant)); err != nil {
			invalid("%w", err)
		}
		if r.Waiting != 0 {
			invalid("tenant %s: takes weight, concurrent, rate, burst, sessions and stored, not waiting", r.Tenant)
		} else if !running && r.Weight == 0 && r.Sessions == 0 && r.Stored == 0 {
			invalid("tenant %s: needs weight, concurrent, rate, sessions or stored", r.Tenant)
		}
	case r.Pool != "":
		if _, err := protocol.ParsePool(string(r.Pool)); err != nil {
			invalid("%w", err)
		}
		if running || r.Weight != 0 || r.Sessions != 0 || r.Stored != 0 || r.Waiting == 0 {
			invalid("pool %s: needs waiting, and takes nothing else", r.Pool)
		}
	default:
		if err := r.Lane.validate(); err != nil {
			all = append(all, err)
		}
		if r.Weight != 0 || r.Sessions != 0 || r.Stored != 0 {
			invalid("lane %s: weight, sessions and stored are of tenants", r.Lane)
		} else if !running && r.Waiting == 0 && r.Tokens.IsZero() {
			invalid("%s: needs concurrent, rate or waiting", r.Lane)
		}
	}
	return all
}

// over returns the rule with its unset fields from an older rule.
func (r *Rule) over(older Rule) Rule {
	older.Weight = cmp.Or(r.Weight, older.Weight)
	older.Concurrent = cmp.Or(r.Concurrent, older.Concurrent)
	older.Rate = cmp.Or(r.Rate, older.Rate)
	older.Burst = cmp.Or(r.Burst, older.Burst)
	older.Tokens = cmp.Or(r.Tokens, older.Tokens)
	older.Waiting = cmp.Or(r.Waiting, older.Waiting)
	older.Sessions = cmp.Or(r.Sessions, older.Sessions)
	older.Stored = cmp.Or(r.Stored, older.Stored)
	return older
}

// PerSecond is the rate in starts a second, and how many may start at once; 0 is no bound.
func (r *Rule) PerSecond() (rate float64, burst int) {
	if r.Rate.IsZero() {
		return 0, 0
	}
	if r.Tenant != "" {
		const seconds = 10
		return r.Rate.PerSecond(), cmp.Or(r.Burst, max(int(seconds*r.Rate.PerSecond()), 1))
	}
	return r.Rate.PerSecond(), cmp.Or(r.Burst, r.Rate.DefaultBurst())
}

// ModelLanes begin the lanes of models' providers: model/openai. Requests to a provider are no
// calls of a lane, but have the rule of this one.
const ModelLanes = "model/"

// OfModel returns the buckets of requests and of tokens of a model's provider. Only rules that
// name model lanes count: what is said of all lanes is about calls. A bucket without a rate bounds
// nothing.
func (r *Rules) OfModel(provider string) (requests, tokens Bucket) {
	lane := protocol.Lane(ModelLanes + provider)
	rule := r.find(func(rule *Rule) bool {
		return strings.HasPrefix(string(rule.Lane), ModelLanes) && rule.Lane.Matches(lane)
	})
	if rule == nil {
		return requests, tokens
	}
	requests.Rate, requests.Burst = rule.PerSecond()
	if !rule.Tokens.IsZero() {
		tokens.Rate = rule.Tokens.PerSecond()
		tokens.Burst = max(int(tokens.Rate*60), 1)
	}
	return requests, tokens
}

// Pattern names lanes: two segments with a slash between, as in account/acme. A segment may end
// with *, which stands for any text: account/*, account/eu-*, */*.
type Pattern string

func (p Pattern) validate() error {
	invalid := func(why string) error {
		return fmt.Errorf("%w: lane %q: %s; give two segments, such as account/acme or account/*", ErrInvalid, string(p), why)
	}
	if len(p) > maxPattern {
		return fmt.Errorf("%w: lane: %d bytes: must be at most %d", ErrInvalid, len(p), maxPattern)
	}
	segments := strings.Split(string(p), "/")
	if len(segments) != 2 {
		return invalid(fmt.Sprintf("%d segments, and a lane is the first two of a resource key", len(segments)))
	}
	for _, segment := range segments {
		if star := strings.IndexByte(segment, '*'); star >= 0 && star < len(segment)-1 {
			return invalid("* must be the end of a segment")
		}
	}
	example := strings.ReplaceAll(string(p), "*", "x") // what the pattern matches, if it matches anything
	if key, err := protocol.ParseResourceKey(example); err != nil || string(key) != example {
		return invalid("matches no lane")
	}
	return nil
}

// Matches reports whether a lane has the pattern.
func (p Pattern) Matches(lane protocol.Lane) bool {
	first, second, _ := strings.Cut(string(p), "/")
	one, two, _ := strings.Cut(string(lane), "/")
	return matches(first, one) && matches(second, two)
}

func matches(pattern, segment string) bool {
	if prefix, open := strings.CutSuffix(pattern, "*"); open {
		return strings.HasPrefix(segment, prefix)
	}
	return pattern == segment
}

// moreSpecific orders patterns that match the same lane: the first segment decides, then the
// second. A segment without * is more specific than one with it, and of two with it the longer.
func (p Pattern) moreSpecific(q Pattern) int {
	weight := func(segment string) int {
		if prefix, open := strings.CutSuffix(segment, "*"); open {
			return len(prefix)
		}
		return maxPattern + 1
	}
	first, second, _ := strings.Cut(string(p), "/")
	one, two, _ := strings.Cut(string(q), "/")
	return cmp.Or(cmp.Compare(weight(one), weight(first)), cmp.Compare(weight(two), weight(second)), cmp.Compare(p, q))
}

// Rate is a number of starts in a second, a minute or an hour, as in 60/min.
type Rate struct {
	N   int
	Per time.Duration
}

// units are the ways to write what a rate is per; the first of each is how it is printed.
var units = []struct { //nolint:gochecknoglobals // a constant table
	name string
	per  time.Duration
}{{"s", time.Second}, {"min", time.Minute}, {"h", time.Hour}, {"sec", time.Second}, {"second", time.Second}, {"m", time.Minute}, {"minute", time.Minute}, {"hour", time.Hour}}

// ParseRate reads a rate such as 5/s, 60/min or 1000/h. Errors wrap [ErrInvalid].
func ParseRate(s string) (r Rate, err error) {
	return r, r.UnmarshalText([]byte(s))
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Rate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(number)
	at := slices.IndexFunc(units, func(u struct {
		name string
		per  time.Duration
	},
	) bool {
		return u.name == unit
	})
	if err != nil || at < 0 {
		return fmt.Errorf("%w: rate %q: must be a whole number per s, min or h, such as 60/min", ErrInvalid, text)
	}
	*r = Rate{N: n, Per: units[at].per}
	if r.IsZero() || n <= 0 {
		return fmt.Errorf("%w: rate %q: must be more than 0", ErrInvalid, text)
	}
	return r.validate()
}

// MarshalText implements [encoding.TextMarshaler].
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r Rate) String() string {
	for _, u := range units {
		if u.per == r.Per {
			return strconv.Itoa(r.N) + "/" + u.name
		}
	}
	return ""
}

// IsZero reports whether it is no bound.
func (r Rate) IsZero() bool { return r == Rate{} }

// PerSecond is the rate in starts a second.
func (r Rate) PerSecond() float64 { return float64(r.N) / r.Per.Seconds() }

// DefaultBurst is what a tenth of a second has, and at least 1.
func (r Rate) DefaultBurst() int { return max(int(math.Ceil(r.PerSecond()/10)), 1) }

func (r Rate) validate() error {
	if r.IsZero() {
		return nil
	}
	if r.N <= 0 || r.Per <= 0 || r.PerSecond() > MaxRate || r.PerSecond() < MinRate {
		return fmt.Errorf("%w: rate %s: must be more than 0 and at most %d/s", ErrInvalid, r, MaxRate)
	}
	return nil
}

// Rules are the rules of a fleet. They are not changed; a nil pointer has none.
type Rules struct {
	list   []Rule // the most specific one first
	bounds bool   // a rule bounds what callers may send
}

// newRules checks rules and orders them. Errors wrap [ErrInvalid].
func newRules(list []Rule) (*Rules, error) {
	if len(list) > MaxRules {
		return nil, fmt.Errorf("%w: %d rules: must be at most %d", ErrInvalid, len(list), MaxRules)
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Pool, b.Pool), a.Lane.moreSpecific(b.Lane))
	})
	var all []error
	for i := range list {
		all = append(all, list[i].Validate())
		if i > 0 && list[i].same(&list[i-1]) {
			all = append(all, fmt.Errorf("%w: %s: has two rules", ErrInvalid, list[i].subject()))
		}
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	return &Rules{list: list, bounds: slices.ContainsFunc(list, func(r Rule) bool { return r.Waiting > 0 || r.isQuota() })}, nil
}

// Parse reads a JSON list of rules, as they are stored. Errors wrap [ErrInvalid].
func Parse(body []byte) ([]Rule, error) {
	var list []Rule
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&list)
	if err == nil {
		_, err = newRules(list)
	}
	if err != nil && !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("%w: must be a JSON list, as coordinator limits ls --json prints it: %w", ErrInvalid, err)
	}
	return list, err
}

// Of returns the rule of a lane; nil when none matches.
func (r *Rules) Of(lane protocol.Lane) *Rule {
	return r.find(func(rule *Rule) bool { return rule.Lane != "" && rule.Lane.Matches(lane) })
}

// OfTenant returns the rule of a tenant; nil when there is none.
func (r *Rules) OfTenant(tenant protocol.Tenant) *Rule {
	return r.find(func(rule *Rule) bool { return rule.Tenant != "" && rule.Tenant == tenant })
}

// OfPool returns the rule of a pool; nil when there is none.
func (r *Rules) OfPool(pool protocol.Pool) *Rule {
	return r.find(func(rule *Rule) bool { return rule.Pool != "" && rule.Pool == pool })
}

func (r *Rules) find(is func(*Rule) bool) *Rule {
	if r == nil {
		return nil
	}
	for i := range r.list {
		if is(&r.list[i]) {
			return &r.list[i]
		}
	}
	return nil
}

// Weight returns the weight of a tenant.
func (r *Rules) Weight(tenant protocol.Tenant) int {
	if rule := r.OfTenant(tenant); rule != nil {
		return max(rule.Weight, 1)
	}
	return 1
}

// BoundCallers reports whether a rule bounds what callers may send.
func (r *Rules) BoundCallers() bool { return r != nil && r.bounds }

// BoundInFlight reports whether a rule bounds how many calls or turns of a tenant are in flight.
func (r *Rules) BoundInFlight() bool {
	return slices.ContainsFunc(r.List(), func(rule Rule) bool { return rule.Tenant != "" && rule.Concurrent > 0 || rule.Sessions > 0 })
}

// isQuota reports whether the rule bounds what a tenant may send.
func (r *Rule) isQuota() bool {
	return r.Tenant != "" && (r.Concurrent > 0 || r.Sessions > 0 || r.Stored > 0 || !r.Rate.IsZero())
}

// InFlight is how many calls of a tenant may be accepted without a result in a pool; 0 is no bound.
// Calls of the pool of sessions are turns.
func (r *Rule) InFlight(pool protocol.Pool) int {
	if pool == protocol.SessionPool {
		return r.Sessions
	}
	return r.Concurrent
}

// subject names what the rule is about, as in tenant acme.
func (r *Rule) subject() string {
	switch {
	case r.Tenant != "":
		return "tenant " + string(r.Tenant)
	case r.Pool != "":
		return "pool " + string(r.Pool)
	}
	return "lane " + string(r.Lane)
}

// same reports whether two rules are about the same lanes, tenant or pool.
func (r *Rule) same(other *Rule) bool {
	return r.Lane == other.Lane && r.Tenant == other.Tenant && r.Pool == other.Pool
}

// List returns all rules, the most specific one first. The slice is the rules' own.
func (r *Rules) List() []Rule {
	if r == nil {
		return nil
	}
	return r.list
}

// HasRates reports whether a rule of lanes has a rate.
func (r *Rules) HasRates() bool {
	return slices.ContainsFunc(r.List(), func(rule Rule) bool { return rule.Lane != "" && !rule.Rate.IsZero() })
}
