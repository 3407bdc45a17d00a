package fleet

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// CallQuery says which calls of the log [Client.Calls] returns. Fields that are zero leave out
// nothing.
type CallQuery struct {
	Session protocol.SessionID
	Call    protocol.CallID
	Tool    string
	// Status has those that are wanted: statuses, [report.CallsExit] and [report.CallsNotOK].
	Status []protocol.Status
	// Lane is POOL/LANE, or a lane in any pool.
	Lane   string
	Tenant protocol.Tenant
	Worker protocol.WorkerID
	// Since and Until bound when the calls ended: not before Since, and before Until.
	Since, Until time.Time
	// Text are words as in [Search], of the input or of the output.
	Text string
	// After is the Next of the page before.
	After string
	// Position is that of an earlier page. The page has calls that the log took in since then, the
	// first one first, and no Next: its own Position is where the next page begins. It is without
	// After.
	Position string
	// Limit bounds the number of calls of a page, up to 1,000; 0 means 50.
	Limit int
	// Whole returns inputs and outputs as long as the log has them: 16 KiB, and not 400 bytes.
	Whole bool
	// Journaled leaves out inputs and outputs that no session's journal has, for readers who get
	// results as hooks have changed them: journals have them so.
	Journaled bool
}

// query is the query of the index, as the principal of ctx may see it.
func (q *CallQuery) query(ctx context.Context) index.Calls {
	made := index.Calls{
		Session: q.Session, Call: q.Call, Tool: q.Tool, Status: q.Status, Lane: q.Lane, Tenant: q.Tenant, Worker: q.Worker,
		Since: q.Since, Until: q.Until, Text: q.Text, After: q.After, Position: q.Position, Limit: q.Limit, Whole: q.Whole, Journaled: q.Journaled,
	}
	if judge.Bounded(ctx) {
		made.Reach = judge.Of(ctx).Reach()
		made.May = func(ctx context.Context, owner judge.Owner) error {
			return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Call, Owner: owner})
		}
	}
	return made
}

// Calls returns a page of the log of calls that ended, the last one first. It brings the log up to
// date first, in [Options].Index, and waits at most some seconds for that. The error wraps
// [ErrInvalid] if the query is not understood.
func (c *Client) Calls(ctx context.Context, q CallQuery) (report.CallLog, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.CallLog, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.CallLog{}, err
		}
		return x.Calls(ctx, q.query(ctx))
	})
}

// LoggedCall returns a call of the log with its whole texts. Without a session it is the last call
// with the id. The error wraps [ErrNotFound] if there is none.
func (c *Client) LoggedCall(ctx context.Context, ref protocol.CallRef) (report.LoggedCall, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.LoggedCall, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.LoggedCall{}, err
		}
		q := CallQuery{Session: ref.SessionID, Call: ref.ID}
		return x.Call(ctx, q.query(ctx))
	})
}

// CallRates returns how many calls of the log ended in each step of a time, and how long they
// took. Of the query it uses the filters, Since and Until, which without a value are the hour until
// the end of this minute. A step is at least 1 s; 0 means a minute. There may be 1,000 steps. Whole
// minutes of all calls, or of a tenant, take the same time however many calls the log has.
func (c *Client) CallRates(ctx context.Context, q CallQuery, step time.Duration) (report.CallRates, error) {
	return run(ctx, c.Sessions(""), nil, nil, func(ctx context.Context, _ *fleet.Fleet) (report.CallRates, error) {
		x, err := c.index.open(ctx)
		if err != nil {
			return report.CallRates{}, err
		}
		return x.Rates(ctx, q.query(ctx), step)
	})
}
