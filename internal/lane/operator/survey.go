package operator

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxSubjects bounds the subjects that a survey reads of each kind.
const maxSubjects = 300_000

// survey is what the subjects of a pool tell about a lane.
type survey struct {
	pool   protocol.Pool
	hash   protocol.LaneHash
	ready  bool
	calls  int // in the mailbox
	paused bool
}

// survey lists the lanes of a pool that have anything; pool may be "*", and lane too.
// complete is false when there were too many subjects to read them all.
func (o *Operator) survey(ctx context.Context, pool protocol.Pool, lane protocol.LaneHash) (found []*survey, complete bool, err error) {
	fleet := o.store.Fleet
	mailboxes := fleet.MailboxFilter(pool, lane)
	if lane == "*" {
		mailboxes = fleet.MailboxesFilter(pool)
	}
	lanes := map[string]*survey{}
	complete = true
	for _, filter := range []string{fleet.ReadySubject(pool, lane), mailboxes} {
		all, err := o.store.EachSubject(ctx, filter, maxSubjects, func(subject string) {
			hash := fleet.LaneOfSubject(subject)
			if hash == "" {
				return
			}
			at := strings.Split(subject, ".")[2]
			s := lanes[at+"."+string(hash)]
			if s == nil {
				s = &survey{pool: protocol.Pool(at), hash: hash}
				lanes[at+"."+string(hash)] = s
			}
			s.count(fleet, subject)
		})
		if err != nil {
			return nil, false, err
		}
		complete = complete && all
	}
	return slices.Collect(maps.Values(lanes)), complete, nil
}

// count books one subject of the lane.
func (s *survey) count(fleet protocol.Fleet, subject string) {
	if subject == fleet.ReadySubject(s.pool, s.hash) {
		s.ready = true
		return
	}
	switch fleet.ParseMailboxSubject(subject).Kind {
	case protocol.EntryCall:
		s.calls++
	case protocol.EntryPause:
		s.paused = true
	case protocol.EntryUnknown, protocol.EntryCancel, protocol.EntryStart, protocol.EntryFloor:
	}
}
