package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Claim is the record that a worker holds a lane. The stream sequence of the record is the claim's
// epoch, which grows from holder to holder.
type Claim struct {
	Lane     protocol.Lane     `json:"lane"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	// Incarnation is the heartbeat on which the claim depends; "" says that the lane waits for its
	// next holder.
	Incarnation IncarnationID `json:"life"`
	// Token distinguishes this claim from every other claim of the same incarnation.
	Token string `json:"token"`
	// Ready is the stream sequence of the ready message by which the lane was claimed.
	Ready uint64 `json:"ready"`
	// Interrupted says that calls of the lane may have been started by an earlier holder that was
	// lost, and have no result.
	Interrupted bool `json:"interrupted,omitempty"`
	// Spent is how many starts the rate limit of the lane still counted when the record was stored,
	// or a negative number after a lost holder, whose starts are unknown.
	Spent float64 `json:"spent,omitempty"`
}

// Heartbeat is the record of a worker's life. Its stream sequence grows with each renewal.
type Heartbeat struct {
	WorkerID protocol.WorkerID `json:"worker_id"`
	// LeaseMS is for how long others must have seen the record stand still before they may expire
	// it, in milliseconds.
	LeaseMS int64 `json:"lease_ms"`
	// Beat counts the renewals, from 1.
	Beat uint64 `json:"beat"`
	// Origin names something that only one process at a time can have, such as the directory of an
	// embedded server: who has it knows that earlier lives of the same origin are over. "" is none.
	Origin string `json:"origin,omitempty"`
	// Disk identifies the disk of the worker's data directory, which outlives a restart: lanes
	// whose workspace is there are offered to this worker first. "" means none.
	Disk string `json:"disk,omitempty"`
	// Expired says that the life is over: what it claimed may be taken over.
	Expired bool `json:"expired,omitempty"`
}

// WorkerInfo is what a worker says about itself.
type WorkerInfo = report.Worker

// Body is a message that is neither a call nor a result. Its JSON has its type and the version.
type Body interface {
	Claim | Heartbeat | Frame | WorkerInfo | protocol.Question | protocol.Answer | protocol.Approval
}

// ErrInvalidBody is wrapped by every error of [Decode].
var ErrInvalidBody = errors.New("invalid")

// describeBody returns the type of a body, and why it is invalid; nil if it is valid.
func describeBody(body any) (name string, fault error) {
	switch b := body.(type) {
	case *Claim:
		return "claim", nil
	case *Heartbeat:
		if name = "heartbeat"; b.LeaseMS <= 0 {
			fault = fmt.Errorf("a lease of %d ms, want more than 0", b.LeaseMS)
		}
	case *Frame: // of any kind: readers skip those that they do not know
		name = "frame"
		_, fault = protocol.ParseCallID(string(b.CallID))
	case *WorkerInfo:
		if name = "worker_info"; b.WorkerID == "" {
			fault = errors.New("worker_id: missing")
		}
	case *protocol.Question:
		if name = "question"; b.ID == "" {
			fault = errors.New("id is missing")
		}
	case *protocol.Answer:
		actions := []protocol.Action{protocol.ActionWait, protocol.ActionAccept, protocol.ActionDecline, protocol.ActionCancel}
		if name = "answer"; !slices.Contains(actions, b.Action) {
			fault = fmt.Errorf("action %q: must be one of %q", b.Action, actions)
		}
	case *protocol.Approval:
		return "approval", nil
	}
	return name, fault
}

// Encode returns the JSON of a body.
func Encode[B Body](body *B) ([]byte, error) {
	fields, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	name, _ := describeBody(body)
	return append(fmt.Appendf(nil, `{"type":%q,"version":%d,`, name, Version), fields[1:]...), nil
}

// Decode reads what [Encode] wrote. Errors wrap [ErrInvalidBody].
func Decode[B Body](raw []byte) (*B, error) {
	var is struct {
		Type string `json:"type"`
	}
	body := new(B)
	name, _ := describeBody(body)
	err := unmarshal(raw, &is)
	if err == nil && is.Type != name {
		err = fmt.Errorf("type %q, want %q", is.Type, name)
	}
	if err == nil {
		err = unmarshal(raw, body)
	}
	if err == nil {
		_, err = describeBody(body)
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrInvalidBody, name, err)
	}
	return body, nil
}

// HigherLevel returns the higher of two sandbox levels, where "" means any. A word that is no
// level is higher than all, so that no worker takes it for less than was meant.
func HigherLevel(a, b string) string {
	rank := func(level string) int {
		if level != "" && !slices.Contains(Levels(), level) {
			return len(Levels())
		}
		return slices.Index(Levels(), level)
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// Levels returns the words of sandbox levels, least first.
func Levels() []string { return []string{"none", "paths", "full", "kernel"} }
