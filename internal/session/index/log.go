package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of the log of calls.
const (
	MaxCalls     = 1000 // of a page
	defaultCalls = 50
	scanned      = 5000 // passages with the words of a query that are looked at for one page
	updateTime   = 2 * time.Second
)

// Calls says which calls of the log are wanted, and who asks for them.
type Calls struct {
	report.CallQuery

	// May judges whether a principal may see the calls of an owner: [judge.ErrRefused] leaves them
	// out. nil shows all.
	May func(ctx context.Context, owner judge.Owner) error
	// Reach is the only tenant whose calls the principal may see; "" is every tenant.
	Reach protocol.Tenant

	upTo int64 // calls that are taken in later come behind the position of the page; 0 is no bound
}

// check reports what is wrong with a query.
func (q *Calls) check() error {
	var faults []error
	if q.Limit < 0 || q.Limit > MaxCalls {
		faults = append(faults, fmt.Errorf("limit %d: must be 1 to %d", q.Limit, MaxCalls))
	}
	for _, status := range q.Status {
		if all := append(wire.Statuses(), report.CallsExit, report.CallsNotOK); !slices.Contains(all, status) {
			faults = append(faults, fmt.Errorf("status %.100q: must be one of %q", status, all))
		}
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
		faults = append(faults, fmt.Errorf("until %s: must be after since %s", q.Until.Format(time.RFC3339), q.Since.Format(time.RFC3339)))
	}
	if q.Position != "" && q.After != "" {
		faults = append(faults, errors.New("position, after: a page begins at one of them"))
	}
	if err := errors.Join(faults...); err != nil {
		return codes.As(codes.ErrInvalid, err)
	}
	if q.Limit == 0 {
		q.Limit = defaultCalls
	}
	return nil
}

// cursor is where a page begins: behind a call, or behind a passage of a query for words.
type cursor struct{ finished, id int64 }

// text is the cursor as readers get it.
func (c cursor) text(s seal) string {
	return strconv.FormatInt(c.finished, 36) + "-" + s.text(c.id)
}

// parseCursor reads a cursor. One of another file is before all calls of its time.
func (s seal) parseCursor(of string) (c cursor, err error) {
	finished, sealed, _ := strings.Cut(of, "-")
	c.finished, err = strconv.ParseInt(finished, 36, 64)
	if err == nil && isAlphanumeric(sealed) {
		var known bool
		if c.id, known = s.number(sealed); !known {
			c.id = always
		}
		return c, nil
	}
	return c, codes.As(codes.ErrInvalid, fmt.Errorf("after %.100q: must be the next of a page", of))
}

// notOK is the condition of an index: a call did not end well, or its command did not.
const notOK = "(c.status <> 'ok' OR c.exit <> '')"

// conditions are those of a query on the rows of call c, and their arguments. The first one decides
// which index is used, so those with the fewest rows come first; a plus sign keeps the others from
// using theirs.
func (q *Calls) conditions() (where []string, args []any) {
	indexed := false
	add := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	column := func(condition string, values ...any) {
		if indexed {
			condition = "+" + condition
		}
		indexed = true
		add(condition, values...)
	}
	add("c.finished IS NOT NULL")
	if q.Call != "" {
		column("c.call = ?", string(q.Call))
	}
	if q.Session != "" {
		column("c.session = (SELECT id FROM session WHERE name = ?)", string(q.Session))
	}
	if pool, lane, _ := strings.Cut(q.Lane, "/"); strings.Contains(lane, "/") {
		column("c.lane = ?", lane)
		add("c.pool = ?", pool)
	} else if q.Lane != "" {
		column("c.lane = ?", q.Lane)
	}
	if q.Worker != "" {
		column("c.worker = ?", string(q.Worker))
	}
	if q.Tenant != "" {
		column("c.tenant = ?", string(q.Tenant))
	}
	if q.Reach != "" {
		column("c.tenant = ?", string(q.Reach))
	}
	if q.Tool != "" {
		column("c.tool = ?", q.Tool)
	}
	if len(q.Status) > 0 {
		var either []string
		var values []any
		for _, status := range q.Status {
			switch status {
			case report.CallsNotOK:
				either = append(either, notOK)
			case report.CallsExit:
				either = append(either, "c.exit <> ''")
			default:
				either, values = append(either, "c.status = ?"), append(values, string(status))
			}
		}
		add("("+strings.Join(either, " OR ")+")", values...)
		if !indexed && !slices.Contains(q.Status, protocol.StatusOK) {
			add(notOK)
		}
	}
	if !q.Since.IsZero() {
		add("c.finished >= ?", q.Since.UnixMilli())
	}
	if !q.Until.IsZero() {
		add("c.finished < ?", q.Until.UnixMilli())
	}
	if q.upTo != 0 {
		add("+c.taken <= ?", q.upTo)
	}
	return where, args
}

// columns are those of a call, in the order in which [readCall] reads them. Calls of sessions that
// are being copied are not shown.
const columns = `c.id, c.finished, s.name, c.call, c.turn, c.step, c.idx, c.tool, c.attempt, c.pool, c.lane, c.resources, c.tenant, c.owner,
  c.accepted, coalesce(c.started, 0), c.status, c.exit, c.code, c.error, c.worker, c.level, c.checkpoint, coalesce(c.run_ms, 0), coalesce(c.queue_ms, 0),
  coalesce(c.not_before_ms, 0), coalesce(c.slot_ms, 0), coalesce(c.lane_ms, 0), coalesce(c.after_ms, 0), coalesce(c.limit_ms, 0), coalesce(c.rate_ms, 0), coalesce(c.pause_ms, 0), coalesce(c.lost_ms, 0),
  coalesce(c.model_ms, 0), coalesce(c.person_ms, 0), coalesce(c.sandbox_ms, 0), coalesce(c.store_ms, 0), c.held_by, c.held_by_session, c.after_call, c.after_session, c.limited, c.lost_worker, substr(coalesce(i.body, ''), 1, ?), substr(coalesce(o.body, ''), 1, ?)`

// isShown is the condition of the joins, for a page that counts the rows before it joins them.
const isShown = "EXISTS (SELECT 1 FROM session s WHERE s.id = c.session AND s.copies = '')"

// joins are the tables of columns.
func (q *Calls) joins() string {
	input, output := "i.id = c.input", "o.id = c.output"
	if q.Journaled {
		input, output = input+" AND i.role = 'call'", output+" AND o.role = 'result'"
	}
	return " JOIN session s ON s.id = c.session LEFT JOIN entry i ON " + input + " LEFT JOIN entry o ON " + output + " WHERE s.copies = ''"
}

// readCall reads a row of columns, with more behind them.
func readCall(row interface{ Scan(into ...any) error }, most int, more ...any) (at cursor, c report.LoggedCall, err error) {
	var pool, lane, resources, code, message string
	var accepted, started int64
	waits := &c.Waits
	err = row.Scan(append([]any{
		&at.id, &at.finished, &c.SessionID, &c.CallID, &c.Turn, &c.Step, &c.Index, &c.Tool, &c.Attempt, &pool, &lane, &resources, &c.Tenant, &c.Owner,
		&accepted, &started, &c.Status, &c.Exit, &code, &message, &c.WorkerID, &c.Level, &c.Checkpoint, &c.RunMS, &waits.QueueMS,
		&waits.NotBeforeMS, &waits.SlotMS, &waits.LaneMS, &waits.AfterMS, &waits.LimitMS, &waits.RateMS, &waits.PauseMS, &waits.LostMS,
		&waits.ModelMS, &waits.PersonMS, &c.SandboxMS, &c.StoreMS, &waits.HeldBy, &waits.HeldBySession, &waits.AfterCall,
		&waits.AfterSession, &waits.Limit, &waits.LostWorker, &c.Input, &c.Output,
	}, more...)...)
	if err != nil {
		return at, c, err
	}
	c.Input, c.Output = prose.Cut(c.Input, most), prose.Cut(c.Output, most)
	c.AcceptedAt, c.FinishedAt = time.UnixMilli(accepted).UTC(), time.UnixMilli(at.finished).UTC()
	if started != 0 {
		c.StartedAt = time.UnixMilli(started).UTC()
	}
	if lane != "" {
		c.Lane = pool + "/" + lane
	}
	if code != "" || message != "" {
		c.Error = &protocol.Error{Code: protocol.Code(code), Message: message}
	}
	if resources != "" {
		err = json.Unmarshal([]byte(resources), &c.Resources)
	}
	return at, c, err
}

// Calls returns a page of the log, the call that ended last first, or with a position the one that
// the log took in first. It updates the index first, but for not longer than two seconds: then the
// page is of what the file has. The error wraps [codes.ErrInvalid] if the query is not understood.
func (x *Index) Calls(ctx context.Context, q Calls) (page report.CallLog, err error) {
	if err := q.check(); err != nil {
		return page, err
	}
	var terms []term
	if q.Text != "" {
		if terms, err = parse(q.Text); err != nil {
			return page, codes.As(codes.ErrInvalid, err)
		}
	}
	var from *cursor
	if q.After != "" {
		at, err := x.open.Load().seal.parseCursor(q.After)
		if err != nil {
			return page, err
		}
		from = &at
	}
	var since *position
	if q.Position != "" {
		if since, err = x.open.Load().seal.parsePosition(q.Position); err != nil {
			return page, err
		}
	}
	behind, err := x.updateForAWhile(ctx)
	if err != nil {
		return page, err
	}
	err = x.query(ctx, func(o *opened) (err error) {
		page = report.CallLog{Calls: []report.LoggedCall{}, Behind: behind}
		if page.Since, err = sinceOf(ctx, o); err != nil {
			return err
		}
		now, err := positionNow(ctx, o)
		if err != nil {
			return err
		}
		if since != nil {
			return q.taken(ctx, o, *since, now, terms, &page)
		}
		page.Position, q.upTo = now.text(o.seal), now.taken
		switch {
		case now.taken == 0:
			return nil
		case terms != nil:
			return q.withWords(ctx, o, expression(terms), from, &page)
		}
		return q.page(ctx, o, from, &page)
	})
	if err != nil {
		return report.CallLog{}, fmt.Errorf("read the log of calls: %w", err)
	}
	return page, nil
}

// updateForAWhile updates the index, and reports whether that was not completed in time.
func (x *Index) updateForAWhile(ctx context.Context) (behind bool, err error) {
	short, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	if err := x.Update(short); err != nil {
		if short.Err() != nil && ctx.Err() == nil && !errors.Is(err, errLook) {
			return true, nil
		}
		return false, err
	}
	return false, nil
}

// query runs a function that reads the file, and once more if the file was found damaged and made
// again.
func (x *Index) query(ctx context.Context, read func(o *opened) error) error {
	err := read(x.open.Load())
	if !isDamaged(err) { // the update has not read what is damaged
		return err
	}
	err = x.change(ctx, func(o *opened) error { return errors.Join(x.reopen(ctx, o), x.update(ctx, x.open.Load())) })
	if err == nil {
		err = read(x.open.Load())
	}
	return err
}

// sinceOf is before which time texts and calls have left the file; nil if none has.
func sinceOf(ctx context.Context, o *opened) (*time.Time, error) {
	since, err := meta(ctx, o.read, keySince)
	if err != nil || since == "" {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339, since)
	return &at, err
}

// most is how many bytes of a text are returned.
func (q *Calls) most() int {
	if q.Whole {
		return maxText
	}
	return passageBytes
}

// page adds the calls behind a cursor, and names the next page. The rows are found in the indexes
// alone: other rows and their texts are not read.
func (q *Calls) page(ctx context.Context, o *opened, from *cursor, page *report.CallLog) error {
	where, args := q.conditions()
	where = append(where, isShown)
	if from != nil {
		where, args = append(where, "(c.finished, c.id) < (?, ?)"), append(args, from.finished, from.id)
	}
	index := ""
	if slices.Contains(where, notOK) { // else a rare status is looked for in all rows
		index = " INDEXED BY call_failed"
	}
	rows, err := o.read.QueryContext(ctx, "SELECT "+columns+" FROM (SELECT * FROM call c"+index+" WHERE "+strings.Join(where, " AND ")+" ORDER BY c.finished DESC, c.id DESC LIMIT ?) c"+ //nolint:gosec // constants: values are arguments
		q.joins()+" ORDER BY c.finished DESC, c.id DESC", slices.Concat([]any{q.most(), q.most()}, args, []any{q.Limit + 1})...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var last cursor
	for n := 0; rows.Next(); n++ {
		at, c, err := readCall(rows, q.most())
		if err != nil {
			return err
		}
		if n == q.Limit {
			page.Next = last.text(o.seal)
			break
		}
		last = at
		if err := q.add(ctx, page, &c); err != nil {
			return err
		}
	}
	return rows.Err()
}

// add adds a call that the principal may see.
func (q *Calls) add(ctx context.Context, page *report.CallLog, c *report.LoggedCall) error {
	if q.May != nil {
		err := q.May(ctx, judge.Owner{Tenant: c.Tenant, By: c.Owner})
		if errors.Is(err, judge.ErrRefused) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	page.Calls = append(page.Calls, *c)
	return nil
}

// withWords adds the calls with some words, by the passages that have them: a call that has two is
// found by the last one. It looks at some passages for one page, so a page may be short.
func (q *Calls) withWords(ctx context.Context, o *opened, words string, from *cursor, page *report.CallLog) (err error) {
	below := always
	if from != nil {
		below = from.id
	}
	passages, err := passagesOf(ctx, o, words, below)
	if err != nil {
		return err
	}
	where, args := q.conditions()
	if q.Journaled {
		where = append(where, "e.role IN ('call', 'result')")
	}
	find, err := o.read.PrepareContext(ctx, "SELECT "+columns+ //nolint:gosec // constants: values are arguments
		`, max(c.input, c.output) FROM (SELECT c.* FROM entry e JOIN call c ON c.session = e.session AND c.call = e.call AND e.id IN (c.input, c.output)
  WHERE e.id = ? AND `+strings.Join(where, " AND ")+") c"+q.joins())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, find.Close()) }()
	for i, passage := range passages {
		if len(page.Calls) == q.Limit {
			page.Next = cursor{id: passages[i-1]}.text(o.seal)
			return nil
		}
		var c report.LoggedCall
		var later int64 // the last text of the call
		_, c, err := readCall(find.QueryRowContext(ctx, slices.Concat([]any{q.most(), q.most(), passage}, args)...), q.most(), &later)
		has := false
		if err == nil && later > passage {
			err = o.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM word WHERE word MATCH ? AND rowid = ?)", words, later).Scan(&has)
		}
		if errors.Is(err, sql.ErrNoRows) || err == nil && has { // of no call that is wanted, or of one that was found
			continue
		}
		if err == nil {
			err = q.add(ctx, page, &c)
		}
		if err != nil {
			return err
		}
	}
	if len(passages) == scanned {
		page.Next = cursor{id: passages[scanned-1]}.text(o.seal)
	}
	return nil
}

// passagesOf returns the passages that have some words and are below an id, the last one first, as
// many as are looked at for one page.
func passagesOf(ctx context.Context, o *opened, words string, below int64) (ids []int64, err error) {
	rows, err := o.read.QueryContext(ctx, "SELECT rowid FROM word WHERE word MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?", words, below, scanned)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// ErrBehind means that the log is not up to date, and may have a call later.
var ErrBehind = errors.New("the log of calls does not have it yet: it is being brought up to date")

// Call returns a call of the log, the last one with its id if no session is named. The error wraps
// [codes.ErrNotFound] if there is none that the principal may see.
func (x *Index) Call(ctx context.Context, q Calls) (report.LoggedCall, error) {
	q.Whole, q.Limit = true, 1
	page, err := x.Calls(ctx, q)
	switch {
	case err != nil:
		return report.LoggedCall{}, err
	case len(page.Calls) > 0:
		return page.Calls[0], nil
	case page.Behind:
		return report.LoggedCall{}, codes.As(codes.ErrNotFound, fmt.Errorf("%w: call %s", ErrBehind, q.Call))
	}
	return report.LoggedCall{}, codes.As(codes.ErrNotFound, fmt.Errorf("the log has no call %s", q.Call))
}
