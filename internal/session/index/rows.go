package index

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what the file has of a journal.
const (
	maxText  = 16 << 10 // bytes of a text: its beginning
	maxValue = 1 << 10  // bytes of a value of a call's input; of a longer one the file has digest and size
	maxError = 500
	maxWord  = 64 // of what is no word of a language
)

// row is a session as the file has it.
type row struct {
	id       int64
	copies   string // the fork or import that is not completed
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
		w.exec("UPDATE session SET copies = ?, last = ?, messages = ? WHERE id = ?", s.copies, int64(s.last), int64(s.messages), s.id) //nolint:gosec // sequences are small
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
	if !w.scan("SELECT id, copies, last, messages FROM session WHERE name = ?", []any{string(id)}, &s.id, &s.copies, &s.last, &s.messages) {
		s.id, _ = w.exec("INSERT INTO session(name) VALUES(?)", string(id))
	}
	w.sessions[id] = s
	return s
}

// message applies one message of a journal. One that cannot be read has no texts.
func (w *writer) message(m *message) {
	s := w.session(m.session)
	if m.record { // it has replaced all messages
		w.clear(s)
		s.last, s.messages = m.seq, 1
		return
	}
	var events []loop.Event
	if json.Unmarshal(m.body, &events) != nil {
		events = nil
	}
	for i := range events {
		w.event(s, &events[i])
	}
	s.last, s.messages = m.seq, s.messages+1
}

// owner stores whose a session is.
func (w *writer) owner(s *row, e *loop.Event, owned bool) {
	w.exec("UPDATE session SET tenant = ?, owner = ?, owned = ? WHERE id = ?", string(cmp.Or(e.Tenant, judge.DefaultTenant)), e.By, owned, s.id)
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
		if e.Interface == "" { // else it is a call alone
			w.text(s, e, report.RoleUser, e.Input)
		}
	case loop.EventModelReply:
		w.text(s, e, report.RoleAssistant, e.Text)
	case loop.EventCompacted:
		w.text(s, e, report.RoleSummary, e.Text)
	case loop.EventSessionMerged:
		w.text(s, e, report.RoleNote, e.Text)
	case loop.EventTurnEnded:
		if e.Error != nil {
			w.text(s, e, report.RoleError, e.Error.Message)
		}
	case loop.EventToolCall:
		w.call(s, e)
	case loop.EventToolResult, loop.EventJobEnded:
		w.result(s, e)
	default:
	}
}

// call adds a call. Of a call that is sent again the first time counts.
func (w *writer) call(s *row, e *loop.Event) {
	if e.CallID == "" {
		return
	}
	id, added := w.exec("INSERT INTO call(session, call, turn, step, idx, tool, lane, accepted) VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		s.id, string(e.CallID), e.Turn, e.Step, e.Index, e.Name, e.Lane, e.Time.UnixMilli())
	if added > 0 {
		w.exec("UPDATE call SET input = ? WHERE id = ?", w.text(s, e, report.RoleCall, shortened(e.Arguments)), id)
	}
}

// result adds the result of a call: the end of a call in the background replaces its handle.
func (w *writer) result(s *row, e *loop.Event) {
	output := w.text(s, e, report.RoleResult, e.Content)
	if e.CallID == "" || e.Job != "" && e.Type == loop.EventToolResult {
		return
	}
	var code, message string
	if e.Error != nil {
		code, message = string(e.Error.Code), prose.Cut(e.Error.Message, maxError)
	}
	at := e.Time.UnixMilli()
	w.exec("INSERT INTO call(session, call, turn, step, idx, tool, lane, accepted) VALUES(?, ?, ?, ?, ?, ?, '', ?) ON CONFLICT DO NOTHING",
		s.id, string(e.CallID), e.Turn, e.Step, e.Index, e.Name, at) // of a call that was refused
	w.exec("UPDATE call SET finished = ?, queue_ms = ?, run_ms = ?, status = ?, code = ?, error = ?, worker = ?, attempt = ?, output = ? WHERE session = ? AND call = ?",
		at, e.QueueMS, e.RunMS, e.Status, code, message, string(e.WorkerID), e.Attempt, output, s.id, string(e.CallID))
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
	return role != report.RoleCall && role != report.RoleResult || tool != wire.SearchTool && tool != wire.SessionSearchTool
}

// clear removes the rows of a session. Its messages count on. From now on no search has its texts;
// [sweep] removes them, which takes longer.
func (w *writer) clear(s *row) {
	w.exec("UPDATE entry SET session = 0 WHERE session = ?", s.id)
	w.exec("DELETE FROM call WHERE session = ?", s.id)
	w.exec("UPDATE session SET tenant = '', owner = '', owned = 0 WHERE id = ?", s.id)
	s.copies = ""
}

// forget removes a session.
func (w *writer) forget(id protocol.SessionID) {
	w.clear(w.session(id))
	w.exec("DELETE FROM session WHERE name = ?", string(id))
	delete(w.sessions, id)
}

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

// removeOldest removes some of the oldest texts, with the calls of their time, and returns how many
// there were.
func (w *writer) removeOldest() int {
	last, removed := w.remove("SELECT id, at, role, tool, body FROM entry ORDER BY at LIMIT ?", removeStep)
	if removed > 0 && w.err == nil {
		w.exec("DELETE FROM call WHERE accepted <= ?", last)
		w.err = setMeta(w.ctx, w.tx, keySince, time.UnixMilli(last).UTC().Format(time.RFC3339))
	}
	return removed
}

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

// shortened is the input of a call. Of long values, such as the contents of a file that is written,
// it has the digest and the size.
func shortened(arguments string) string {
	var all map[string]any
	if len(arguments) <= maxValue || json.Unmarshal([]byte(arguments), &all) != nil {
		return arguments
	}
	short, err := json.Marshal(shortenedValue(all))
	if err != nil {
		return arguments
	}
	return string(short)
}

func shortenedValue(value any) any {
	switch v := value.(type) {
	case string:
		if len(v) > maxValue {
			sum := sha256.Sum256([]byte(v))
			return map[string]any{"sha256": hex.EncodeToString(sum[:]), "bytes": len(v)}
		}
	case map[string]any:
		for key := range v {
			v[key] = shortenedValue(v[key])
		}
	case []any:
		for i := range v {
			v[i] = shortenedValue(v[i])
		}
	}
	return value
}
