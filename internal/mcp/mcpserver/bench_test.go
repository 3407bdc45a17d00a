package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// offerEcho has clients call a tool that does nothing.
func offerEcho(tb testing.TB) func(*mcpserver.Options) {
	tb.Helper()
	return func(o *mcpserver.Options) {
		table, err := tools.NewTable(tools.Remote{Kind: "echo", Resources: []tools.Resource{}}.Tool(tools.Definition{
			Name: "echo", Description: "Answers with its arguments.", Schema: json.RawMessage(`{"type": "object"}`),
		}))
		require.NoError(tb, err)
		o.Tools = table
	}
}

// caller makes one call.
type caller func(ctx context.Context) error

// directly is the way of coordinator call: plan, dispatch, finish.
func directly(o *mcpserver.Options, session protocol.SessionID) caller {
	return func(ctx context.Context) error {
		single := loop.PlanSingle(ctx, o.Tools, session, "echo", `{"a": 1}`, &loop.SingleOptions{Dispatcher: o.Dispatcher, Logger: o.Logger})
		result, err := o.Dispatcher.CallWith(ctx, single.Call, calls.CallOptions{})
		if err == nil {
			single.Finish(ctx, result)
		}
		return err
	}
}

func through(c *mcp.ClientSession) caller {
	return func(ctx context.Context) error {
		result, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: json.RawMessage(`{"a": 1}`)})
		if err == nil && result.IsError {
			err = fmt.Errorf("%v", result.StructuredContent) //nolint:err113 // for the benchmark alone
		}
		return err
	}
}

// BenchmarkCall measures calls of a tool that does nothing, by the protocol beside the way of
// coordinator call in the same run: 64 clients, or one, each with a session of its own.
func BenchmarkCall(b *testing.B) {
	var o mcpserver.Options
	s, _ := open(b, offerEcho(b), func(given *mcpserver.Options) { o = *given })
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{}))
	b.Cleanup(web.Close)
	ways := map[string]func(i int) caller{
		"direct": func(i int) caller { return directly(&o, protocol.SessionID(fmt.Sprintf("direct-%d", i))) },
		"stdio": func(i int) caller {
			same := o
			same.Session = protocol.SessionID(fmt.Sprintf("stdio-%d", i))
			in, toServer := io.Pipe()
			fromServer, out := io.Pipe()
			b.Cleanup(func() { _, _ = toServer.Close(), fromServer.Close() })
			one := mcpserver.New(same)
			b.Cleanup(one.Close)
			run(b, one, mcpserver.Stdio(in, out))
			return through(client(b, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, nil))
		},
		"http": func(i int) caller {
			return through(client(b, &mcp.StreamableClientTransport{Endpoint: fmt.Sprintf("%s/mcp/%d", web.URL, i)}, nil))
		},
	}
	for _, clients := range []int{1, 64} {
		for _, way := range []string{"direct", "stdio", "http"} {
			b.Run(fmt.Sprintf("%d/%s", clients, way), func(b *testing.B) { measure(b, clients, ways[way]) })
		}
	}
}

// measure has clients make calls, and reports how long they took.
func measure(b *testing.B, clients int, open func(i int) caller) {
	b.Helper()
	callers := make([]caller, clients)
	for i := range callers {
		callers[i] = open(i)
		require.NoError(b, callers[i](b.Context()))
	}
	took, left, mu := make([]time.Duration, 0, b.N), b.N, sync.Mutex{}
	next := func(last time.Duration) bool {
		mu.Lock()
		defer mu.Unlock()
		if last > 0 {
			took = append(took, last)
		}
		left--
		return left >= 0
	}
	var all sync.WaitGroup
	b.ResetTimer()
	for _, call := range callers {
		all.Go(func() {
			for last := time.Duration(0); next(last); {
				begun := time.Now()
				if err := call(b.Context()); err != nil {
					b.Error(err)
					return
				}
				last = time.Since(begun)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	slices.Sort(took)
	if n := len(took); n > 0 {
		b.ReportMetric(float64(took[n/2].Microseconds()), "p50-us")
		b.ReportMetric(float64(took[n*99/100].Microseconds()), "p99-us")
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "calls/s")
	}
}
