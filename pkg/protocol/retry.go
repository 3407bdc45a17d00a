package protocol

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bounds and defaults of [Retry].
const (
	maxRetryAttempts     = 100
	defaultRetryWait     = time.Second
	defaultRetryMaxWait  = time.Minute
	maxRetryWait         = time.Hour
	retryDoublings       = 20 // beyond which a wait is the longest in any case
	leastRetriedAttempts = 2
)

// Retry says when a call that failed is started again. Its position in the order of its lane stays:
// later calls that conflict with it wait. A call with a Retry must be [Idempotent].
type Retry struct {
	// Attempts bounds how often the call is started in all, 2 to 100. A worker that
	// stops or is lost between two attempts may add one.
	Attempts int `json:"attempts"`
	// Wait is the pause before the second start, up to an hour; it doubles with each further
	// one, up to MaxWait, and varies by a fifth. 0 means a second
	// and a minute. A result with [Error.RetryAfter] is waited for that long, if it is
	// longer.
	Wait    Millis `json:"wait_ms,omitempty"`
	MaxWait Millis `json:"max_wait_ms,omitempty"`
	// Codes are those of results after which the call is started again: tool_failed, run_timeout,
	// sandbox_unavailable, sandbox_lost and internal, which is what none means, and tool_panicked,
	// out_of_memory, disk_limit, not_found, permission_denied, command_not_found, model_failed and
	// workspace_unavailable.
	Codes []Code `json:"codes,omitempty"`
}

// retryCodes are the codes that a [Retry] may name; the first defaultRetryCodes of them are its
// default.
func retryCodes() []Code {
	return []Code{
		CodeToolFailed, CodeRunTimeout, CodeSandboxUnavailable, CodeSandboxLost, CodeInternal,
		CodePanic, CodeOOM, CodeDiskLimit, CodeNotFound, CodePermission, CodeCommandNotFound, CodeModelFailed, CodeWorkspaceUnavailable,
	}
}

const defaultRetryCodes = 5

// Matches reports whether a result is one after which the call is started again.
func (r *Retry) Matches(fault *Error) bool {
	if r == nil || fault == nil {
		return false
	}
	codes := r.Codes
	if len(codes) == 0 {
		codes = retryCodes()[:defaultRetryCodes]
	}
	return slices.Contains(codes, fault.Code)
}

// Pause is how long to wait after the n-th attempt (n from 1) that ended with fault, before the
// variation.
func (r *Retry) Pause(n int, fault *Error) time.Duration {
	first, longest := r.Wait.Duration(), r.MaxWait.Duration()
	if first == 0 {
		first = defaultRetryWait
	}
	if longest == 0 {
		longest = max(defaultRetryMaxWait, first)
	}
	return min(max(min(first<<min(max(n-1, 0), retryDoublings), longest), fault.RetryAfter.Duration()), maxRetryWait)
}

// Validate reports every fault of a retry of calls with a delivery, joined. A nil one has none.
func (r *Retry) Validate(delivery Delivery) error {
	if r == nil {
		return nil
	}
	var faults []error
	if delivery != Idempotent {
		faults = append(faults, fmt.Errorf("retry: delivery is %q, must be %q: a call that is started again must have the same effect", delivery, Idempotent))
	}
	if r.Attempts < leastRetriedAttempts || r.Attempts > maxRetryAttempts {
		faults = append(faults, fmt.Errorf("retry.attempts %d: must be %d to %d", r.Attempts, leastRetriedAttempts, maxRetryAttempts))
	}
	if r.Wait < 0 || r.Wait.Duration() > maxRetryWait || r.MaxWait < 0 || r.MaxWait.Duration() > maxRetryWait {
		faults = append(faults, fmt.Errorf("retry.wait_ms %d, retry.max_wait_ms %d: must be 0 to %d", r.Wait, r.MaxWait, maxRetryWait.Milliseconds()))
	}
	if r.MaxWait > 0 && r.MaxWait < r.Wait {
		faults = append(faults, fmt.Errorf("retry.max_wait_ms %d: must be at least retry.wait_ms %d", r.MaxWait, r.Wait))
	}
	if i := slices.IndexFunc(r.Codes, func(c Code) bool { return !slices.Contains(retryCodes(), c) }); i >= 0 {
		faults = append(faults, fmt.Errorf("retry.codes: %q: must be one of %q", r.Codes[i], retryCodes()))
	}
	return errors.Join(faults...)
}

// Try is an attempt of a call that failed and was followed by another one.
type Try struct {
	Attempt int    `json:"attempt"` // from 1
	Error   *Error `json:"error"`
	// RunMS is how long the attempt ran, WaitMS the pause after it; in milliseconds.
	RunMS  float64 `json:"run_ms"`
	WaitMS float64 `json:"wait_ms"`
}
