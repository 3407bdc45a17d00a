package kinds

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/webfetch"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The kinds of this file run outside of any sandbox.

// httpFetch requests a page of the web, outside of any sandbox.
func httpFetch(ctx context.Context, a *Attempt, p protocol.HTTPFetch) (protocol.Value, error) {
	return valued(webfetch.Get(ctx, a.host.Pages, p))
}

// pageSize is the length of the text of a page.
func pageSize(v protocol.HTTPFetchResult) int {
	if v.Image != "" {
		return 0
	}
	return len(v.Content)
}

// resultRead returns lines of the result of an earlier call of the session.
func resultRead(ctx context.Context, a *Attempt, p wire.ResultRead) (protocol.Value, error) {
	return a.host.Results.Read(ctx, a.Run.Call.SessionID, p, a.host.Result)
}

// noop waits for as long as the payload says.
func noop(ctx context.Context, _ *Attempt, p wire.Noop) (protocol.Value, error) {
	if !pause.For(ctx, p.WorkMS.Duration()) {
		return nil, ctx.Err()
	}
	return wire.NoopResult{}, nil
}

// refuseTurn refuses a turn that was sent to a pool of workers.
func refuseTurn(*Host, wire.TurnRun) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownPayload, "turns are run by coordinators (pool %q), not by workers", protocol.SessionPool)
}
