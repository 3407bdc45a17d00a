package index

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A log of TOOLFLEET_CALLS calls, of 46 words each: what they cost, and how long a page takes
// ("make calls-figures CALLS=n"). The stream is left out: messages are applied as they are read
// from it.
func TestFigures_OfAMillionCalls(t *testing.T) { //nolint:paralleltest // it measures
	count, err := strconv.Atoi(os.Getenv("TOOLFLEET_CALLS"))
	if err != nil {
		t.Skip("TOOLFLEET_CALLS is not set: this takes minutes")
	}
	r := newRig(t, Options{MaxBytes: 1 << 40})
	o, ctx := r.index.open.Load(), t.Context()
	require.NoError(t, r.index.Update(ctx)) // from here on the file is that of the stream
	now := time.Now()
	words := make([]string, 20_000)
	for i := range words {
		words[i] = strconv.FormatUint(rand.Uint64()%(1<<40), 36)
	}
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(words[int(rand.ExpFloat64()*1000)%len(words)])
			b.WriteByte(' ')
		}
		return b.String()
	}
	begun := time.Now()
	for from := 0; from < count; from += batchMessages {
		require.NoError(t, within(ctx, o.write, func(tx *sql.Tx) error {
			w := newWriter(ctx, tx)
			for i := from; i < min(from+batchMessages, count); i++ {
				c := &protocol.Call{
					ID: protocol.CallID(fmt.Sprintf("0198a2c4-7b1e-7c52-9d0e-%012d", i)), SessionID: protocol.SessionID(fmt.Sprintf("0198a2c4-7b1e-7c52-9d0f-%012d", rand.IntN(1000))),
					Pool: "default", Tool: []string{"bash", "read", "edit_file", "grep", "web_fetch", "agent", "write", "list"}[rand.IntN(8)],
					Tenant:    protocol.Tenant(fmt.Sprintf("tenant-%d", rand.IntN(20))),
					Resources: []protocol.Use{{Key: protocol.ResourceKey(fmt.Sprintf("sandbox/lane-%d", rand.IntN(10_000)))}},
					Payload:   protocol.CommandRun{Command: text(12)},
				}
				if rand.IntN(8) == 0 {
					c.Tenant = ""
				}
				result := printed(text(34))
				result.CallID, result.SessionID = c.ID, c.SessionID
				result.WorkerID = protocol.WorkerID(fmt.Sprintf("worker-%d", rand.IntN(50)))
				result.FinishedAt = now.Add(time.Duration(i-count) * time.Hour / time.Duration(count) * 24) // of one day
				if rand.IntN(20) == 0 {
					result.Status, result.Error = protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "exit status 1")
				}
				body, err := wire.EncodeResult(&result)
				if err != nil {
					return err
				}
				w.message(&message{session: c.SessionID, seq: uint64(i + 1), stored: now.UnixMilli(), body: body, result: true, about: new(wire.AboutOf(c, now)), proven: true})
			}
			return w.close()
		}))
	}
	t.Logf("%d calls: %.0f calls/s", count, float64(count)/time.Since(begun).Seconds())
	r.measure(t, count, now, "0198a2c4-7b1e-7c52-9d0f-000000000007", protocol.CallID(fmt.Sprintf("0198a2c4-7b1e-7c52-9d0e-%012d", count/2)), words[0], words[9000])
}

// A log of TOOLFLEET_ROWS calls, whose rows are written by SQL: what they cost, and how long a page
// takes ("make calls-figures ROWS=n"). TOOLFLEET_SQLITE is a program that runs the SQL, which is
// some times as fast as the one in this process.
func TestFigures_OfRows(t *testing.T) { //nolint:paralleltest // it measures
	count, err := strconv.Atoi(os.Getenv("TOOLFLEET_ROWS"))
	if err != nil {
		t.Skip("TOOLFLEET_ROWS is not set: this takes many minutes, and 0.7 kB of disk for each")
	}
	r := newRig(t, Options{MaxBytes: 1 << 40})
	require.NoError(t, r.index.Update(t.Context())) // from here on the file is that of the stream
	now, begun := time.Now(), time.Now()
	if program := os.Getenv("TOOLFLEET_SQLITE"); program != "" {
		command := exec.CommandContext(t.Context(), program, r.index.path())
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(rowsSQL(t, r, count, now)), os.Stderr, os.Stderr
		require.NoError(t, command.Run())
	} else {
		_, err := r.index.open.Load().write.ExecContext(t.Context(), rowsSQL(t, r, count, now))
		require.NoError(t, err)
	}
	t.Logf("%d calls written in %s", count, time.Since(begun))
	r.measure(t, count, now, "s-0007", protocol.CallID(fmt.Sprintf("c-%09d", count/2)), "built", "target77777")
}

// rowsSQL writes calls of one week: of 1,000 sessions, 10,000 lanes, 20 tenants and 50 workers,
// with 8 tools, one in 20 failed. Indexes and triggers are made again behind them.
func rowsSQL(t *testing.T, r *rig, count int, now time.Time) string {
	t.Helper()
	rows, err := r.index.open.Load().read.QueryContext(t.Context(), "SELECT type, name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL")
	require.NoError(t, err)
	defer rows.Close()
	var drop, create strings.Builder
	for rows.Next() {
		var kind, name, sql string
		require.NoError(t, rows.Scan(&kind, &name, &sql))
		fmt.Fprintf(&drop, "DROP %s %s;\n", kind, name)
		fmt.Fprintf(&create, "%s;\n", sql)
	}
	require.NoError(t, rows.Err())
	const week = 7 * 24 * 60 * 60 * 1000
	var columns, sums []string
	for _, c := range counted {
		columns, sums = append(columns, c[1]), append(sums, "sum(cast(round(coalesce("+c[0]+", 0) * 1000) AS INTEGER))")
	}
	var rates strings.Builder
	for _, tenant := range []string{"tenant", "'" + all + "'"} {
		fmt.Fprintf(&rates,
			"INSERT INTO rate(tenant, minute, calls, failed, %s) SELECT %s, finished / 60000, count(*), sum(status <> 'ok'), %s FROM call GROUP BY 1, 2;\n",
			strings.Join(columns, ", "), tenant, strings.Join(sums, ", "))
		for waited, column := range []string{"run_ms", "queue_ms"} {
			fmt.Fprintf(&rates, "INSERT INTO rate_time SELECT %s, finished / 60000, %d, %s, count(*) FROM call GROUP BY 1, 2, 4;\n", tenant, waited, class(column))
		}
	}
	texts := `INSERT INTO entry(id, session, at, turn, step, role, tool, call, body) SELECT input, session, finished, 1, 1, 'call', tool, call, printf('{"command": "make target%d && ./run %d"}', id, id % 977) FROM call;
INSERT INTO entry(id, session, at, turn, step, role, tool, call, body) SELECT output, session, finished, 1, 1, 'result', tool, call, printf('built target%d of %d in %d ms', id, id % 977, id % 4000) FROM call;
INSERT INTO word(rowid, text) SELECT id, body FROM entry;
`
	if os.Getenv("TOOLFLEET_TEXTS") == "none" { // for rates alone
		texts = ""
	}
	return fmt.Sprintf(`PRAGMA synchronous = off; PRAGMA cache_size = -300000; PRAGMA wal_autocheckpoint = 20000; PRAGMA secure_delete = 0;
%[1]s
INSERT INTO session(name, tenant) SELECT printf('s-%%04d', value), printf('tenant-%%d', value %% 20) FROM (WITH RECURSIVE n(value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM n WHERE value < 999) SELECT value FROM n);
INSERT INTO call(id, session, call, turn, step, tool, pool, lane, tenant, accepted, started, finished, stored, status, code, error, worker, attempt, level, run_ms, queue_ms, slot_ms, lane_ms, input, output, taken)
  WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %[2]d - 1), m AS (SELECT i, (i * 2654435761) %% 4294967296 AS r, %[3]d - %[4]d + cast(i * (%[4]d.0 / %[2]d) AS INTEGER) AS at FROM n)
  SELECT i + 1, 1 + r %% 1000, printf('c-%%09d', i), 1, 1, 'tool-' || (r / 7 %% 8), 'default', printf('account/%%d', r / 11 %% 10000), printf('tenant-%%d', r %% 1000 %% 20),
    at - r %% 4000 - r %% 300, at - r %% 4000, at, 1, iif(r / 13 %% 20 = 0, 'failed', 'ok'), iif(r / 13 %% 20 = 0, 'run_timeout', ''), iif(r / 13 %% 20 = 0, 'the command did not end in time', ''),
    printf('worker-%%d', r / 17 %% 50), 1, 'full', 5 + r %% 4000, r %% 300, r %% 300 / 2, r %% 300 - r %% 300 / 2, 2 * i + 1, 2 * i + 2, i + 1 FROM m;
UPDATE taken SET last = %[2]d;
%[7]s%[6]s%[5]s
PRAGMA wal_checkpoint(TRUNCATE);
`, drop.String(), count, now.UnixMilli(), int64(week), create.String(), rates.String(), texts)
}

// measure says how large a log is, and how long its pages take.
func (r *rig) measure(t *testing.T, count int, now time.Time, session protocol.SessionID, call protocol.CallID, usual, rare string) {
	t.Helper()
	o, ctx := r.index.open.Load(), t.Context()
	info, err := os.Stat(r.index.path())
	require.NoError(t, err)
	t.Logf("%d bytes a call, %d bytes", info.Size()/int64(count), info.Size())
	for _, table := range []string{"call", "entry", "word_data", "rate"} {
		var bytes int64
		if err := o.read.QueryRowContext(ctx, "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE (name = ? OR name LIKE ?)", table, table+"_%").Scan(&bytes); err == nil {
			t.Logf("%s with its indexes: %d bytes a call", table, bytes/int64(count))
		}
	}
	hour := report.CallQuery{Since: now.Add(-time.Hour)}
	minute := now.Truncate(time.Minute)
	page, err := r.index.Calls(ctx, Calls{CallQuery: report.CallQuery{Limit: MaxCalls}})
	require.NoError(t, err)
	require.Len(t, page.Calls, MaxCalls)
	tool := page.Calls[0].Tool
	for name, q := range map[string]report.CallQuery{
		"newest": {}, "newest 1000": {Limit: 1000}, "session": {Session: session}, "tool": {Tool: tool}, "failed": {Status: []protocol.Status{protocol.StatusFailed}},
		"rare status": {Status: []protocol.Status{protocol.StatusOutcomeUnknown}}, "ok": {Status: []protocol.Status{protocol.StatusOK}},
		"lane": {Lane: "default/sandbox/lane-77"}, "tenant": {Tenant: "tenant-3"}, "worker": {Worker: "worker-9"},
		"hour": hour, "call": {Call: call}, "usual word": {Text: usual}, "rare word": {Text: rare}, "no such tool": {Tool: "none"},
		"tool, failed":         {Tool: tool, Status: []protocol.Status{protocol.StatusFailed}},
		"tenant, lane, failed": {Tenant: "tenant-3", Lane: "sandbox/lane-77", Status: []protocol.Status{protocol.StatusFailed}},
		"usual word, session":  {Text: usual, Session: session}, "tenant, rare status": {Tenant: "tenant-3", Status: []protocol.Status{protocol.StatusTimeout}},
		"deep page": {After: cursor{now.Add(-12 * time.Hour).UnixMilli(), 1}.text(r.index.open.Load().seal)},
	} {
		figure(ctx, t, name, func() error { _, err := r.index.Calls(ctx, Calls{CallQuery: q}); return err })
	}
	figure(ctx, t, "what is new", func() error {
		_, err := r.index.Calls(ctx, Calls{CallQuery: report.CallQuery{Position: page.Position}})
		return err
	})
	for name, length := range map[string]time.Duration{"hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour} {
		for of, reach := range map[string]protocol.Tenant{"": "", ", a tenant": "tenant-3"} {
			q := Calls{CallQuery: report.CallQuery{Since: minute.Add(-length), Until: minute}, Reach: reach}
			figure(ctx, t, "rates of a "+name+of, func() error {
				_, err := r.index.Rates(ctx, q, max(time.Minute, (length/60).Truncate(time.Minute)))
				return err
			})
		}
	}
	figure(ctx, t, "rates of an hour by seconds", func() error {
		_, err := r.index.Rates(ctx, Calls{CallQuery: report.CallQuery{Since: minute.Add(-time.Hour), Until: minute}}, 10*time.Second)
		return err
	})
}

func figure(_ context.Context, t *testing.T, name string, read func() error) {
	t.Helper()
	var times []float64
	for range 11 {
		begun := time.Now()
		require.NoError(t, read(), name)
		times = append(times, float64(time.Since(begun))/float64(time.Millisecond))
	}
	p50, p95 := percentiles(times)
	t.Logf("%-24s p50 %8.1f ms  p95 %8.1f ms", name, p50, p95)
}
