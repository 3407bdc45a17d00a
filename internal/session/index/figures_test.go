package index

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
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
					Tenant: protocol.Tenant(fmt.Sprintf("tenant-%d", rand.IntN(20))), Resources: []protocol.Use{{Key: protocol.ResourceKey(fmt.Sprintf("sandbox/lane-%d", rand.IntN(10_000)))}},
					Payload: protocol.CommandRun{Command: text(12)},
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
	took := time.Since(begun)
	info, err := os.Stat(r.index.path())
	require.NoError(t, err)
	t.Logf("%d calls: %.0f calls/s, %d bytes a call, %d bytes", count, float64(count)/took.Seconds(), info.Size()/int64(count), info.Size())
	for _, table := range []string{"call", "entry", "word_data"} {
		var bytes int64
		if err := o.read.QueryRowContext(ctx, "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE name = ? OR name LIKE ?", table, table+"_%").Scan(&bytes); err == nil {
			t.Logf("%s with its indexes: %d bytes a call", table, bytes/int64(count))
		}
	}
	hour := Calls{Since: now.Add(-time.Hour)}
	page, err := r.index.Calls(ctx, Calls{Limit: MaxCalls})
	require.NoError(t, err)
	require.Len(t, page.Calls, MaxCalls)
	for name, q := range map[string]Calls{
		"newest": {}, "newest 1000": {Limit: 1000}, "session": {Session: "0198a2c4-7b1e-7c52-9d0f-000000000007"}, "tool": {Tool: "grep"}, "failed": {Status: []protocol.Status{protocol.StatusFailed}},
		"rare status": {Status: []protocol.Status{protocol.StatusOutcomeUnknown}}, "ok": {Status: []protocol.Status{protocol.StatusOK}}, "lane": {Lane: "default/sandbox/lane-77"}, "tenant": {Tenant: "tenant-3"}, "worker": {Worker: "worker-9"},
		"hour": hour, "call": {Call: protocol.CallID(fmt.Sprintf("0198a2c4-7b1e-7c52-9d0e-%012d", count/2))}, "usual word": {Text: words[0]}, "rare word": {Text: words[9000]}, "no such tool": {Tool: "none"},
		"tool, failed": {Tool: "grep", Status: []protocol.Status{protocol.StatusFailed}}, "tenant, lane, failed": {Tenant: "tenant-3", Lane: "sandbox/lane-77", Status: []protocol.Status{protocol.StatusFailed}},
		"usual word, session": {Text: words[0], Session: "0198a2c4-7b1e-7c52-9d0f-000000000007"}, "tenant, rare status": {Tenant: "tenant-3", Status: []protocol.Status{protocol.StatusTimeout}},
		"deep page": {After: cursor{now.Add(-12 * time.Hour).UnixMilli(), 1}.String()},
	} {
		figure(ctx, t, name, func() error { _, err := r.index.Calls(ctx, q); return err })
	}
	figure(ctx, t, "rates of an hour", func() error { _, err := r.index.Rates(ctx, hour, time.Minute); return err })
	figure(ctx, t, "rates of a day", func() error {
		_, err := r.index.Rates(ctx, Calls{Since: now.Add(-24 * time.Hour)}, 10*time.Minute)
		return err
	})
	figure(ctx, t, "rates of a tenant's hour", func() error {
		_, err := r.index.Rates(ctx, Calls{Since: now.Add(-time.Hour), Reach: "tenant-3"}, time.Minute)
		return err
	})
}

func figure(_ context.Context, t *testing.T, name string, read func() error) {
	t.Helper()
	var times []float64
	for range 20 {
		begun := time.Now()
		require.NoError(t, read(), name)
		times = append(times, float64(time.Since(begun))/float64(time.Millisecond))
	}
	p50, p95 := percentiles(times)
	t.Logf("%-24s p50 %8.1f ms  p95 %8.1f ms", name, p50, p95)
}
