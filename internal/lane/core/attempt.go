package core

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Refuse returns the result of a call that is not to be started at all, of the given age since it
// was accepted; nil when nothing speaks against starting it. A call that somebody else may have
// started is not told to have had no effect. One whose time is over says so also when it is
// cancelled.
func (e *Entry) Refuse(age time.Duration) *protocol.Result {
	reject := func(status protocol.Status, code protocol.Code, format string, args ...any) *protocol.Result {
		r := protocol.NewResult(e.Call, status, protocol.Errorf(code, format, args...))
		return &r
	}
	switch {
	case e.MayHaveRun() && e.Call.Expired(age):
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call's deadline passed, and it is not started again; a worker that was lost may have started it")
	case e.Call.Expired(age):
		return reject(protocol.StatusRejected, protocol.CodeDeadline,
			"the call's deadline passed while it waited (%s after it was accepted); it was not run",
			age.Round(time.Millisecond))
	case !e.MayHaveRun() && e.Call.QueueTimeout > 0 && age >= e.Call.QueueTimeout.Duration():
		return reject(protocol.StatusRejected, protocol.CodeQueueTimeout,
			"the call waited %s and may wait %s; it was not run",
			age.Round(time.Millisecond), e.Call.QueueTimeout.Duration())
	case e.Cancelled && e.MayHaveRun():
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call was cancelled, and is not started again; a worker that was lost may have started it")
	case e.Cancelled:
		return reject(protocol.StatusCancelled, protocol.CodeCancelled, "the call was cancelled before it started")
	case e.Fault != nil:
		return reject(protocol.StatusRejected, protocol.CodeInvalidPayload, "the worker cannot read the call: %v", e.Fault)
	}
	return nil
}

// NextStart tells which start mark has to be stored before the call starts; 0 is none: a first
// start costs no write. It returns a result instead when the call must not be started again.
func (e *Entry) NextStart() (mark int, result *protocol.Result) {
	if e.Call.Delivery == protocol.AtMostOnce {
		if e.Marked || e.Starts > 0 {
			return 0, e.OutcomeUnknown()
		}
		return 1, nil
	}
	if !e.MayHaveStarted && e.Starts == 0 {
		return 0, nil
	}
	next := max(e.Starts, 1) + 1
	if next > e.Call.Attempts() {
		r := protocol.NewResult(e.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeAttemptsExhausted,
			"the worker was lost at each of %d attempts; the call may be what kills it", next-1))
		r.Attempt = next - 1
		return 0, &r
	}
	return next, nil
}

// OutcomeUnknown is the result of a call that must not start twice and was started by somebody
// else.
func (e *Entry) OutcomeUnknown() *protocol.Result {
	r := protocol.NewResult(e.Call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the worker that ran the call was lost; it may or may not have had its effects, and is not run again"))
	r.Attempt = 1
	return &r
}

// DueAfter is at which age a call that waits has to be answered; ok is false when it may wait for
// ever.
func (e *Entry) DueAfter() (age time.Duration, ok bool) {
	if age = e.Call.QueueTimeout.Duration(); age > 0 && !e.MayHaveRun() {
		ok = true
	}
	if !e.Call.Deadline.IsZero() {
		if life := max(e.Call.Deadline.Sub(e.Call.IssuedAt), 0); !ok || life < age {
			age, ok = life, true
		}
	}
	return age, ok
}
