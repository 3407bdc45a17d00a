package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Triggers count each call in the minute of its end, in the transaction that changes its row, so an
// hour costs the same whatever the log has: once for its tenant, and once for all. Sums are in
// microseconds, which are exact. How long calls ran and waited is counted in classes, each a fifth
// wider than the one before: half of the calls and 95 of 100 are known to a tenth.

// all stands for the calls of all tenants. It is no name of one.
const all = "*"

// class is the class of a column: 0 is less than a microsecond.
func class(column string) string {
	return fmt.Sprintf("iif(coalesce(%[1]s, 0) < 0.001, 0, 1 + cast(ln(%[1]s * 1000) / ln(1.2) AS INTEGER))", column)
}

// middle is the time in the middle of a class, in milliseconds.
func middle(class int) float64 {
	if class == 0 {
		return 0
	}
	return math.Pow(1.2, float64(class)-0.5) / 1000
}

// ratesSchema has the sums of each minute and tenant, and the classes of its times.
const ratesSchema = `
CREATE TABLE rate(
  tenant TEXT NOT NULL, minute INTEGER NOT NULL, calls INTEGER NOT NULL, failed INTEGER NOT NULL,
  queue INTEGER NOT NULL, not_before INTEGER NOT NULL, slot INTEGER NOT NULL, lane INTEGER NOT NULL, after INTEGER NOT NULL, limited INTEGER NOT NULL,
  rate INTEGER NOT NULL, pause INTEGER NOT NULL, lost INTEGER NOT NULL, model INTEGER NOT NULL, person INTEGER NOT NULL, PRIMARY KEY(tenant, minute)) WITHOUT ROWID;
CREATE TABLE rate_time(
  tenant TEXT NOT NULL, minute INTEGER NOT NULL, waited INTEGER NOT NULL, class INTEGER NOT NULL, calls INTEGER NOT NULL,
  PRIMARY KEY(tenant, minute, waited, class)) WITHOUT ROWID;
CREATE TABLE taken(last INTEGER NOT NULL);
INSERT INTO taken VALUES(0);
`

// counted are the columns of a call that have a sum in a rate, and the column of that sum.
var counted = [][2]string{ //nolint:gochecknoglobals // a constant table
	{"queue_ms", "queue"},
	{"not_before_ms", "not_before"},
	{"slot_ms", "slot"},
	{"lane_ms", "lane"},
	{"after_ms", "after"},
	{"limit_ms", "limited"},
	{"rate_ms", "rate"},
	{"pause_ms", "pause"},
	{"lost_ms", "lost"},
	{"model_ms", "model"},
	{"person_ms", "person"},
}

// triggerNames are those of triggers.
var triggerNames = []string{"call_added", "call_changed", "call_counted", "call_uncounted", "call_removed"} //nolint:gochecknoglobals // a constant table

// triggers count calls, and give each that has ended its number in the order in which the log took
// them in.
func triggers() string {
	add := func(row string, sign int) string {
		var columns, values, sums []string
		for _, c := range counted {
			columns, values = append(columns, c[1]), append(values, fmt.Sprintf("%d * cast(round(coalesce(%s.%s, 0) * 1000) AS INTEGER)", sign, row, c[0]))
			sums = append(sums, fmt.Sprintf("%[1]s = %[1]s + excluded.%[1]s", c[1]))
		}
		var text strings.Builder
		for _, tenant := range []string{row + ".tenant", "'" + all + "'"} {
			fmt.Fprintf(&text, `
INSERT INTO rate(tenant, minute, calls, failed, %[1]s) VALUES(%[6]s, %[2]s.finished / 60000, %[3]d, %[3]d * (%[2]s.status <> 'ok' OR %[2]s.exit <> ''), %[4]s)
  ON CONFLICT DO UPDATE SET calls = calls + excluded.calls, failed = failed + excluded.failed, %[5]s;`,
				strings.Join(columns, ", "), row, sign, strings.Join(values, ", "), strings.Join(sums, ", "), tenant)
			for waited, column := range []string{"run_ms", "queue_ms"} {
				fmt.Fprintf(&text, `
INSERT INTO rate_time VALUES(%[5]s, %[1]s.finished / 60000, %[2]d, %[3]s, %[4]d) ON CONFLICT DO UPDATE SET calls = calls + excluded.calls;`,
					row, waited, class(row+"."+column), sign, tenant)
			}
		}
		return text.String()
	}
	gone := fmt.Sprintf("tenant IN (OLD.tenant, '%s') AND minute = OLD.finished / 60000 AND calls = 0;", all)
	remove := add("OLD", -1) + "\nDELETE FROM rate_time WHERE " + gone + "\nDELETE FROM rate WHERE " + gone
	take := `UPDATE taken SET last = last + 1; UPDATE call SET taken = (SELECT last FROM taken) WHERE id = NEW.id;`
	names, differs := []string{"finished", "status", "exit", "tenant", "run_ms"}, []string{}
	for _, c := range counted {
		names = append(names, c[0])
	}
	for _, name := range names {
		differs = append(differs, fmt.Sprintf("OLD.%[1]s IS NOT NEW.%[1]s", name))
	}
	of, changed := strings.Join(names, ", "), "("+strings.Join(differs, " OR ")+")"
	return fmt.Sprintf(`
CREATE TRIGGER call_added AFTER INSERT ON call WHEN NEW.finished IS NOT NULL BEGIN %[1]s %[2]s END;
CREATE TRIGGER call_changed AFTER UPDATE OF finished ON call WHEN NEW.finished IS NOT NULL AND NEW.taken IS NULL BEGIN %[1]s END;
CREATE TRIGGER call_uncounted AFTER UPDATE OF %[3]s ON call WHEN OLD.finished IS NOT NULL AND %[4]s BEGIN %[5]s END;
CREATE TRIGGER call_counted AFTER UPDATE OF %[3]s ON call WHEN NEW.finished IS NOT NULL AND %[4]s BEGIN %[2]s END;
CREATE TRIGGER call_removed AFTER DELETE ON call WHEN OLD.finished IS NOT NULL BEGIN %[5]s END;
`, take, add("NEW", 1), of, changed, remove)
}

// MaxBuckets is how many steps rates have at most.
const MaxBuckets = 1000

// Rates returns how many calls ended in each step of a time, and how long they took. The query has
// no words and no page. Steps of whole minutes, of all calls or those of a tenant, are read from
// their sums; others from the calls themselves.
func (x *Index) Rates(ctx context.Context, q Calls, step time.Duration) (rates report.CallRates, err error) {
	if step == 0 {
		step = time.Minute
	}
	if q.Until.IsZero() { // the end of this minute
		q.Until = time.Now().Truncate(time.Minute).Add(time.Minute)
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Add(-time.Hour)
	}
	steps := (q.Until.UnixMilli() - q.Since.UnixMilli() + step.Milliseconds() - 1) / max(step.Milliseconds(), 1)
	switch {
	case step < time.Second || step%time.Millisecond != 0:
		return rates, codes.As(codes.ErrInvalid, fmt.Errorf("step %s: must be at least 1s, in whole milliseconds", step))
	case steps > MaxBuckets:
		return rates, codes.As(codes.ErrInvalid, fmt.Errorf("step %s: %d steps, must be at most %d", step, steps, MaxBuckets))
	case q.Text != "" || q.After != "" || q.Position != "":
		return rates, codes.As(codes.ErrInvalid, errors.New("text, after, position: rates have none of them"))
	}
	if err := q.check(); err != nil {
		return rates, err
	}
	behind, err := x.updateForAWhile(ctx)
	if err != nil {
		return rates, err
	}
	err = x.query(ctx, func(o *opened) (err error) {
		rates = report.CallRates{StepMS: step.Milliseconds(), Buckets: make([]report.CallRate, steps), Behind: behind}
		if rates.Since, err = sinceOf(ctx, o); err != nil {
			return err
		}
		return q.rates(ctx, o, &rates)
	})
	if err != nil {
		return report.CallRates{}, fmt.Errorf("read the log of calls: %w", err)
	}
	return rates, nil
}

// timeColumns are those of the times of a call.
const timeColumns = `c.finished, NOT ` + notOK +
	`, coalesce(c.run_ms, 0), coalesce(c.queue_ms, 0), coalesce(c.not_before_ms, 0), coalesce(c.slot_ms, 0), coalesce(c.lane_ms, 0),
  coalesce(c.after_ms, 0), coalesce(c.limit_ms, 0), coalesce(c.rate_ms, 0), coalesce(c.pause_ms, 0), coalesce(c.lost_ms, 0), coalesce(c.model_ms, 0), coalesce(c.person_ms, 0)`

// rates fills the buckets. Calls come in the order of their ends, so times of one bucket are in
// memory at once.
func (q *Calls) rates(ctx context.Context, o *opened, rates *report.CallRates) error {
	for i := range rates.Buckets {
		rates.Buckets[i].At = time.UnixMilli(q.Since.UnixMilli() + int64(i)*rates.StepMS).UTC()
	}
	if q.May != nil { // the owners of a tenant see the same
		if err := q.May(ctx, judge.Owner{Tenant: q.Reach}); err != nil {
			return err
		}
	}
	if q.isCounted(rates.StepMS) {
		return q.sums(ctx, o, rates)
	}
	where, args := q.conditions()
	rows, err := o.read.QueryContext(ctx, "SELECT "+timeColumns+" FROM call c WHERE "+strings.Join(where, " AND ")+" ORDER BY c.finished", args...) //nolint:gosec // constants: values are arguments
	if err != nil {
		return err
	}
	defer rows.Close()
	var ran, waited times
	var bucket *report.CallRate
	end := func() {
		if bucket != nil {
			bucket.RunP50MS, bucket.RunP95MS = ran.percentiles()
			bucket.WaitP50MS, bucket.WaitP95MS = waited.percentiles()
		}
	}
	for rows.Next() {
		var finished int64
		var ok bool
		var run float64
		var w report.CallWaits
		if err := rows.Scan(&finished, &ok, &run, &w.QueueMS, &w.NotBeforeMS, &w.SlotMS, &w.LaneMS, &w.AfterMS,
			&w.LimitMS, &w.RateMS, &w.PauseMS, &w.LostMS, &w.ModelMS, &w.PersonMS); err != nil {
			return err
		}
		if of := &rates.Buckets[(finished-q.Since.UnixMilli())/rates.StepMS]; of != bucket {
			end()
			bucket = of
		}
		if bucket.Calls++; !ok {
			bucket.Failed++
		}
		ran.add(run)
		waited.add(w.QueueMS)
		addWaits(&bucket.Waits, &w)
	}
	end()
	return rows.Err()
}

// isCounted reports whether rates have what the query asks for.
func (q *Calls) isCounted(stepMS int64) bool {
	filtered := *q
	filtered.Since, filtered.Until, filtered.Tenant, filtered.Reach, filtered.Limit = time.Time{}, time.Time{}, "", "", 0
	where, _ := filtered.conditions()
	const minute = int64(time.Minute / time.Millisecond)
	return len(where) == 1 && stepMS%minute == 0 && q.Since.UnixMilli()%minute == 0 && q.Until.UnixMilli()%minute == 0
}

// sums fills the buckets with what triggers have counted.
func (q *Calls) sums(ctx context.Context, o *opened, rates *report.CallRates) error {
	if q.Tenant != "" && q.Reach != "" && q.Tenant != q.Reach {
		return nil
	}
	const where = "tenant = ? AND minute >= ? AND minute < ?"
	args := []any{string(cmp.Or(q.Reach, q.Tenant, all)), q.Since.Unix() / 60, q.Until.Unix() / 60}
	bucket := func(minute int64) *report.CallRate {
		return &rates.Buckets[(minute*60_000-q.Since.UnixMilli())/rates.StepMS]
	}
	each := func(query string, use func(scan func(into ...any) error) error) error {
		rows, err := o.read.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := use(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	query := "SELECT minute, calls, failed, queue, not_before, slot, lane, after, limited, rate, pause, lost, model, person FROM rate WHERE " + where
	err := each(query, func(scan func(into ...any) error) error {
		var minute int64
		var calls, failed int
		var us [11]int64
		err := scan(&minute, &calls, &failed, &us[0], &us[1], &us[2], &us[3], &us[4], &us[5], &us[6], &us[7], &us[8], &us[9], &us[10])
		ms := func(i int) float64 { return float64(us[i]) / 1000 }
		b := bucket(minute)
		b.Calls, b.Failed = b.Calls+calls, b.Failed+failed
		addWaits(&b.Waits, &report.CallWaits{QueueMS: ms(0), Waits: protocol.Waits{
			NotBeforeMS: ms(1), SlotMS: ms(2), LaneMS: ms(3), AfterMS: ms(4), LimitMS: ms(5), RateMS: ms(6), PauseMS: ms(7), LostMS: ms(8),
		}, ModelMS: ms(9), PersonMS: ms(10)})
		return err
	})
	if err != nil {
		return err
	}
	// The classes of one bucket and kind come together, the shortest times first.
	type kind struct {
		bucket *report.CallRate
		waited bool
	}
	var now kind
	seen := 0
	order := fmt.Sprintf(" GROUP BY (minute * 60000 - %d) / %d, waited, class ORDER BY 1, 2, 3", q.Since.UnixMilli(), rates.StepMS)
	query = fmt.Sprintf("SELECT (minute * 60000 - %d) / %d, waited, class, sum(calls) FROM rate_time WHERE ", q.Since.UnixMilli(), rates.StepMS) + where + order
	return each(query, func(scan func(into ...any) error) error {
		var step int64
		var class, calls int
		var of kind
		if err := scan(&step, &of.waited, &class, &calls); err != nil {
			return err
		}
		if of.bucket = &rates.Buckets[step]; of != now {
			now, seen = of, 0
		}
		p50, p95 := &of.bucket.RunP50MS, &of.bucket.RunP95MS
		if of.waited {
			p50, p95 = &of.bucket.WaitP50MS, &of.bucket.WaitP95MS
		}
		for to, part := range map[*float64]int{p50: 50, p95: 95} {
			if at := (of.bucket.Calls*part + 99) / 100; seen < at && at <= seen+calls {
				*to = middle(class)
			}
		}
		seen += calls
		return nil
	})
}

func addWaits(to, w *report.CallWaits) {
	to.QueueMS, to.NotBeforeMS, to.SlotMS, to.LaneMS = to.QueueMS+w.QueueMS, to.NotBeforeMS+w.NotBeforeMS, to.SlotMS+w.SlotMS, to.LaneMS+w.LaneMS
	to.AfterMS, to.LimitMS, to.RateMS, to.PauseMS = to.AfterMS+w.AfterMS, to.LimitMS+w.LimitMS, to.RateMS+w.RateMS, to.PauseMS+w.PauseMS
	to.LostMS, to.ModelMS, to.PersonMS = to.LostMS+w.LostMS, to.ModelMS+w.ModelMS, to.PersonMS+w.PersonMS
}

// maxTimes is how many times of a bucket are kept at most.
const maxTimes = 1 << 16

// times are those of a bucket: all, or of very many each second, fourth or eighth one.
type times struct {
	kept       []float64
	all, every int // every is 0 before the first one
}

func (t *times) add(ms float64) {
	if t.every = max(t.every, 1); t.all%t.every == 0 {
		if len(t.kept) == maxTimes {
			for i := range maxTimes / 2 {
				t.kept[i] = t.kept[2*i]
			}
			t.kept, t.every = t.kept[:maxTimes/2], 2*t.every
		}
		t.kept = append(t.kept, ms)
	}
	t.all++
}

// percentiles returns those of the times, and forgets them.
func (t *times) percentiles() (p50, p95 float64) {
	p50, p95 = percentiles(t.kept)
	*t = times{kept: t.kept[:0]}
	return p50, p95
}

// percentiles sorts times, and returns what half of them, and 95 of 100, are at most.
func percentiles(times []float64) (p50, p95 float64) {
	slices.Sort(times)
	at := func(n int) float64 { return times[(len(times)*n+99)/100-1] }
	return at(50), at(95)
}
