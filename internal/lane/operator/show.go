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
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every state of an unfinished call.
const (
	CallWaiting    = "waiting"
	CallDelayed    = "delayed"
	CallRunning    = "running"
	CallCancelling = "cancelling"
)

// Types of what is reported.
type (
	// CallStatus is an unfinished call of a lane.
	CallStatus = report.Call
	// StartMark is the stored mark of a start of a call.
	StartMark = report.Start
	// View is a lane with its unfinished calls.
	View = report.LaneCalls
)

// DefaultCallLimit is how many calls [Operator.Show] returns by default.
const DefaultCallLimit = 256

// Show returns a lane with its first unfinished calls; a limit of 0 means [DefaultCallLimit]. A
// lane that has nothing is [ErrNoLane].
func (o *Operator) Show(ctx context.Context, pool protocol.Pool, lane protocol.Lane, limit int) (*View, error) {
	if limit <= 0 {
		limit = DefaultCallLimit
	}
	at := time.Now()
	found, _, err := o.survey(ctx, pool, wire.HashLane(lane))
	var lanes []Status
	if err == nil && len(found) > 0 {
		lanes, err = o.look(ctx, pool, found, at)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("show lane %s: %w", lane, err)
	case len(lanes) == 0:
		return nil, fmt.Errorf("show: %w", noLane(pool, lane))
	}
	view := &View{Lane: lanes[0], Calls: []CallStatus{}}
	view.Lane.Lane = lane
	if err := o.readCalls(ctx, found[0], view, limit, at); err != nil {
		return nil, fmt.Errorf("show lane %s: %w", lane, err)
	}
	if view.State == StateDelayed && len(view.Calls) > 0 {
		first := slices.MinFunc(view.Calls, func(a, b CallStatus) int { return a.NotBefore.Compare(b.NotBefore) })
		view.WaitsFor += ": " + first.NotBefore.UTC().Format(time.RFC3339)
	}
	return view, nil
}

// readCalls reads the mailbox, with the call of the ready message at its place, and the marks of
// the calls, which may be behind what is read.
func (o *Operator) readCalls(ctx context.Context, s *sighting, view *View, limit int, at time.Time) error {
	inline, left := s.ready, s.calls
	if inline != nil && len(inline.Data) == 0 {
		inline = nil
	}
	take := func(msg *jetstream.RawStreamMsg) error {
		status, err := o.callStatus(ctx, msg, view.Running, at)
		if err == nil && status != nil && len(view.Calls) < limit {
			view.Calls = append(view.Calls, *status)
		}
		return err
	}
	err := o.each(ctx, s, 0, func(msg *jetstream.RawStreamMsg) (more bool, err error) {
		if inline != nil && msg.Sequence > inline.Sequence {
			err, inline = take(inline), nil
		}
		if err == nil && len(view.Calls) < limit && wire.ParseMailboxSubject(o.store.Fleet, msg.Subject).Kind == wire.EntryCall {
			left--
			err = take(msg)
		}
		return len(view.Calls) < limit, err
	})
	if err == nil && inline != nil && len(view.Calls) < limit {
		err = take(inline)
	}
	view.LeftOut = max(left, 0)
	for _, id := range s.delayed {
		if err == nil && len(view.Calls) < limit {
			err = o.readDelayed(ctx, s, view, id, at)
		}
	}
	for _, mark := range s.marks {
		if err == nil {
			err = o.readMark(ctx, s, view, mark)
		}
	}
	return err
}

func (o *Operator) readDelayed(ctx context.Context, s *sighting, view *View, id protocol.CallID, at time.Time) error {
	msg, err := o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, s.pool, s.hash, id), 0)
	if err != nil || msg == nil {
		return err
	}
	status, err := o.callStatus(ctx, msg, nil, at)
	if err != nil || status == nil {
		return err
	}
	status.State = CallDelayed
	if call, err := wire.DecodeCall(msg.Data); err == nil {
		status.NotBefore = msg.Time.Add(call.Delay())
	}
	view.Calls = append(view.Calls, *status)
	return nil
}

func (o *Operator) readMark(ctx context.Context, s *sighting, view *View, mark wire.MailboxEntry) error {
	i := slices.IndexFunc(view.Calls, func(c CallStatus) bool { return c.CallID == mark.CallID })
	if i < 0 {
		return nil
	}
	call := &view.Calls[i]
	if mark.Kind == wire.EntryCancel {
		call.State = CallCancelling
		return nil
	}
	msg, err := o.store.Next(ctx, wire.StartSubject(o.store.Fleet, s.pool, s.hash, mark.CallID, mark.Start), 0)
	if err != nil || msg == nil {
		return err
	}
	worker, _, _ := strings.Cut(string(msg.Data), " ")
	call.Starts = append(call.Starts, StartMark{Attempt: mark.Start, WorkerID: protocol.WorkerID(worker), At: msg.Time})
	slices.SortFunc(call.Starts, func(a, b StartMark) int { return a.Attempt - b.Attempt })
	return nil
}

// callStatus is what is known of a call; nil when it has its result.
func (o *Operator) callStatus(ctx context.Context, msg *jetstream.RawStreamMsg, running []lane.RunningCall, at time.Time) (*CallStatus, error) {
	status := &CallStatus{
		CallID: headerCall(msg), SessionID: headerSession(msg),
		State: CallWaiting, Resources: []protocol.Use{}, Starts: []StartMark{},
		AcceptedAt: msg.Time, AgeMS: o.clock.AgeAt(at, msg.Time).Milliseconds(),
	}
	call, err := wire.DecodeCall(msg.Data)
	if err != nil {
		status.Fault = err.Error()
	}
	if call != nil {
		status.Tool, status.Resources, status.Delivery, status.Payload = call.Tool, call.Resources, call.Delivery, call.Payload
	}
	if i := slices.IndexFunc(running, func(run lane.RunningCall) bool { return run.CallID == status.CallID }); i >= 0 {
		status.State, status.Attempt, status.RunningMS = CallRunning, running[i].Attempt, running[i].RunningMS
		return status, nil
	}
	if unfinished, err := o.unfinished(ctx, status.SessionID, status.CallID); err != nil || !unfinished {
		return nil, err
	}
	if call != nil {
		need := lane.NeedOf(call)
		status.Needs = &need
	}
	return status, nil
}

func (o *Operator) unfinished(ctx context.Context, session protocol.SessionID, id protocol.CallID) (bool, error) {
	if session == "" || id == "" {
		return true, nil
	}
	result, err := o.store.Result(ctx, session, id)
	if errors.Is(err, wire.ErrInvalidResult) {
		return false, nil // there is one, of a version that this one cannot read
	}
	return result == nil, err
}
