package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
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
		all, err := o.subjects(ctx, filter, func(subject string) {
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
	case protocol.EntryUnknown, protocol.EntryCancel, protocol.EntryStart, protocol.EntryHandback, protocol.EntryClaim:
	}
}

// subjects tells every subject of the calls stream that matches filter, in pages. It
// reports false when it stopped at [maxSubjects].
func (o *Operator) subjects(ctx context.Context, filter string, tell func(string)) (complete bool, err error) {
	for offset := 0; ; {
		page, err := o.subjectsPage(ctx, filter, offset)
		if err != nil {
			return false, fmt.Errorf("list %s: %w", filter, err)
		}
		for subject := range page.State.Subjects {
			tell(subject)
		}
		offset += len(page.State.Subjects)
		if len(page.State.Subjects) == 0 || offset >= page.Total {
			return true, nil
		}
		if offset >= maxSubjects {
			return false, nil
		}
	}
}

// subjectsPage is a part of the answer to STREAM.INFO.
type subjectsPage struct {
	Error *jetstream.APIError `json:"error"`
	Total int                 `json:"total"`
	State struct {
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
}

func (o *Operator) subjectsPage(ctx context.Context, filter string, offset int) (*subjectsPage, error) {
	ctx, cancel := context.WithTimeout(ctx, store.OpTimeout)
	defer cancel()
	body, err := json.Marshal(struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}{filter, offset})
	if err != nil {
		return nil, err
	}
	msg, err := o.store.NC.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+o.store.Fleet.CallsStream(), body)
	if err != nil {
		return nil, err
	}
	var page subjectsPage
	if err := json.Unmarshal(msg.Data, &page); err != nil {
		return nil, err
	}
	if page.Error != nil {
		return nil, page.Error
	}
	return &page, nil
}
