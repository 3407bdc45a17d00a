package index

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call has one row, which both sources fill: the journal of its session, and its stored result.
// Either may be read first, and either may be missing: calls that no turn made have no journal, and
// calls that no worker ran have no result. What is said twice is taken from the result, but for the
// texts, where the journal has what the model wrote and read.

// Roles of texts that only the log of calls has. Searches across sessions do not find them, because
// a session without a journal may have calls of several tenants.
const (
	roleInput  report.Role = "input"
	roleOutput report.Role = "output"
	roleLater  report.Role = "later" // the output of a turn's call, without words: the journal will have it
)

// maxName bounds names that a sender has chosen.
const maxName = 300

// logged is the row of a call.
type logged struct {
	id              int64
	input, output   int64 // texts
	stored, settled bool  // its stored result was read, and how it ended is known
	owner           judge.Owner
}

// callOf returns the row of a call, which it makes if there is none. It belongs to no tenant until
// a journal or a proof says to which: what a result says alone, its worker may have made up.
func (w *writer) callOf(s *row, call protocol.CallID) (c logged) {
	if !w.scan("SELECT id, input, output, stored, finished IS NOT NULL, tenant, owner FROM call WHERE session = ? AND call = ?", []any{s.id, string(call)},
		&c.id, &c.input, &c.output, &c.stored, &c.settled, &c.owner.Tenant, &c.owner.By) {
		c.id, _ = w.exec("INSERT INTO call(session, call) VALUES(?, ?)", s.id, string(call))
	}
	return c
}

// journaled returns the row of a call that the journal of a session has.
func (w *writer) journaled(s *row, call protocol.CallID) logged {
	c := w.callOf(s, call)
	if c.owner.Tenant == "" && s.owner.Tenant != "" {
		c.owner = s.owner
		w.exec("UPDATE call SET tenant = ?, owner = ? WHERE id = ?", string(c.owner.Tenant), c.owner.By, c.id)
	}
	return c
}

// replaced adds a text of a journal instead of that of a result, and returns its row.
func (w *writer) replaced(s *row, e *loop.Event, role report.Role, text string, was int64) int64 {
	if was > 0 {
		if _, removed := w.remove("SELECT id, at, role, tool, body FROM entry WHERE id = ? AND role IN (?, ?, ?)",
			was, string(roleInput), string(roleOutput), string(roleLater)); removed == 0 {
			return was
		}
	}
	return w.text(s, e, role, text)
}

// call adds a call that is sent. Of one that is sent again the first time counts.
func (w *writer) call(s *row, e *loop.Event) {
	if e.CallID == "" {
		return
	}
	c := w.journaled(s, e.CallID)
	pool, lane, _ := strings.Cut(e.Lane, "/")
	w.exec(`UPDATE call SET turn = ?, step = ?, idx = ?, tool = ?, pool = ?, lane = ?, accepted = iif(accepted = 0, ?, accepted), model_ms = coalesce(model_ms, ?), input = ? WHERE id = ?`,
		e.Turn, e.Step, e.Index, e.Name, pool, lane, e.Time.UnixMilli(), s.modelMS, w.replaced(s, e, report.RoleCall, wire.Shortened(e.Arguments), c.input), c.id)
	if ms := s.asks.Waited(e); ms > 0 {
		w.exec("UPDATE call SET person_ms = max(coalesce(person_ms, 0), ?), asked = NULL WHERE id = ?", ms, c.id)
	}
}

// asked notes that a person is asked about a call, or by it.
func (w *writer) asked(s *row, e *loop.Event) {
	if e.CallID != "" {
		w.exec("UPDATE call SET asked = coalesce(asked, ?) WHERE id = ?", e.Time.UnixMilli(), w.journaled(s, e.CallID).id)
	}
}

// answered adds the time since a person was asked.
func (w *writer) answered(s *row, e *loop.Event) {
	w.exec("UPDATE call SET person_ms = coalesce(person_ms, 0) + max(? - asked, 0), asked = NULL WHERE session = ? AND call = ? AND asked IS NOT NULL",
		e.Time.UnixMilli(), s.id, string(e.CallID))
}

// result adds the result of a call: the end of a call in the background replaces its handle.
func (w *writer) result(s *row, e *loop.Event) {
	s.request = e.Time.UnixMilli()
	if e.CallID == "" || e.Job != "" && e.Type == loop.EventToolResult {
		w.text(s, e, report.RoleResult, e.Content)
		return
	}
	w.answered(s, e) // it ended before a person has answered
	c := w.journaled(s, e.CallID)
	w.exec("UPDATE call SET turn = ?, step = ?, idx = ?, tool = iif(tool = '', ?, tool), accepted = iif(accepted = 0, ?, accepted), output = ? WHERE id = ?",
		e.Turn, e.Step, e.Index, e.Name, e.Time.UnixMilli(), w.replaced(s, e, report.RoleResult, e.Content, c.output), c.id)
	w.outcome(c, protocol.Status(e.Status), e.Exit, e.Error)
	if !c.stored {
		r := protocol.Result{
			WorkerID: e.WorkerID, Attempt: e.Attempt, Checkpoint: e.Checkpoint, Level: e.Level,
			SandboxMS: e.SandboxMS, StoreMS: e.StoreMS, Waits: e.Waits, FinishedAt: e.Time,
		}
		if e.QueueMS != nil && e.RunMS != nil {
			r.QueueMS, r.RunMS = *e.QueueMS, *e.RunMS
		}
		bounded(&r)
		w.ran(c, &r)
	}
}

// outcome sets how a call ended; exit is how its command did, if that is not well.
func (w *writer) outcome(c logged, status protocol.Status, exit string, err *protocol.Error) {
	code, message := errorOf(err)
	if status != protocol.StatusOK {
		exit = ""
	}
	w.exec("UPDATE call SET status = ?, exit = ?, code = ?, error = ? WHERE id = ?", string(status), prose.Cut(exit, maxName), code, message, c.id)
}

// ran sets when and where a call ran, and what it waited for.
func (w *writer) ran(c logged, r *protocol.Result) {
	finished, started := r.FinishedAt.UnixMilli(), sql.NullInt64{}
	if r.Attempt > 0 || r.WorkerID == "" && r.RunMS > 0 {
		started = sql.NullInt64{Int64: finished - int64(r.RunMS), Valid: true}
	}
	waits := &r.Waits
	w.exec(`UPDATE call SET started = ?, finished = ?, worker = ?, attempt = ?, level = ?, checkpoint = ?, run_ms = ?, sandbox_ms = ?, store_ms = ?, queue_ms = ?,
  not_before_ms = ?, slot_ms = ?, lane_ms = ?, after_ms = ?, limit_ms = ?, rate_ms = ?, pause_ms = ?, lost_ms = ?, held_by = ?, held_by_session = ?, after_call = ?, after_session = ?, limited = ?, lost_worker = ? WHERE id = ?`,
		started, finished, string(r.WorkerID), r.Attempt, prose.Cut(r.Level, maxName), int64(r.Checkpoint), some(r.RunMS), some(r.SandboxMS), some(r.StoreMS), some(r.QueueMS), //nolint:gosec // a sequence is small
		some(waits.NotBeforeMS), some(waits.SlotMS), some(waits.LaneMS), some(waits.AfterMS), some(waits.LimitMS), some(waits.RateMS), some(waits.PauseMS), some(waits.LostMS),
		prose.Cut(string(waits.HeldBy), maxName), prose.Cut(string(waits.HeldBySession), maxName),
		prose.Cut(string(waits.AfterCall), maxName), prose.Cut(string(waits.AfterSession), maxName),
		prose.Cut(waits.Limit, maxName), prose.Cut(string(waits.LostWorker), maxName), c.id)
}

func errorOf(err *protocol.Error) (code, message string) {
	if err == nil {
		return "", ""
	}
	return prose.Cut(string(err.Code), maxName), prose.Cut(prose.Valid(err.Message), maxError)
}

// settled adds the stored result of a call.
func (w *writer) settled(m *message) {
	r, err := wire.DecodeResult(m.body)
	if err != nil || r.SessionID != m.session { // no reader gets it
		return
	}
	about := m.about
	if about == nil {
		about = &wire.About{}
	}
	s := w.session(r.SessionID)
	if m.stored <= s.removed { // it was removed with its session, after it was read
		return
	}
	r.FinishedAt = m.time(r.FinishedAt)
	bounded(r)
	c := w.callOf(s, r.CallID)
	owner := c.owner
	if owner.Tenant == "" && m.proven { // that of the session, if its journal has one
		if owner = s.owner; owner.Tenant == "" {
			owner = judge.Owner{Tenant: cmp.Or(about.Tenant, judge.DefaultTenant), By: about.By}
		}
	}
	accepted := cmp.Or(about.Accepted, r.FinishedAt.UnixMilli()-int64(r.RunMS+r.QueueMS+r.Waits.NotBeforeMS))
	text, at := textOf(r), &loop.Event{Time: r.FinishedAt, CallFields: loop.CallFields{CallID: r.CallID, Name: prose.Cut(about.Tool, maxName)}}
	at.Turn, at.Step = about.Turn, about.Step
	if c.input == 0 {
		c.input = w.text(s, at, roleInput, about.Input)
	}
	if c.output == 0 {
		role := roleOutput
		if _, turn := r.Value.(wire.TurnRunResult); turn || about.Turn > 0 || m.about == nil {
			role = roleLater
		}
		c.output = w.text(s, at, role, text)
	}
	var resources []byte
	if len(about.Resources) > 0 {
		resources, _ = json.Marshal(about.Resources) // it was JSON
	}
	pool, lane, _ := strings.Cut(prose.Cut(about.Lane, 2*maxName), "/")
	w.exec(`UPDATE call SET turn = iif(turn = 0, ?, turn), step = iif(step = 0, ?, step), idx = iif(idx = 0, ?, idx), tool = iif(tool = '', ?, tool),
  pool = iif(pool = '', ?, pool), lane = iif(lane = '', ?, lane), resources = ?, tenant = ?, owner = ?, accepted = ?, stored = 1, input = ?, output = ? WHERE id = ?`,
		about.Turn, about.Step, about.Index, cmp.Or(prose.Cut(about.Tool, maxName), prose.Cut(r.Tool, maxName)), pool, lane, string(resources), string(owner.Tenant), owner.By, accepted, c.input, c.output, c.id)
	if !c.settled { // else the journal has said it
		w.outcome(c, r.Status, render.Exit(r), r.Error)
	}
	w.ran(c, r)
}

// maxMS bounds a time that a worker says, to some hundred days: what calls took is summed.
const maxMS = 1e10

// bounded replaces times of a result that no call has.
func bounded(r *protocol.Result) {
	w := &r.Waits
	for _, ms := range []*float64{
		&r.RunMS, &r.QueueMS, &r.SandboxMS, &r.StoreMS,
		&w.NotBeforeMS, &w.SlotMS, &w.LaneMS, &w.AfterMS, &w.LimitMS, &w.RateMS, &w.PauseMS, &w.LostMS,
	} {
		*ms = min(max(*ms, 0), maxMS)
	}
}

// some is a time, and NULL for none.
func some(ms float64) any {
	if ms == 0 {
		return nil
	}
	return ms
}

// textOf is what a call returned, as text.
func textOf(r *protocol.Result) string {
	if turn, is := r.Value.(wire.TurnRunResult); is {
		return turn.Text
	}
	var text string
	if r.Value != nil {
		written, err := plain.Text(r.Value)
		if text = string(written); err != nil {
			text = ""
		}
	}
	if text == "" && r.Error != nil {
		text = r.Error.Message
	}
	return text
}
