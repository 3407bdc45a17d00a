package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// results removes the results of the session, but for those of calls that a lane still has. Its own
// lanes have none by now.
func (r *remover) results(ctx context.Context) error {
	calls, err := r.settled(ctx)
	if err != nil || len(calls) == 0 {
		return err
	}
	ids := make([]protocol.CallID, 0, len(calls))
	for id := range calls {
		ids = append(ids, id)
	}
	present, complete, err := r.operator.Present(ctx, r.id, ids)
	if err != nil {
		return err
	}
	r.elsewhere = len(present) > 0 || !complete
	if !r.elsewhere {
		return r.purgeResults(ctx, r.fleet.Name.ResultsFilter(r.id))
	}
	for id, subjects := range calls {
		if !complete || present[id] {
			continue
		}
		for _, subject := range subjects {
			if err := r.purgeResults(ctx, subject); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *remover) purgeResults(ctx context.Context, subject protocol.Subject) error {
	removed, err := r.purge(ctx, r.fleet.Name.ResultsStream(), subject)
	r.removed.Results += removed
	return err
}

// settled returns the subjects of the session's results, and of notes about them, by call.
func (r *remover) settled(ctx context.Context) (map[protocol.CallID][]protocol.Subject, error) {
	stream, err := r.fleet.JS.Stream(ctx, r.fleet.Name.ResultsStream())
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", r.fleet.Name.ResultsStream(), err)
	}
	filter := r.fleet.Name.ResultsFilter(r.id)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", filter, err)
	}
	calls := make(map[protocol.CallID][]protocol.Subject, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		id, _, _ := strings.Cut(strings.TrimPrefix(subject, strings.TrimSuffix(filter, ">")), ".")
		calls[protocol.CallID(id)] = append(calls[protocol.CallID(id)], subject)
	}
	return calls, nil
}
