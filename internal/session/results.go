package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// listed lists the results of the session that there are now.
func (r *remover) listed(ctx context.Context, p *part) (err error) {
	p.settled, err = r.settledCalls(ctx, p)
	return err
}

// settled are calls with a result.
type settled struct {
	calls map[protocol.CallID][]wire.Subject // of their results, and of notes about them
	last  uint64                             // sequence up to which the stream was listed
}

// results removes the results that are listed, but for those of calls that a lane still has. The
// session's own lanes have none by now; a call of another one may get its result meanwhile.
func (r *remover) results(ctx context.Context, p *part) error {
	if len(p.settled.calls) == 0 {
		return nil
	}
	ids := make([]protocol.CallID, 0, len(p.settled.calls))
	for id := range p.settled.calls {
		ids = append(ids, id)
	}
	present, complete, err := p.operator.Present(ctx, r.id, ids)
	if err != nil || !complete {
		return err
	}
	if len(present) == 0 {
		return r.purgeResults(ctx, p, wire.ResultsFilter(r.fleet.Name, r.id))
	}
	for id, subjects := range p.settled.calls {
		if present[id] {
			continue
		}
		for _, subject := range subjects {
			if err := r.purgeResults(ctx, p, subject); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *remover) purgeResults(ctx context.Context, p *part, subject wire.Subject) error {
	removed, err := r.purge(ctx, p.fleet, wire.ResultsStream(r.fleet.Name), subject, p.settled.last)
	r.removed.Results += removed
	return err
}

// settledCalls lists the session's results.
func (r *remover) settledCalls(ctx context.Context, p *part) (settled, error) {
	stream, err := p.fleet.JS.Stream(ctx, wire.ResultsStream(r.fleet.Name))
	if err != nil {
		return settled{}, fmt.Errorf("open stream %s: %w", wire.ResultsStream(r.fleet.Name), err)
	}
	filter := wire.ResultsFilter(r.fleet.Name, r.id)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return settled{}, fmt.Errorf("look for %s: %w", filter, err)
	}
	calls := make(map[protocol.CallID][]wire.Subject, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		id, _, _ := strings.Cut(strings.TrimPrefix(subject, strings.TrimSuffix(filter, ">")), ".")
		calls[protocol.CallID(id)] = append(calls[protocol.CallID(id)], subject)
	}
	return settled{calls: calls, last: info.State.LastSeq}, nil
}
