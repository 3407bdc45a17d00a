package protocol

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Limits of a call.
const (
	// defaultMaxAttempts is how often a call is started before its lane moves on.
	defaultMaxAttempts = 5
	// DefaultRunTimeout bounds one attempt of a call that names no run timeout.
	DefaultRunTimeout = 2 * time.Minute
	// maxAfter bounds the calls that a call waits for.
	maxAfter = 64
	// defaultAfterTimeout bounds how long a call waits for others that names no time itself.
	defaultAfterTimeout = 24 * time.Hour
	// MaxUses bounds the resource list of a call.
	MaxUses = 64
	// maxDelay bounds how long a call may wait for its time.
	maxDelay = 366 * 24 * time.Hour
)

// Delivery is what may happen to a call whose worker was lost.
type Delivery string

// The three kinds of delivery.
const (
	Idempotent Delivery = "idempotent"   // run again
	AtMostOnce Delivery = "at_most_once" // never start twice: outcome_unknown instead
	Rollback   Delivery = "rollback"     // run again in the workspace as it was, where that is kept
)

// ErrInvalidCall is wrapped by every error of [Call.Validate].
var ErrInvalidCall = errors.New("invalid call")

// Millis is a duration in whole milliseconds, as durations travel on the wire.
type Millis int64

// MillisOf rounds d up, so that a positive duration stays positive.
func MillisOf(d time.Duration) Millis {
	whole := Millis(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		whole++
	}
	return whole
}

// Duration returns m as a time.Duration; what no duration can hold becomes the
// longest one of its sign.
func (m Millis) Duration() time.Duration {
	const most = Millis(math.MaxInt64 / time.Millisecond)
	switch {
	case m > most:
		return math.MaxInt64
	case m < -most:
		return math.MinInt64
	}
	return time.Duration(m) * time.Millisecond
}

// Call is the wire request that a tool call becomes.
type Call struct {
	ID        CallID    `json:"id"`
	SessionID SessionID `json:"session_id"`
	// ToolCallID is the model's own id of the tool call; may be empty.
	ToolCallID string `json:"tool_call_id,omitempty"`
	// Tool is the name of the tool, for people and traces.
	Tool string `json:"tool,omitempty"`
	Turn int    `json:"turn,omitempty"` // from 1
	Step int    `json:"step,omitempty"` // from 1
	// Index is the place in the step, from 0.
	Index int `json:"index,omitempty"`

	// Pool is who can serve the call.
	Pool Pool `json:"pool"`
	// Tenant is for whom the call runs, and Priority when it starts among calls of its tenant.
	Tenant   Tenant   `json:"tenant,omitempty"`
	Priority Priority `json:"priority,omitempty"`
	// By is the principal for whom the sender makes the call, such as token:ann; "" is the sender
	// itself. It is never taken from what a model or a request says.
	By string `json:"by,omitempty"`
	// Resources is what the call touches: 1 to [MaxUses] uses, all of one lane.
	Resources []Use `json:"resources"`
	// Delivery is what may happen after a lost worker.
	Delivery Delivery `json:"delivery"`
	// MaxAttempts bounds how often the call is started; 0 means 5.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Retry says when a call that failed is started again; nil is never.
	Retry *Retry `json:"retry,omitempty"`
	// MinLevel is the least sandbox level that may run the call ("" for any).
	MinLevel string `json:"min_level,omitempty"`
	// Roots bind payloads about files to places of the workspace, by what paths lead to
	// once symbolic links are followed; all of them hold. None is no bound. What they do
	// not allow is rejected with policy_denied.
	Roots []Roots `json:"roots,omitempty"`

	// IssuedAt is the issuer's clock when the call was made. Deadline is read
	// relative to it, so that clocks of different machines need not agree.
	IssuedAt time.Time `json:"issued_at"`
	// NotBefore is when the call enters its lane; zero or not after IssuedAt is at once. Until then
	// it waits outside of the lane, and delays no other call. Like Deadline it is read relative to
	// IssuedAt. QueueTimeout begins then.
	NotBefore time.Time `json:"not_before,omitzero"`
	// QueueTimeout bounds the time from acceptance to the first start; 0 is no bound.
	QueueTimeout Millis `json:"queue_timeout_ms,omitempty"`
	// RunTimeout bounds one attempt; 0 means [DefaultRunTimeout].
	RunTimeout Millis `json:"run_timeout_ms,omitempty"`
	// Deadline is when the result is of no more use; zero is never.
	Deadline time.Time `json:"deadline,omitzero"`

	// After are calls, up to 64, that must have ended with status ok before this one
	// starts; it occupies no slot while it waits. If one of them ends otherwise, or has not ended
	// when the time of this call is over (QueueTimeout, Deadline, else 24 hours), this
	// one is rejected with after_unmet.
	After []CallRef `json:"after,omitempty"`

	// MadeAfter is the last sequence of the fleet's session journals when the call was made; 0 is
	// unknown. A turn that was made before its session was removed does not begin the session
	// again.
	MadeAfter uint64 `json:"made_after,omitempty"`

	// Again means that the call may have been enqueued before, by a restarted coordinator or
	// because an acknowledgement was lost: the worker looks for a stored result first.
	Again bool `json:"again,omitempty"`

	// Digest tells calls with the same id apart: it identifies Tool and Payload. The result repeats
	// it, so that a caller that uses an id again for something else learns that. "" is unknown.
	Digest string `json:"digest,omitempty"`

	// Payload is what the worker executes.
	Payload Payload `json:"-"`
}

// Roots are places of a workspace: files, and directories with all that is below them, as
// canonical relative paths; "" is the workspace.
type Roots struct {
	Read  []string `json:"read,omitempty"`  // may be read
	Write []string `json:"write,omitempty"` // may be changed, and read
}

// Lane is the lane of the call's resources. The call must be valid.
func (c *Call) Lane() Lane { return c.Resources[0].Key.Lane() }

// Attempts is MaxAttempts or its default, and never less than Retry allows.
func (c *Call) Attempts() int {
	most := c.MaxAttempts
	if most == 0 {
		most = defaultMaxAttempts
	}
	if c.Retry != nil {
		most = max(most, c.Retry.Attempts)
	}
	return most
}

// RunFor is the run timeout or its default.
func (c *Call) RunFor() time.Duration {
	if c.RunTimeout == 0 {
		return DefaultRunTimeout
	}
	return c.RunTimeout.Duration()
}

// Delay is how long after acceptance the call enters its lane; 0 is at once.
func (c *Call) Delay() time.Duration {
	if c.NotBefore.IsZero() {
		return 0
	}
	return max(c.NotBefore.Sub(c.IssuedAt), 0)
}

// Left is how long after the call entered its lane its result is of use; ok is false for a call
// without a deadline. It is not positive for a deadline that had passed before.
func (c *Call) Left() (left time.Duration, ok bool) {
	return c.Deadline.Sub(c.IssuedAt.Add(c.Delay())), !c.Deadline.IsZero()
}

// LifeTime is [Call.Left], at least a millisecond; 0 is for ever.
func (c *Call) LifeTime() time.Duration {
	left, bounded := c.Left()
	if !bounded {
		return 0
	}
	return max(left, time.Millisecond)
}

// MaxQueue is the longest time from acceptance to the first start; 0 is no bound.
func (c *Call) MaxQueue() time.Duration {
	if c.QueueTimeout == 0 && c.Deadline.IsZero() && len(c.After) > 0 {
		return defaultAfterTimeout
	}
	return c.QueueTimeout.Duration()
}

// Expired reports whether the call's result is of no more use, at an age since it entered its lane.
func (c *Call) Expired(age time.Duration) bool {
	left, bounded := c.Left()
	return bounded && age >= left
}

// ConflictsWith reports whether the two calls must not overlap.
func (c *Call) ConflictsWith(other *Call) bool {
	for _, a := range c.Resources {
		if slices.ContainsFunc(other.Resources, a.Conflicts) {
			return true
		}
	}
	return false
}

// Validate reports every fault of the call, joined; each wraps [ErrInvalidCall].
func (c *Call) Validate() error {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%w: %w", ErrInvalidCall, err))
		}
	}
	_, err := ParseCallID(string(c.ID))
	fault(err)
	_, err = ParseSessionID(string(c.SessionID))
	fault(err)
	_, err = ParsePool(string(c.Pool))
	fault(err)
	fault(c.validateResources())
	fault(c.validateClass())
	switch c.Delivery {
	case Idempotent, AtMostOnce, Rollback:
	default:
		fault(fmt.Errorf("delivery %q: must be %q, %q or %q", c.Delivery, Idempotent, AtMostOnce, Rollback))
	}
	if c.MaxAttempts < 0 || c.QueueTimeout < 0 || c.RunTimeout < 0 {
		fault(fmt.Errorf("max_attempts %d, queue_timeout_ms %d, run_timeout_ms %d: must not be negative",
			c.MaxAttempts, c.QueueTimeout, c.RunTimeout))
	}
	fault(c.Retry.Validate(c.Delivery))
	if c.Delay() > maxDelay {
		fault(fmt.Errorf("not_before %s: must be at most %s after issued_at", c.NotBefore.Format(time.RFC3339), maxDelay))
	}
	if left, bounded := c.Left(); bounded && left <= 0 && c.Delay() > 0 {
		fault(fmt.Errorf("not_before %s: must be before deadline %s", c.NotBefore.Format(time.RFC3339), c.Deadline.Format(time.RFC3339)))
	}
	fault(c.validateAfter())
	if c.Payload == nil {
		fault(errors.New("payload: missing"))
	}
	return errors.Join(faults...)
}

func (c *Call) validateAfter() error {
	if len(c.After) > maxAfter {
		return fmt.Errorf("after: %d calls, must be at most %d", len(c.After), maxAfter)
	}
	for i, ref := range c.After {
		if _, err := ParseCallRef(ref.String()); err != nil {
			return fmt.Errorf("after[%d]: %w", i, err)
		}
		if ref == (CallRef{c.SessionID, c.ID}) {
			return fmt.Errorf("after[%d]: %s is the call itself", i, ref)
		}
	}
	return nil
}

func (c *Call) validateResources() error {
	if len(c.Resources) == 0 || len(c.Resources) > MaxUses {
		return fmt.Errorf("resources: %d uses, must be 1 to %d", len(c.Resources), MaxUses)
	}
	var faults []error
	for i, use := range c.Resources {
		if err := use.validate(); err != nil {
			faults = append(faults, fmt.Errorf("resources[%d]: %w", i, err))
		} else if use.Key.Lane() != c.Resources[0].Key.Lane() {
			faults = append(faults, fmt.Errorf("resources[%d]: %s and %s are of different lanes", i, c.Resources[0].Key, use.Key))
		}
	}
	return errors.Join(faults...)
}

// Tenant is for whom a call runs. Tenants share the slots of a pool's workers. "" is the tenant of
// calls that name none.
type Tenant string

// ParseTenant checks s: 1 to 32 lower-case letters, digits and '-'. The error wraps
// [ErrInvalidName].
func ParseTenant(s string) (Tenant, error) {
	return parseToken[Tenant]("tenant", s, 32, fleetAlphabet())
}

// Priority says which calls of a tenant start first when slots are scarce. It changes neither the
// order of a lane nor the shares of tenants.
type Priority string

// The priorities.
const (
	Interactive Priority = "interactive" // a person waits for it
	Normal      Priority = "normal"      // the default, also written ""
	Batch       Priority = "batch"       // it may wait
)

// validateClass checks tenant and priority of a call.
func (c *Call) validateClass() error {
	if c.Tenant != "" {
		if _, err := ParseTenant(string(c.Tenant)); err != nil {
			return err
		}
	}
	switch c.Priority {
	case "", Interactive, Normal, Batch:
		return nil
	}
	return fmt.Errorf("priority %q: must be %q, %q or %q", c.Priority, Interactive, Normal, Batch)
}
