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
	maxConcurrent = 1_000_000
	maxBurst      = 1_000_000
	maxWaiting    = 10_000_000
	maxWeight     = 1000
	// minStored and maxStored bound a quota of stored bytes.
	minStored = 1 << 20
	maxStored = 1 << 50
	// maxRate is the highest rate, in starts a second.
	maxRate = 100_000
	// maxPattern bounds a pattern, in bytes.
	maxPattern = 256
)

// Errors of rules.
var (
	ErrInvalid = codes.As(codes.ErrInvalid, errors.New("invalid limit"))
	ErrUnknown = codes.As(codes.ErrNotFound, errors.New("there is no such limit"))
)

// Rule bounds the calls of lanes, of a tenant, or of a pool: it names one of the three. A lane
// follows one limit, the most specific one that matches.
type Rule struct {
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
	// model/PROVIDER, with units as Rate; "" means no bound. A minute's worth may be used at once.
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
func (r Rule) Validate() error {
	_, rateErr := parseRate(r.Rate)
	_, tokensErr := parseRate(r.Tokens)
	all := []error{rateErr, tokensErr}
	invalid := func(format string, args ...any) {
		all = append(all, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	bounded := func(name string, value, most int) {
		if value < 0 || value > most {
			invalid("%s %d: must be 1 to %d", name, value, most)
		}
	}
	bounded("weight", r.Weight, maxWeight)
	bounded("concurrent", r.Concurrent, maxConcurrent)
	bounded("burst", r.Burst, maxBurst)
	bounded("waiting", r.Waiting, maxWaiting)
	bounded("sessions", r.Sessions, maxConcurrent)
	if r.Stored != 0 && (r.Stored < minStored || r.Stored > maxStored) {
		invalid("stored %d: must be 1 MiB to 1024 TiB, in bytes %d to %d", r.Stored, minStored, int64(maxStored))
	}
	if r.Tokens != "" && !strings.HasPrefix(r.Lane, ModelLanes) {
		invalid("tokens %s: only lanes of models have them, such as model/openai", r.Tokens)
	}
	if r.Burst > 0 && r.Rate == "" {
		invalid("burst %d: needs a rate", r.Burst)
	}
	running := r.Concurrent != 0 || r.Rate != ""
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
		all = append(all, validatePattern(r.Lane))
		if r.Weight != 0 || r.Sessions != 0 || r.Stored != 0 {
			invalid("lane %s: weight, sessions and stored are of tenants", r.Lane)
		} else if !running && r.Waiting == 0 && r.Tokens == "" {
			invalid("%s: needs concurrent, rate or waiting", r.Lane)
		}
	}
	return errors.Join(all...)
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

// RateOf is the rate of a rule, and its burst or the default: what a tenth of a second has, and for
// a tenant ten seconds, and at least 1. A rule without a rate has none.
func RateOf(r *Rule) Bucket {
	rate, _ := parseRate(r.Rate) // it is valid
	burst := math.Ceil(rate.perSecond() / 10)
	if r.Tenant != "" {
		burst = math.Floor(rate.perSecond() * 10)
	}
	if rate.n == 0 {
		return Bucket{}
	}
	return Bucket{Rate: rate.perSecond(), Burst: cmp.Or(r.Burst, max(int(burst), 1))}
}

// ModelLanes begin the lanes of models' providers: model/openai. Requests to a provider are no
// calls of a lane, but have the rule of this one.
const ModelLanes = "model/"

// OfModel returns the buckets of requests and of tokens of a model's provider. Only rules that
// name model lanes count: what is said of all lanes is about calls. A bucket without a rate bounds
// nothing.
func (r *Rules) OfModel(provider string) (requests, tokens Bucket) {
	lane := protocol.Lane(ModelLanes + provider)
	rule := r.find(func(rule *Rule) bool { return strings.HasPrefix(rule.Lane, ModelLanes) && matchesLane(rule.Lane, lane) })
	if rule == nil {
		return requests, tokens
	}
	if rate, _ := parseRate(rule.Tokens); rate.n > 0 { // it is valid
		tokens = Bucket{Rate: rate.perSecond(), Burst: max(int(rate.perSecond()*60), 1)}
	}
	return RateOf(rule), tokens
}

// validatePattern checks a pattern of lanes: two segments with a slash between, as in account/acme.
// A segment may end with *, which stands for any text: account/*, account/eu-*, */*.
func validatePattern(p string) error {
	invalid := func(why string) error {
		return fmt.Errorf("%w: lane %q: %s; give two segments, such as account/acme or account/*", ErrInvalid, p, why)
	}
	if len(p) > maxPattern {
		return fmt.Errorf("%w: lane: %d bytes: must be at most %d", ErrInvalid, len(p), maxPattern)
	}
	segments := strings.Split(p, "/")
	if len(segments) != 2 {
		return invalid(fmt.Sprintf("%d segments, and a lane is the first two of a resource key", len(segments)))
	}
	for _, segment := range segments {
		if star := strings.IndexByte(segment, '*'); star >= 0 && star < len(segment)-1 {
			return invalid("* must be the end of a segment")
		}
	}
	example := strings.ReplaceAll(p, "*", "x") // what the pattern matches, if it matches anything
	if key, err := protocol.ParseResourceKey(example); err != nil || string(key) != example {
		return invalid("matches no lane")
	}
	return nil
}

// matchesLane reports whether a lane has a pattern.
func matchesLane(pattern string, lane protocol.Lane) bool {
	first, second, _ := strings.Cut(pattern, "/")
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
func moreSpecific(p, q string) int {
	weight := func(segment string) int {
		if prefix, open := strings.CutSuffix(segment, "*"); open {
			return len(prefix)
		}
		return maxPattern + 1
	}
	first, second, _ := strings.Cut(p, "/")
	one, two, _ := strings.Cut(q, "/")
	return cmp.Or(cmp.Compare(weight(one), weight(first)), cmp.Compare(weight(two), weight(second)), cmp.Compare(p, q))
}

// rate is a number of starts in a second, a minute or an hour, as in 60/min; the zero value is no
// bound.
type rate struct {
	n    int
	unit string
	per  time.Duration
}

// parseRate reads a rate such as 5/s, 60/min or 1000/h; "" is no bound. Errors wrap [ErrInvalid].
func parseRate(text string) (r rate, err error) {
	if text == "" {
		return r, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	switch r.n, err = strconv.Atoi(number); unit {
	case "s", "sec", "second":
		r.unit, r.per = "s", time.Second
	case "min", "m", "minute":
		r.unit, r.per = "min", time.Minute
	case "h", "hour":
		r.unit, r.per = "h", time.Hour
	}
	switch {
	case err != nil || r.per == 0:
		return r, fmt.Errorf("%w: rate %q: must be a whole number per s, min or h, such as 60/min", ErrInvalid, text)
	case r.n <= 0:
		return r, fmt.Errorf("%w: rate %q: must be more than 0", ErrInvalid, text)
	case r.perSecond() > maxRate:
		return r, fmt.Errorf("%w: rate %s: must be more than 0 and at most %d/s", ErrInvalid, r, maxRate)
	}
	return r, nil
}

// String is how the rate is stored and printed.
func (r rate) String() string {
	if r.n == 0 {
		return ""
	}
	return strconv.Itoa(r.n) + "/" + r.unit
}

func (r rate) perSecond() float64 {
	if r.n == 0 {
		return 0
	}
	return float64(r.n) / r.per.Seconds()
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
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Pool, b.Pool), moreSpecific(a.Lane, b.Lane))
	})
	var all []error
	for i := range list {
		for _, text := range []*string{&list[i].Rate, &list[i].Tokens} {
			if rate, err := parseRate(*text); err == nil { // else Validate says so
				*text = rate.String()
			}
		}
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
	return r.find(func(rule *Rule) bool { return rule.Lane != "" && matchesLane(rule.Lane, lane) })
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
	return r.Tenant != "" && (r.Concurrent > 0 || r.Sessions > 0 || r.Stored > 0 || r.Rate != "")
}

// subject names what the rule is about, as in tenant acme.
func (r *Rule) subject() string {
	switch {
	case r.Tenant != "":
		return "tenant " + string(r.Tenant)
	case r.Pool != "":
		return "pool " + string(r.Pool)
	}
	return "lane " + r.Lane
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
	return slices.ContainsFunc(r.List(), func(rule Rule) bool { return rule.Lane != "" && rule.Rate != "" })
}
