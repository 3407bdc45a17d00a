package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/session/timeline"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what the file has of a journal.
const (
	maxText  = 16 << 10 // bytes of a text: its beginning
	maxError = 500
	maxWord  = 64 // of what is no word of a language
)

// row is a session as the file has it.
type row struct {
	id       int64
	copies   string          // the fork or import that is not completed
	removed  int64           // when the server stored that it was removed
	request  int64           // when the model could be asked: after the last result, or input
	modelMS  sql.NullFloat64 // how long the last reply took
	asks     timeline.Asks
	owner    judge.Owner
	last     uint64
	messages uint64
}

// writer applies messages in one transaction. After the first error it does nothing.
type writer struct {
	ctx        context.Context //nolint:containedctx // of the transaction
	tx         *sql.Tx
	sessions   map[protocol.SessionID]*row
	statements map[string]*sql.Stmt
	err        error
}

func newWriter(ctx context.Context, tx *sql.Tx) *writer {
	return &writer{ctx: ctx, tx: tx, sessions: map[protocol.SessionID]*row{}, statements: map[string]*sql.Stmt{}}
}

// close stores how far the sessions were applied, and returns the first error.
func (w *writer) close() error {
	for _, s := range w.sessions {
		w.exec("UPDATE session SET copies = ?, removed = ?, request = ?, model_ms = ?, ask_step = ?, ask_ms = ?, asking = ?, last = ?, messages = ? WHERE id = ?",
			s.copies, s.removed, s.request, s.modelMS, s.asks.Step, s.asks.MS, s.asks.Since, int64(s.last), int64(s.messages), s.id) //nolint:gosec // sequences are small
	}
	for _, statement := range w.statements {
		w.err = errors.Join(w.err, statement.Close())
	}
	return w.err
}

// prepared returns a statement; nil after an error.
func (w *writer) prepared(query string) *sql.Stmt {
	statement := w.statements[query]
	if statement == nil && w.err == nil {
		if statement, w.err = w.tx.PrepareContext(w.ctx, query); w.err == nil {
			w.statements[query] = statement
		}
	}
	return statement
}

// exec runs a statement, and returns the id of the row that it has inserted, and how many rows it
// has changed.
func (w *writer) exec(query string, args ...any) (id, changed int64) {
	statement := w.prepared(query)
	if w.err != nil {
		return 0, 0
	}
	result, err := statement.ExecContext(w.ctx, args...)
	if w.err = err; err != nil {
		return 0, 0
	}
	id, _ = result.LastInsertId() // the driver has both
	changed, _ = result.RowsAffected()
	return id, changed
}

// scan reads one row, and reports whether there is one.
func (w *writer) scan(query string, args []any, into ...any) bool {
	statement := w.prepared(query)
	if w.err != nil {
		return false
	}
	err := statement.QueryRowContext(w.ctx, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false
	}
	w.err = err
	return err == nil
}

// session returns the row of a session, which it makes if there is none.
func (w *writer) session(id protocol.SessionID) *row {
	if s := w.sessions[id]; s != nil {
		return s
	}
	s := &row{}
	if !w.scan("SELECT id, copies, removed, request, model_ms, ask_step, ask_ms, asking, tenant, owner, last, messages FROM session WHERE name = ?", []any{string(id)},
		&s.id, &s.copies, &s.removed, &s.request, &s.modelMS, &s.asks.Step, &s.asks.MS, &s.asks.Since, &s.owner.Tenant, &s.owner.By, &s.last, &s.messages) {
		s.id, _ = w.exec("INSERT INTO session(name) VALUES(?)", string(id))
	}
	w.sessions[id] = s
	return s
}

// message applies one message of a journal. One that cannot be read has no texts.
func (w *writer) message(m *message) {
	if m.result {
		w.settled(m)
		return
	}
	s := w.session(m.session)
	if m.record { // it has replaced all messages
		w.clear(s)
		s.last, s.messages, s.removed = m.seq, 1, m.stored
		return
	}
	var events []loop.Event
	if json.Unmarshal(m.body, &events) != nil {
		events = nil
	}
	for i := range events {
		events[i].Time = m.time(events[i].Time)
		if w.event(s, &events[i]); events[i].Type == loop.EventRemoved {
			s.removed = m.stored
		}
	}
	s.last, s.messages = m.seq, s.messages+1
}

// owner stores whose a session is.
func (w *writer) owner(s *row, e *loop.Event, owned bool) {
	s.owner = judge.Owner{Tenant: cmp.Or(e.Tenant, judge.DefaultTenant), By: e.By}
	w.exec("UPDATE session SET tenant = ?, owner = ?, owned = ? WHERE id = ?", string(s.owner.Tenant), s.owner.By, owned, s.id)
	w.exec("UPDATE call SET tenant = ?, owner = ? WHERE session = ? AND NOT stored", string(s.owner.Tenant), s.owner.By, s.id)
}

// event applies one event of a journal.
func (w *writer) event(s *row, e *loop.Event) {
	switch e.Type {
	case loop.EventRemoved:
		w.clear(s)
	case loop.EventCopyStarted: // what is before was interrupted
		w.clear(s)
		s.copies = string(e.CallID)
		w.owner(s, e, e.Tenant != "")
	case loop.EventSessionForked, loop.EventImported: // the calls before are those of another session
		if string(e.CallID) == s.copies {
			s.copies = ""
		}
		w.exec("DELETE FROM call WHERE session = ?", s.id)
	case loop.EventSessionStarted:
		w.owner(s, e, true)
	case loop.EventTurnStarted, loop.EventInputAdded:
		s.request = e.Time.UnixMilli()
		if e.Interface == "" { // else it is a call alone
			w.text(s, e, report.RoleUser, e.Input)
		}
	case loop.EventModelReply:
		if s.modelMS = (sql.NullFloat64{Float64: e.RequestMS, Valid: true}); e.RequestMS == 0 { // an earlier version has stored it
			s.modelMS = sql.NullFloat64{Float64: float64(max(e.Time.UnixMilli()-s.request, 0)), Valid: s.request > 0}
		}
		w.text(s, e, report.RoleAssistant, e.Text)
	case loop.EventCompacted:
		w.text(s, e, report.RoleSummary, e.Text)
	case loop.EventSessionMerged:
		w.text(s, e, report.RoleNote, e.Text)
	case loop.EventTurnEnded:
		if e.Error != nil {
			w.text(s, e, report.RoleError, e.Error.Message)
		}
	case loop.EventApprovalAsked:
		s.asks.Asked(e)
		w.asked(s, e)
	case loop.EventQuestionAsked:
		w.asked(s, e)
	case loop.EventPolicyDecision, loop.EventCallJudged:
		s.asks.Answered(e)
		w.answered(s, e)
	case loop.EventAnswered:
		w.answered(s, e)
	case loop.EventToolCall:
		w.call(s, e)
	case loop.EventToolResult, loop.EventJobEnded:
		w.result(s, e)
	default:
	}
}

// text adds a text, and returns its row; 0 for an empty one. Searches find no searches.
func (w *writer) text(s *row, e *loop.Event, role report.Role, text string) int64 {
	text = prose.Cut(prose.Valid(text), maxText)
	if strings.TrimSpace(text) == "" {
		return 0
	}
	id, _ := w.exec("INSERT INTO entry(session, at, turn, step, role, tool, call, body) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
		s.id, e.Time.UnixMilli(), e.Turn, e.Step, string(role), e.Name, string(e.CallID), text)
	if isSearched(role, e.Name) {
		w.exec("INSERT INTO word(rowid, text) VALUES(?, ?)", id, words(text))
	}
	return id
}

// isSearched reports whether a text has its words in the file: those of searches would be found by
// the next search.
func isSearched(role report.Role, tool string) bool {
	switch role {
	case report.RoleCall, report.RoleResult, roleInput, roleOutput:
		return tool != wire.SearchTool && tool != wire.SessionSearchTool
	case roleLater:
		return false
	default:
		return true
	}
}

// clear removes the rows of a session. Its messages count on. From now on no search has its texts;
// [sweep] removes them, which takes longer.
func (w *writer) clear(s *row) {
	w.exec("UPDATE entry SET session = 0 WHERE session = ?", s.id)
	w.exec("DELETE FROM call WHERE session = ?", s.id)
	w.exec("UPDATE session SET tenant = '', owner = '', owned = 0 WHERE id = ?", s.id)
	s.copies, s.request, s.modelMS, s.asks, s.owner = "", 0, sql.NullFloat64{}, timeline.Asks{}, judge.Owner{}
}

// forget removes a session. Of one that was removed lately the row stays, because another process
// may have read results of it before.
func (w *writer) forget(id protocol.SessionID) {
	s := w.session(id)
	w.clear(s)
	s.last, s.messages = 0, 0
	if _, deleted := w.exec("DELETE FROM session WHERE name = ? AND ? < ?", string(id), s.removed, time.Now().Add(-inFlight).UnixMilli()); deleted > 0 {
		delete(w.sessions, id)
	}
}

// inFlight is how long after a removal a process may apply a result that it has read before.
const inFlight = time.Hour

// remove removes the texts that a query has, and returns when the last one was said and how many
// they are. Their words are computed again: the file does not have them in their order.
func (w *writer) remove(query string, args ...any) (last int64, removed int) {
	statement := w.prepared(query)
	if w.err != nil {
		return 0, 0
	}
	type entry struct {
		id, at     int64
		role       report.Role
		tool, body string
	}
	var all []entry
	rows, err := statement.QueryContext(w.ctx, args...)
	if w.err = err; err != nil {
		return 0, 0
	}
	for rows.Next() {
		var one entry
		w.err = errors.Join(w.err, rows.Scan(&one.id, &one.at, &one.role, &one.tool, &one.body))
		all = append(all, one)
	}
	w.err = errors.Join(w.err, rows.Err(), rows.Close())
	for _, one := range all {
		if isSearched(one.role, one.tool) {
			w.exec("INSERT INTO word(word, rowid, text) VALUES('delete', ?, ?)", one.id, words(one.body))
		}
		last = max(last, one.at)
		w.exec("DELETE FROM entry WHERE id = ?", one.id)
	}
	if len(all) > 0 && w.err == nil {
		w.err = setMeta(w.ctx, w.tx, keyScrub, stamp())
	}
	return last, len(all)
}

// removeOldest removes some of the oldest texts said before a time, with the calls of their time,
// and returns how many there were.
func (w *writer) removeOldest(before int64) int {
	last, removed := w.remove("SELECT id, at, role, tool, body FROM entry WHERE at < ? ORDER BY at LIMIT ?", before, removeStep)
	if removed < removeStep { // calls without a text
		last = before - 1
	}
	if last > 0 && w.err == nil {
		ended := w.removeCalls("DELETE FROM call WHERE id IN (SELECT id FROM call WHERE finished <= ? ORDER BY finished LIMIT ?) RETURNING session, finished", last, removeStep)
		open := w.removeCalls("DELETE FROM call WHERE id IN (SELECT id FROM call WHERE finished IS NULL AND accepted <= ? LIMIT ?) RETURNING session, accepted",
			last, removeStep)
		if last == always-1 {
			last = max(ended.last, open.last)
		}
		if removed += ended.count + open.count; removed > 0 && w.err == nil {
			w.err = setMeta(w.ctx, w.tx, keySince, time.UnixMilli(last).UTC().Format(time.RFC3339))
		}
	}
	return removed
}

// removedCalls says how many calls were removed, and the last time of one.
type removedCalls struct {
	count int
	last  int64
}

// removeCalls removes calls, and the rows of sessions that have neither a journal nor a call now. A
// session that was removed lately keeps its row, see [writer.forget].
func (w *writer) removeCalls(query string, args ...any) (removed removedCalls) {
	statement := w.prepared(query)
	if w.err != nil {
		return removed
	}
	rows, err := statement.QueryContext(w.ctx, args...)
	if w.err = err; err != nil {
		return removed
	}
	sessions := map[int64]bool{}
	for rows.Next() {
		var session, at int64
		w.err = errors.Join(w.err, rows.Scan(&session, &at))
		sessions[session], removed.count, removed.last = true, removed.count+1, max(removed.last, at)
	}
	w.err = errors.Join(w.err, rows.Err(), rows.Close())
	for session := range sessions {
		w.exec("DELETE FROM session WHERE id = ? AND messages = 0 AND removed = 0 AND NOT EXISTS (SELECT 1 FROM call WHERE session = session.id)", session)
	}
	return removed
}

// always is after each time.
const always = int64(1) << 62

// words are the words of a text, separated by spaces: without marks, in lower case, and each
// character of a script that has no spaces between words.
func words(text string) string {
	var all strings.Builder
	prose.EachWord(text, func(word string, _ int) {
		all.WriteString(fold(word))
		all.WriteByte(' ')
	})
	return all.String()
}

// fold is a word as the file has it.
func fold(word string) string {
	word = prose.Unmarked(word)
	if len(word) > maxWord {
		word = word[:prose.Border(word[:maxWord])]
	}
	return word
}
