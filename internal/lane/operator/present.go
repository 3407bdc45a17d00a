package operator

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Present returns those of a session's calls of which the calls stream still has a message, in any
// lane of any pool: whoever takes such a lane over looks for their results, and runs those again
// that have none. complete is false when the fleet has too many calls to read them all.
func (o *Operator) Present(ctx context.Context, session protocol.SessionID, calls []protocol.CallID) (present map[protocol.CallID]bool, complete bool, err error) {
	asked, present := make(map[protocol.CallID]bool, len(calls)), map[protocol.CallID]bool{}
	for _, id := range calls {
		asked[id] = true
	}
	fleet := o.store.Fleet
	complete, err = o.store.EachSubject(ctx, fleet.MailboxesFilter("*"), maxSubjects, func(subject string) {
		if entry := fleet.ParseMailboxSubject(subject); entry.Kind == protocol.EntryCall && asked[entry.CallID] {
			present[entry.CallID] = true
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
	}
	for seq := uint64(0); ; {
		ready, err := o.store.Next(ctx, fleet.ReadyFilter("*"), seq)
		if err != nil {
			return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
		}
		if ready == nil {
			return present, complete, nil
		}
		seq = ready.Sequence + 1
		if id := headerCall(ready); headerSession(ready) == session && asked[id] {
			present[id] = true
		}
	}
}
