package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// control is what a held lane knows about pauses, and about calls that end without being started. A
// paused lane has a pause mark in its mailbox. Its holder starts nothing, and holds the lane
// without a slot while calls wait there: running calls go on, cancelled and expired calls are still
// answered, and the ready message stays stored. A paused lane without calls is released; the mark
// alone does not make it ready. One goroutine owns control, except for the atomic fields.
type control struct {
	paused     atomic.Bool // as last read
	queried    atomic.Bool // a query arrived since the marks were read
	readAt     time.Time   // when the marks beyond the window were last read
	nextDue    time.Time   // when a waiting call may have to be answered; zero is never
	hasCancels bool        // a call was cancelled since refuseDue last ran
	// cancelledUnread are calls that were cancelled before they were read: their cancel requests
	// may be beyond the window.
	cancelledUnread map[protocol.CallID]struct{}
}

func (l *heldLane) applyCancels() {
	for _, id := range l.mail.drainCancels() {
		l.cancelCall(id)
	}
}

func (l *heldLane) cancelCall(id protocol.CallID) {
	e := l.schedule.Find(id)
	if e == nil {
		if l.control.cancelledUnread == nil {
			l.control.cancelledUnread = map[protocol.CallID]struct{}{}
		}
		l.control.cancelledUnread[id] = struct{}{}
		return
	}
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	e.Cancelled = true
	l.control.hasCancels = true
	if e.Stop != nil {
		e.Stop(ErrCancelled)
	}
}

// readControl finds out whether the lane is paused, and which calls beyond the window are
// cancelled. These marks arrive with the mailbox, so they are read separately only if they may be
// beyond the window, or deleted.
func (l *heldLane) readControl() error {
	beyond := l.isFull() && (time.Since(l.control.readAt) >= readPeriod || !l.mail.seesAllCancels())
	if asked := l.control.queried.Swap(false); !asked && !beyond && !l.control.paused.Load() {
		return nil
	}
	err := l.readBeyondWindow()
	if err != nil {
		l.control.queried.Store(true)
		return err
	}
	l.control.readAt = time.Now()
	return nil
}

// checkPauses has held lanes read their mailboxes whose pause mark is not as they know it, because
// the operator who stored or deleted it was lost before it asked their holder. One answer has the
// marks of all lanes.
func (h *Holder) checkPauses(ctx context.Context) {
	marks := map[wire.LaneHash]bool{}
	complete, err := h.store.EachSubject(ctx, wire.PauseSubject(h.options.Fleet, h.options.Pool, "*"), math.MaxInt, func(subject string) {
		marks[wire.LaneOfSubject(h.options.Fleet, subject)] = true
	})
	if err != nil || !complete {
		return // until the next time
	}
	for _, l := range h.lanes() {
		if l.control.paused.Load() != marks[l.hash] {
			l.control.queried.Store(true)
			l.mail.notify()
		}
	}
}

func (l *heldLane) readBeyondWindow() error {
	s, pool := l.holder.store, l.holder.options.Pool
	if l.isFull() && (!s.Consistency().RepublishesAll() || !l.mail.seesAllCancels()) {
		l.mail.relisten()
		_, err := s.EachSubject(l.ctx, wire.CancelSubject(s.Fleet, pool, l.hash, "*"), math.MaxInt, func(subject string) {
			l.cancelCall(wire.ParseMailboxSubject(s.Fleet, subject).CallID)
		})
		if err != nil {
			return err
		}
		l.mail.listed = true
	}
	mark, err := s.Next(l.ctx, wire.PauseSubject(s.Fleet, pool, l.hash), 0)
	if err == nil {
		l.control.paused.Store(mark != nil)
	}
	return err
}

// refuseDue answers every call that must not start, wherever it is in the schedule: a call without
// effects need not wait for its turn.
func (l *heldLane) refuseDue() {
	isDue := !l.control.nextDue.IsZero() && !time.Now().Before(l.control.nextDue)
	if !l.control.hasCancels && !l.control.paused.Load() && !isDue {
		return
	}
	l.control.hasCancels = false
	defer l.recomputeDue()
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if !l.schedule.MayRefuse(e) {
			continue
		}
		result := l.Refusal(e)
		if result == nil {
			continue
		}
		if !l.settleRefused(e, result) {
			return // the lane is lost
		}
		l.finishEntry(e)
	}
}

// settleRefused stores the result of a call that is not started, unless it has one already.
func (l *heldLane) settleRefused(e *core.Entry, result *protocol.Result) bool {
	known := false
	ok := l.retry("result cannot be looked up", func() (err error) {
		known, err = l.isSettled(e)
		return err
	})
	if ok && known {
		l.onAlreadySettled(e)
		return true
	}
	return ok && l.settle(e, result)
}

// noteDue notes when a waiting call may have to be answered before it starts. The noted time may be
// too early, never too late.
func (l *heldLane) noteDue(e *core.Entry) {
	after, bounded := e.DueAfter()
	if !bounded {
		return
	}
	at := time.Now().Add(after - l.holder.clock.Age(e.Accepted))
	if l.control.nextDue.IsZero() || at.Before(l.control.nextDue) {
		l.control.nextDue = at
	}
}

// recomputeDue finds the next call to be answered. A call whose time is over, and which may have
// been started, is checked again in a moment.
func (l *heldLane) recomputeDue() {
	l.control.nextDue = time.Time{}
	for _, e := range l.schedule.Entries() {
		if !e.Running {
			l.noteDue(e)
		}
	}
	if now := time.Now(); !l.control.nextDue.IsZero() && !now.Before(l.control.nextDue) {
		l.control.nextDue = now.Add(pause.Retry)
	}
}

// RunningCall is a call that a worker executes.
type RunningCall = report.RunningCall

// Report lists lanes that a worker holds. It has durations, because the clocks of machines differ.
// It may be outdated; the streams are authoritative.
type Report struct {
	Type     string            `json:"type"`
	Version  int               `json:"version"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	Lanes    []HeldLane        `json:"lanes"`
}

// TypeReport is the type of an [Report].
const TypeReport = "lanes_held"

// HeldLane is a lane as its holder sees it.
type HeldLane struct {
	Lane    protocol.Lane `json:"lane"`
	Epoch   uint64        `json:"epoch"` // of the claim
	HeldMS  int64         `json:"held_ms"`
	Paused  bool          `json:"paused"`
	Running []RunningCall `json:"running"`
	// WaitsFor is the limit, the slot, the retry or the call that the lane's next call waits for;
	// "" is none. An older holder has no Wait.
	WaitsFor string      `json:"waits_for,omitempty"`
	Wait     report.Wait `json:"wait,omitzero"`
}

// Query is which lanes of a pool its holders are asked about; without a body it is all of them.
type Query struct {
	Lanes []wire.LaneHash `json:"lanes"`
}

// queriedLanes returns the held lanes that a question is about.
func (h *Holder) queriedLanes(body []byte) []*heldLane {
	var question Query
	if len(body) == 0 || json.Unmarshal(body, &question) != nil {
		return h.lanes()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var lanes []*heldLane
	for _, hash := range question.Lanes {
		if l := h.held[hash]; l != nil {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// reportBytes is the size at which an answer about many lanes is split.
const reportBytes = 256 << 10

// serveQueries answers operators until stop is called.
func (h *Holder) serveQueries() (stop func(), err error) {
	fleet, pool := h.options.Fleet, h.options.Pool
	all, err := h.store.NC.Subscribe(wire.AskAllSubject(fleet, pool), func(msg *nats.Msg) { h.respond(msg, h.queriedLanes(msg.Data)) })
	if err != nil {
		return nil, fmt.Errorf("listen to questions: %w", err)
	}
	one, err := h.store.NC.Subscribe(wire.AskSubject(fleet, pool, "*"), h.onQuery)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to questions: %w", err), all.Unsubscribe())
	}
	return func() {
		_ = all.Unsubscribe() // fails only when the connection is closed
		_ = one.Unsubscribe()
	}, nil
}

// onQuery answers a query about one lane, if it is held here. The sender may have changed the lane,
// so the lane reads its mailbox. A query with a body is an offer, see [Holder.onOffer].
func (h *Holder) onQuery(msg *nats.Msg) {
	hash := wire.LaneHash(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:])
	h.mu.Lock()
	l, incarnation := h.held[hash], h.incarnation
	h.mu.Unlock()
	if asked := msg.Header.Get(wire.HeaderIncarnation); asked != "" && (incarnation == nil || asked != string(incarnation.id)) {
		return
	}
	if l == nil || len(msg.Data) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), store.ShortTimeout) //nolint:forbidigo // a callback of NATS has no context
		defer cancel()
		if len(msg.Data) > 0 {
			h.onOffer(ctx, hash, msg)
			return
		}
		h.removeStaleClaim(ctx, hash)
		return
	}
	if msg.Reply != "" {
		h.respond(msg, []*heldLane{l})
	}
	l.control.queried.Store(true)
	l.mail.notify()
}

func (h *Holder) respond(question *nats.Msg, lanes []*heldLane) {
	a := Report{Type: TypeReport, Version: wire.Version, WorkerID: h.options.Worker, Lanes: []HeldLane{}}
	size := 0
	for _, l := range lanes {
		status := l.describe()
		a.Lanes = append(a.Lanes, status)
		if size += len(status.Lane) + 256*(1+len(status.Running)); size > reportBytes {
			h.send(question, &a)
			a.Lanes, size = a.Lanes[:0], 0
		}
	}
	if len(a.Lanes) > 0 {
		h.send(question, &a)
	}
}

func (h *Holder) send(question *nats.Msg, a *Report) {
	body, err := json.Marshal(a)
	if err == nil {
		err = question.Respond(body)
	}
	if err != nil {
		h.options.Logger.Debug("question is not answered", slog.String("subject", question.Subject), slog.Any("error", err))
	}
}

// describe may be called from any goroutine.
func (l *heldLane) describe() HeldLane {
	now := time.Now()
	status := HeldLane{
		Lane: l.lane, Epoch: l.claim.epoch.Load(), HeldMS: now.Sub(l.since).Milliseconds(),
		Paused: l.control.paused.Load(), Running: []RunningCall{},
	}
	status.WaitsFor, status.Wait = l.limit.describe()
	if awaited := l.awaits.Load(); status.WaitsFor == "" && awaited != nil {
		status.WaitsFor, status.Wait = awaited.text, awaited.wait
	}
	if o := &l.holder.options; status.WaitsFor == "" && l.slotless.Load() {
		status.WaitsFor = fmt.Sprintf("a slot: worker %s has %d", o.Worker, o.Slots)
		status.Wait = report.Wait{Reason: report.ReasonSlot, WorkerID: o.Worker, Pool: o.Pool}
	}
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	for _, run := range l.running.calls {
		status.Running = append(status.Running, RunningCall{
			CallID: run.call.ID, SessionID: run.call.SessionID, Tool: run.call.Tool,
			Attempt: run.attempt, RunningMS: now.Sub(run.since).Milliseconds(), Waits: run.waits,
		})
	}
	return status
}
