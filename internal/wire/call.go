// Package wire is the format of a fleet's messages, beyond the types of package protocol: the names
// of subjects, streams, consumers, buckets and headers; the records of the engine, [Claim] and
// [Heartbeat]; live output, [Frame]; a worker's report, [WorkerInfo]; and the JSON of all messages.
// Programs of users do not need it. docs/wire.md describes the format.
//
//	subject.go   subjects, streams, buckets, consumers; what a mailbox subject says
//	flow.go      tenants and priorities; headers of messages
//	kind.go      the kinds of payloads and values, and their types; ids, and names of stored objects
//	payload.go   payloads and values as JSON; workspaces and stored results
//	call.go      calls and results as JSON; live frames
//	claim.go     claims, heartbeats, and what a worker reports about itself
//	fastjson.go  calls and results in their usual form, without a JSON decoder
//	stateful.go  stateful tools, background processes and MCP servers
//	turn.go      turns, and questions to people
//
// The files under testdata pin the format of every type: old files must decode for ever.
package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Version is the version of every body that this package writes.
const Version = 1

type callFields protocol.Call // without methods

// wireCall is a call in JSON.
type wireCall struct {
	Type    string `json:"type"`
	Version int    `json:"version"`
	callFields

	Payload json.RawMessage `json:"payload,omitempty"`
}

const typeCall = "call"

// EncodeCall returns the JSON body of a call. It fails only for a payload that
// cannot be encoded.
func EncodeCall(c *protocol.Call) ([]byte, error) {
	payload, err := EncodePayload(c.Payload)
	if err != nil {
		return nil, fmt.Errorf("encode call %s: %w", c.ID, err)
	}
	fields := *c
	if body := writePlain(typeCall, func(p *plain) { p.callFieldsOf(&fields) }, "payload", payload); body != nil {
		return body, nil
	}
	return json.Marshal(&wireCall{Type: typeCall, Version: Version, callFields: callFields(*c), Payload: payload})
}

// DecodeCall reads and validates a body. Errors wrap [ErrInvalidCall]. A call with valid ids is
// returned in addition to the error, so that it can be answered.
func DecodeCall(body []byte) (*protocol.Call, error) {
	if c := readPlainCall(body); c != nil {
		return c, validate(c)
	}
	var wire wireCall
	if err := unmarshal(body, &wire); err != nil {
		return nil, fmt.Errorf("%w: %w", protocol.ErrInvalidCall, err)
	}
	if wire.Type != typeCall {
		return nil, fmt.Errorf("%w: type %q, want %q", protocol.ErrInvalidCall, wire.Type, typeCall)
	}
	c := protocol.Call(wire.callFields)
	payload, err := decodePayload(wire.Payload)
	if err != nil {
		return &c, fmt.Errorf("%w: payload: %w", protocol.ErrInvalidCall, err)
	}
	c.Payload = payload
	return &c, validate(&c)
}

// validate checks a call, and whom its sender has made it for.
func validate(c *protocol.Call) error {
	err := c.Validate()
	if by := judge.CheckBy(c.By); by != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", protocol.ErrInvalidCall, by))
	}
	return err
}

// readPlainCall is the usual way to read a call; nil when there is more to it.
func readPlainCall(body []byte) *protocol.Call {
	c := &protocol.Call{}
	raw, ok := readPlain(body, typeCall, func(p *plain) { p.callFieldsOf(c) }, "payload")
	if !ok {
		return nil
	}
	payload, err := decodePayload(raw)
	if _, unknown := payload.(protocol.UnknownPayload); unknown || err != nil {
		return nil
	}
	c.Payload = payload
	return c
}

// DigestOf returns the [protocol.Call].Digest of a call: a hash of its tool and its payload.
func DigestOf(c *protocol.Call) (string, error) {
	payload, err := EncodePayload(c.Payload)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(c.Tool+"\n"), payload...))
	return hex.EncodeToString(sum[:16]), nil
}

// Waits returns the waits of a call, in the order in which they follow each other, also those that
// took no time. Attempt is the one that ran at last.
func Waits(w *protocol.Waits, attempt int) []report.Part {
	named := func(session protocol.SessionID, call protocol.CallID) string {
		if session == "" {
			return string(call)
		}
		return protocol.CallRef{SessionID: session, ID: call}.String()
	}
	return []report.Part{
		{Reason: report.ReasonNotBefore, MS: w.NotBeforeMS},
		{Reason: report.ReasonSlot, MS: w.SlotMS},
		{Reason: report.ReasonLost, MS: w.LostMS, For: string(w.LostWorker), Attempt: max(attempt-1, 0)},
		{Reason: report.ReasonLane, MS: w.LaneMS, For: named(w.HeldBySession, w.HeldBy)},
		{Reason: report.ReasonAfter, MS: w.AfterMS, For: named(w.AfterSession, w.AfterCall)},
		{Reason: report.ReasonPause, MS: w.PauseMS},
		{Reason: report.ReasonLimit, MS: w.LimitMS, For: w.Limit},
		{Reason: report.ReasonRate, MS: w.RateMS, For: w.Limit},
	}
}

// WaitsByReason is what a call waited for, in milliseconds, for traces and metrics; nil if it
// waited for nothing.
func WaitsByReason(w *protocol.Waits) map[string]float64 {
	if *w == (protocol.Waits{}) {
		return nil
	}
	waits := map[string]float64{}
	for _, p := range Waits(w, 0) {
		if p.MS > 0 {
			waits[string(p.Reason)] = p.MS
		}
	}
	return waits
}

// NewResult starts a result for c with the given status and error.
func NewResult(c *protocol.Call, status protocol.Status, err *protocol.Error) protocol.Result {
	return protocol.Result{CallID: c.ID, SessionID: c.SessionID, Status: status, Error: err}
}

// ErrInvalidResult is wrapped by every error of [DecodeResult].
var ErrInvalidResult = errors.New("invalid result")

type resultFields protocol.Result // without methods

// wireResult is a result in JSON.
type wireResult struct {
	Type    string `json:"type"`
	Version int    `json:"version"`
	resultFields

	Value json.RawMessage `json:"value,omitempty"`
}

const typeResult = "result"

// EncodeResult returns the JSON body of a result.
func EncodeResult(r *protocol.Result) ([]byte, error) {
	var value json.RawMessage
	if r.Value != nil {
		var err error
		if value, err = EncodeValue(r.Value); err != nil {
			return nil, fmt.Errorf("encode result of %s: %w", r.CallID, err)
		}
	}
	fields := *r
	if body := writePlain(typeResult, func(p *plain) { p.resultFieldsOf(&fields) }, "value", value); body != nil {
		return body, nil
	}
	return json.Marshal(&wireResult{Type: typeResult, Version: Version, resultFields: resultFields(*r), Value: value})
}

// DecodeResult reads what [EncodeResult] wrote. Errors wrap [ErrInvalidResult].
func DecodeResult(body []byte) (*protocol.Result, error) {
	if r := readPlainResult(body); r != nil {
		return r, validResult(r)
	}
	var wire wireResult
	if err := unmarshal(body, &wire); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	if wire.Type != typeResult {
		return nil, fmt.Errorf("%w: type %q, want %q", ErrInvalidResult, wire.Type, typeResult)
	}
	r := protocol.Result(wire.resultFields)
	if len(wire.Value) > 0 && string(wire.Value) != "null" {
		value, err := decodeValue(wire.Value)
		if err != nil {
			return nil, fmt.Errorf("%w: value: %w", ErrInvalidResult, err)
		}
		r.Value = value
	}
	return &r, validResult(&r)
}

// readPlainResult is the usual way to read a result; nil when there is more to it.
func readPlainResult(body []byte) *protocol.Result {
	r := &protocol.Result{}
	raw, ok := readPlain(body, typeResult, func(p *plain) { p.resultFieldsOf(r) }, "value")
	switch {
	case !ok:
		return nil
	case len(raw) == 0:
		return r
	}
	value, err := decodeValue(raw)
	if _, unknown := value.(protocol.UnknownValue); unknown || err != nil {
		return nil
	}
	r.Value = value
	return r
}

func validResult(r *protocol.Result) error {
	if _, err := protocol.ParseCallID(string(r.CallID)); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	switch r.Status {
	case protocol.StatusOK, protocol.StatusFailed, protocol.StatusTimeout, protocol.StatusCancelled, protocol.StatusRejected, protocol.StatusOutcomeUnknown:
	default:
		return fmt.Errorf("%w: status %q is not one of %q", ErrInvalidResult, r.Status, Statuses())
	}
	if (r.Status == protocol.StatusOK) != (r.Error == nil) {
		return fmt.Errorf("%w: status %q, error set: %t: must be set when, and only when, it is not ok",
			ErrInvalidResult, r.Status, r.Error != nil)
	}
	return nil
}

// Statuses returns every status, in the order of their declaration.
func Statuses() []protocol.Status {
	return []protocol.Status{
		protocol.StatusOK, protocol.StatusFailed, protocol.StatusTimeout, protocol.StatusCancelled, protocol.StatusRejected, protocol.StatusOutcomeUnknown,
	}
}

// FrameKind is the kind of a live frame of a running call.
type FrameKind string

// Every kind of frame.
const (
	FrameWaiting FrameKind = "waiting" // a worker has the call, which waits for what Data says
	FrameStarted FrameKind = "started" // a worker starts the call
	FrameStdout  FrameKind = "stdout"
	FrameStderr  FrameKind = "stderr"
	FrameEvent   FrameKind = "event" // of a turn: Data is a session event in JSON
)

// Frame is one live message of a running call. Frames may be lost or cut off;
// the result is the truth.
type Frame struct {
	CallID protocol.CallID `json:"call_id"`
	// Seq counts the frames of one attempt from 1: a gap shows that some were lost. It is 0 before
	// the attempt starts.
	Seq      uint64            `json:"seq"`
	Kind     FrameKind         `json:"kind"`
	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	Data     protocol.Bytes    `json:"data,omitempty"`
}

// Frames says which frames of a call a reader has got.
type Frames struct {
	attempt int
	last    uint64
}

// Missed adds a frame, and reports whether the reader has missed one between it and the one before,
// or the beginning of the attempt. That an attempt has started, which its first frame says, does
// not count.
func (f *Frames) Missed(next *Frame) bool {
	if next.Attempt != f.attempt {
		*f = Frames{next.Attempt, 1}
	}
	missed := next.Seq > f.last+1
	f.last = max(f.last, next.Seq)
	return missed
}
