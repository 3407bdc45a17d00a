package operator

import (
	"cmp"
	"context"
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
		lanes, err = o.readStates(ctx, pool, found, at)
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

// readCalls reads the first calls of the mailbox, with the call of the ready message at its place,
// and the marks of the calls, which may be behind what is read.
func (o *Operator) readCalls(ctx context.Context, s *storedLane, view *View, limit int, at time.Time) error {
	view.LeftOut = s.calls
	inline := s.ready
	if inline != nil && len(inline.Data) == 0 {
		inline = nil
	}
	filter := wire.MailboxFilter(o.store.Fleet, s.pool, s.hash)
	for from, more := uint64(0), true; more && len(view.Calls) < limit; {
		page, err := o.store.Page(ctx, filter, from)
		if err != nil {
			return err
		}
		if more = len(page) > 0; more {
			from = page[len(page)-1].Sequence + 1
		}
		page = slices.DeleteFunc(page, func(msg *jetstream.RawStreamMsg) bool {
			return wire.ParseMailboxSubject(o.store.Fleet, msg.Subject).Kind != wire.EntryCall
		})
		if inline != nil && (!more || from > inline.Sequence) {
			i, _ := slices.BinarySearchFunc(page, inline.Sequence, func(msg *jetstream.RawStreamMsg, seq uint64) int { return cmp.Compare(msg.Sequence, seq) })
			page = slices.Insert(page, i, inline)
			inline = nil
		}
		if err := o.addCalls(ctx, page, view, limit, at); err != nil {
			return err
		}
	}
	for _, id := range s.delayed {
		if len(view.Calls) >= limit {
			break
		}
		msg, err := o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, s.pool, s.hash, id), 0)
		if err == nil && msg != nil {
			err = o.addCalls(ctx, []*jetstream.RawStreamMsg{msg}, view, limit, at)
		}
		if err != nil {
			return err
		}
	}
	for _, mark := range s.marks {
		if err := o.readMark(ctx, s, view, mark); err != nil {
			return err
		}
	}
	return nil
}

// addCalls adds calls without a result to a view.
func (o *Operator) addCalls(ctx context.Context, messages []*jetstream.RawStreamMsg, view *View, limit int, at time.Time) error {
	ended, err := o.endedOf(ctx, messages)
	if err != nil {
		return err
	}
	for _, msg := range messages {
		if len(view.Calls) >= limit {
			return nil
		}
		kind := wire.ParseMailboxSubject(o.store.Fleet, msg.Subject).Kind
		if kind == wire.EntryCall {
			view.LeftOut = max(view.LeftOut-1, 0)
		}
		if _, is := ended[refOf(msg)]; is {
			continue
		}
		status := o.callStatus(msg, view.Running, at)
		if call, err := wire.DecodeCall(msg.Data); kind == wire.EntryLater && err == nil {
			status.State, status.NotBefore = CallDelayed, msg.Time.Add(call.Delay())
		}
		view.Calls = append(view.Calls, *status)
	}
	return nil
}

func (o *Operator) readMark(ctx context.Context, s *storedLane, view *View, mark wire.MailboxEntry) error {
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

// callStatus is what is known of a call without a result.
func (o *Operator) callStatus(msg *jetstream.RawStreamMsg, running []lane.RunningCall, at time.Time) *CallStatus {
	ref := refOf(msg)
	status := &CallStatus{
		CallID: ref.ID, SessionID: ref.SessionID,
		State: CallWaiting, Resources: []protocol.Use{}, Starts: []StartMark{},
		AcceptedAt: msg.Time, AgeMS: o.clock.AgeAt(at, msg.Time).Milliseconds(),
	}
	call, err := wire.DecodeCall(msg.Data)
	if err != nil {
		status.Fault = err.Error()
	}
	if call != nil {
		status.Tool, status.Resources, status.Delivery, status.Payload = call.Tool, call.Resources, call.Delivery, call.Payload
		status.Tenant, status.Owner = call.Tenant, call.By
	}
	if i := slices.IndexFunc(running, func(run lane.RunningCall) bool { return run.CallID == status.CallID }); i >= 0 {
		status.State, status.Attempt, status.RunningMS = CallRunning, running[i].Attempt, running[i].RunningMS
		return status
	}
	if call != nil {
		need := lane.RequirementsOf(call)
		status.Needs = &need
	}
	return status
}

// Waiting returns waiting calls, at most maxCalls of each of the maxLanes lanes that wait longest.
// Calls of lanes that are paused, or in which a call runs, are left out.
func (o *Operator) Waiting(ctx context.Context, pool protocol.Pool, maxLanes, maxCalls int) ([]CallStatus, error) {
	at := time.Now()
	found, _, err := o.list(ctx, pool, Query{Limit: maxLanes})
	if err != nil {
		return nil, fmt.Errorf("waiting calls of pool %s: %w", pool, err)
	}
	lanes, err := o.readStates(ctx, pool, found, at)
	if err != nil {
		return nil, fmt.Errorf("waiting calls of pool %s: %w", pool, err)
	}
	var calls []CallStatus
	for i := range lanes {
		of := &lanes[i]
		if of.Waiting == 0 || len(of.Running) > 0 || of.State == StatePaused {
			continue
		}
		s := found[slices.IndexFunc(found, func(s *storedLane) bool { return string(s.hash) == of.Hash })]
		view := &View{Lane: *of}
		if err := o.readCalls(ctx, s, view, maxCalls, at); err != nil {
			return nil, fmt.Errorf("waiting calls of lane %s: %w", of.Lane, err)
		}
		calls = append(calls, view.Calls...)
	}
	return calls, nil
}
