package operator

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Present returns those of a session's calls of which the calls stream still has a message, in any
// lane of any pool: whoever takes such a lane over looks for their results, and runs those again
// that have none. complete is false when the fleet has too many lanes or calls to read them all.
func (o *Operator) Present(ctx context.Context, session protocol.SessionID, calls []protocol.CallID) (present map[protocol.CallID]bool, complete bool, err error) {
	asked, present := make(map[protocol.CallID]bool, len(calls)), map[protocol.CallID]bool{}
	for _, id := range calls {
		asked[id] = true
	}
	fleet := o.store.Fleet
	mailboxes, err := o.store.EachSubject(ctx, fleet.MailboxesFilter("*"), maxSubjects, func(subject string) {
		if entry := fleet.ParseMailboxSubject(subject); entry.Kind == protocol.EntryCall && asked[entry.CallID] {
			present[entry.CallID] = true
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
	}
	var ready []string
	lanes, err := o.store.EachSubject(ctx, fleet.ReadyFilter("*"), maxSubjects, func(subject string) { ready = append(ready, subject) })
	if err != nil {
		return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
	}
	inline := make([]protocol.CallID, len(ready))
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(lookers)
	for i, subject := range ready {
		group.Go(func() error {
			msg, err := o.store.Ready(each, protocol.Pool(strings.Split(subject, ".")[2]), fleet.LaneOfSubject(subject))
			if err == nil && msg != nil && msg.Header.Get(protocol.HeaderSession) == string(session) {
				inline[i] = protocol.CallID(msg.Header.Get(protocol.HeaderCall))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
	}
	for _, id := range inline {
		if asked[id] {
			present[id] = true
		}
	}
	return present, mailboxes && lanes, nil
}
