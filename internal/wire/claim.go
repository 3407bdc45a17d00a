package wire

import (
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

// ErrInvalidClaim is wrapped by every error of [DecodeClaim] and [DecodeHeartbeat].
var ErrInvalidClaim = errors.New("invalid claim")

const (
	typeClaim     = "claim"
	typeHeartbeat = "heartbeat"
)

// EncodeClaim returns the JSON body of a claim.
func EncodeClaim(c *Claim) ([]byte, error) {
	return encode(typeClaim, c)
}

// DecodeClaim reads what [EncodeClaim] wrote. Errors wrap [ErrInvalidClaim].
func DecodeClaim(body []byte) (*Claim, error) {
	c, err := decode[Claim](body, typeClaim, ErrInvalidClaim)
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// EncodeHeartbeat returns the JSON body of a heartbeat.
func EncodeHeartbeat(h *Heartbeat) ([]byte, error) {
	return encode(typeHeartbeat, h)
}

// DecodeHeartbeat reads what [EncodeHeartbeat] wrote. Errors wrap [ErrInvalidClaim].
func DecodeHeartbeat(body []byte) (*Heartbeat, error) {
	h, err := decode[Heartbeat](body, typeHeartbeat, ErrInvalidClaim)
	if err == nil && h.LeaseMS <= 0 {
		err = fmt.Errorf("%w: a lease of %d ms, want more than 0", ErrInvalidClaim, h.LeaseMS)
	}
	if err != nil {
		return nil, err
	}
	return &h, nil
}

// WorkerInfo is what a worker says about itself.
type WorkerInfo = report.Worker

// ErrInvalidWorkerInfo is wrapped by every error of [DecodeWorkerInfo].
var ErrInvalidWorkerInfo = errors.New("invalid worker info")

const typeWorkerInfo = "worker_info"

// EncodeWorkerInfo returns the JSON body of what a worker says about itself.
func EncodeWorkerInfo(w *WorkerInfo) ([]byte, error) {
	return encode(typeWorkerInfo, w)
}

// DecodeWorkerInfo reads what [EncodeWorkerInfo] wrote. Errors wrap [ErrInvalidWorkerInfo].
func DecodeWorkerInfo(body []byte) (*WorkerInfo, error) {
	w, err := decode[WorkerInfo](body, typeWorkerInfo, ErrInvalidWorkerInfo)
	if err == nil && w.WorkerID == "" {
		err = fmt.Errorf("%w: worker_id: missing", ErrInvalidWorkerInfo)
	}
	if err != nil {
		return nil, err
	}
	return &w, nil
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
