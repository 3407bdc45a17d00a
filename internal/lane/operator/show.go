package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// CallState says what happens to an unfinished call.
type CallState string

// Every state of an unfinished call.
const (
	CallWaiting    CallState = "waiting"
	CallRunning    CallState = "running"
	CallCancelling CallState = "cancelling" // somebody asked to cancel it
)

// CallStatus is an unfinished call of a lane.
type CallStatus struct {
	CallID     protocol.CallID    `json:"call_id"`
	SessionID  protocol.SessionID `json:"session_id"`
	Tool       string             `json:"tool"`
	Resources  []protocol.Use     `json:"resources"`
	Delivery   protocol.Delivery  `json:"delivery"`
	State      CallState          `json:"state"`
	AcceptedAt time.Time          `json:"accepted_at"` // by the server's clock
	AgeMS      int64              `json:"age_ms"`      // since then, in milliseconds
	// Attempt is the attempt that runs, for RunningMS milliseconds; 0 when none does.
	Attempt   int   `json:"attempt"`
	RunningMS int64 `json:"running_ms,omitempty"`
	// Starts are the start marks that are stored. A first start has one only when the
	// call must not start twice.
	Starts []StartMark `json:"starts"`
	// Fault says why the call cannot be read; then it will be rejected.
	Fault string `json:"fault,omitempty"`
}

// StartMark is the stored mark of a start of a call.
type StartMark struct {
	Attempt  int               `json:"attempt"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	At       time.Time         `json:"at"`
}

// View is a lane with its unfinished calls.
type View struct {
	Status

	Calls   []CallStatus `json:"calls"`    // in their order
	LeftOut int          `json:"left_out"` // calls beyond the limit, finished ones among them
}

// DefaultCallLimit is how many calls [Operator.Show] returns when it is not told.
const DefaultCallLimit = 256

// Show returns a lane with its first unfinished calls; a limit of 0 means [DefaultCallLimit]. A
// lane that has nothing is [ErrNoLane].
func (o *Operator) Show(ctx context.Context, pool protocol.Pool, lane protocol.Lane, limit int) (*View, error) {
	if limit <= 0 {
		limit = DefaultCallLimit
	}
	at := time.Now()
	if _, err := o.clock.Sync(ctx, o.store.Calls); err != nil {
		return nil, fmt.Errorf("show lane %s: %w", lane, err)
	}
	found, _, err := o.survey(ctx, pool, lane.Hash())
	if err != nil {
		return nil, fmt.Errorf("show lane %s: %w", lane, err)
	}
	lanes := []Status{}
	if len(found) > 0 {
		if lanes, err = o.look(ctx, pool, found, at); err == nil {
			lanes, err = o.lookAgain(ctx, pool, lanes, at)
		}
		if err != nil {
			return nil, fmt.Errorf("show lane %s: %w", lane, err)
		}
	}
	if len(lanes) == 0 {
		return nil, fmt.Errorf("show: %w", o.noLane(ctx, pool, lane))
	}
	view := &View{Status: lanes[0]}
	view.Lane = lane
	r := &laneReader{operator: o, pool: pool, lane: lane, limit: limit, at: at, running: view.Running}
	if err := r.read(ctx); err != nil {
		return nil, fmt.Errorf("show lane %s: %w", lane, err)
	}
	view.Calls = r.calls
	view.LeftOut = max(found[0].calls-r.seen, 0)
	return view, nil
}

// laneReader reads the unfinished calls of a lane.
type laneReader struct {
	operator *Operator
	pool     protocol.Pool
	lane     protocol.Lane
	limit    int
	at       time.Time // to which ages refer
	running  []lane.RunningCall

	calls []CallStatus
	seen  int // calls of the mailbox that were read
}

// read reads the mailbox, with the call of the ready message at its place.
func (r *laneReader) read(ctx context.Context) error {
	r.calls = []CallStatus{}
	o := r.operator
	inline, err := o.readyMessage(ctx, r.pool, r.lane.Hash())
	if err != nil {
		return err
	}
	if inline != nil && len(inline.Data) == 0 {
		inline = nil
	}
	for cursor := uint64(0); len(r.calls) < r.limit; {
		msg, err := o.store.Next(ctx, o.store.Fleet.MailboxFilter(r.pool, r.lane.Hash()), cursor)
		if err != nil {
			return err
		}
		if inline != nil && (msg == nil || msg.Sequence > inline.Sequence) {
			if err := r.call(ctx, inline); err != nil {
				return err
			}
			inline = nil
			continue // the limit may be reached
		}
		if msg == nil {
			break
		}
		if err := r.message(ctx, msg); err != nil {
			return err
		}
		cursor = msg.Sequence + 1
	}
	return r.marks(ctx)
}

// message takes a message of the mailbox. Marks of a call come behind it.
func (r *laneReader) message(ctx context.Context, msg *jetstream.RawStreamMsg) error {
	what := r.operator.store.Fleet.ParseMailboxSubject(msg.Subject)
	switch what.Kind {
	case protocol.EntryCall:
		r.seen++
		return r.call(ctx, msg)
	case protocol.EntryCancel:
		if call := r.find(what.CallID); call != nil {
			call.State = CallCancelling
		}
	case protocol.EntryStart:
		if call := r.find(what.CallID); call != nil {
			call.addStart(what.Start, msg)
		}
	case protocol.EntryUnknown, protocol.EntryPause, protocol.EntryFloor:
	}
	return nil
}

func (c *CallStatus) addStart(n int, msg *jetstream.RawStreamMsg) {
	worker, _, _ := strings.Cut(string(msg.Data), " ")
	c.Starts = append(c.Starts, StartMark{Attempt: n, WorkerID: protocol.WorkerID(worker), At: msg.Time})
}

// marks reads the marks of the calls when the reading stopped before the end of the mailbox.
func (r *laneReader) marks(ctx context.Context) error {
	if len(r.calls) < r.limit {
		return nil
	}
	o, fleet := r.operator, r.operator.store.Fleet
	for i := range r.calls {
		call := &r.calls[i]
		call.Starts = []StartMark{}
		cancel, err := o.store.Next(ctx, fleet.CancelSubject(r.pool, r.lane.Hash(), call.CallID), 0)
		if err != nil {
			return err
		}
		if cancel != nil {
			call.State = CallCancelling
		}
		for cursor := uint64(0); ; {
			mark, err := o.store.Next(ctx, fleet.CallSubject(r.pool, r.lane.Hash(), call.CallID)+".*", cursor)
			if err != nil {
				return err
			}
			if mark == nil {
				break
			}
			if what := fleet.ParseMailboxSubject(mark.Subject); what.Kind == protocol.EntryStart {
				call.addStart(what.Start, mark)
			}
			cursor = mark.Sequence + 1
		}
	}
	return nil
}

func (r *laneReader) find(id protocol.CallID) *CallStatus {
	at := slices.IndexFunc(r.calls, func(c CallStatus) bool { return c.CallID == id })
	if at < 0 {
		return nil
	}
	return &r.calls[at]
}

// call takes a call, unless it has its result.
func (r *laneReader) call(ctx context.Context, msg *jetstream.RawStreamMsg) error {
	status := CallStatus{
		CallID:    protocol.CallID(msg.Header.Get(protocol.HeaderCall)),
		SessionID: protocol.SessionID(msg.Header.Get(protocol.HeaderSession)),
		State:     CallWaiting, Resources: []protocol.Use{}, Starts: []StartMark{},
		AcceptedAt: msg.Time, AgeMS: r.operator.clock.AgeAt(r.at, msg.Time).Milliseconds(),
	}
	call, err := protocol.DecodeCall(msg.Data)
	if err != nil {
		status.Fault = err.Error()
	}
	if call != nil {
		status.Tool, status.Resources, status.Delivery = call.Tool, call.Resources, call.Delivery
	}
	if at := slices.IndexFunc(r.running, func(run lane.RunningCall) bool { return run.CallID == status.CallID }); at >= 0 {
		status.State, status.Attempt, status.RunningMS = CallRunning, r.running[at].Attempt, r.running[at].RunningMS
	} else if unfinished, err := r.operator.unfinished(ctx, status.SessionID, status.CallID); err != nil || !unfinished {
		return err
	}
	r.calls = append(r.calls, status)
	return nil
}

// unfinished reports whether a call has no result.
func (o *Operator) unfinished(ctx context.Context, session protocol.SessionID, id protocol.CallID) (bool, error) {
	if session == "" || id == "" {
		return true, nil
	}
	result, err := o.store.Result(ctx, session, id)
	if errors.Is(err, protocol.ErrInvalidResult) {
		return false, nil // there is one, of a version that this one cannot read
	}
	return result == nil, err
}
