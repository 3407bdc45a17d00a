package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
)

// Listing is the subjects of the calls stream that match a filter.
type Listing struct {
	Last     uint64            // the sequence of the stream up to which it is complete
	Subjects map[string]uint64 // and how many messages each has
	Whole    bool              // false when they were too many for one answer
	total    int               // of subjects that match
}

// ErrBehind says that a server answered which does not know yet what others have answered already.
var ErrBehind = errors.New("the server that answers is behind the others")

// BehindPause is how long to wait for a server that is behind by what it was told this moment; it
// is doubled up to behindMost.
const (
	BehindPause = time.Millisecond
	behindMost  = 100 * time.Millisecond
)

// List lists what matches filter, as a server tells it that knows the message with sequence floor.
// The error wraps [ErrBehind] when none does so soon.
func (s *Store) List(ctx context.Context, filter string, floor uint64) (*Listing, error) {
	for wait := BehindPause; ; wait *= 2 {
		found, err := s.list(ctx, ShortTimeout, filter, 0)
		if err != nil {
			return nil, err
		}
		if found.Last >= floor {
			return found, nil
		}
		if wait > behindMost || !pause.For(ctx, wait) {
			return nil, fmt.Errorf("list %s: %w: it is at %d of %d", filter, ErrBehind, found.Last, floor)
		}
	}
}

// EachSubject tells every subject of the calls stream that matches filter, as many as one answer
// has after the other. It reports false when it stopped because they are more than most.
func (s *Store) EachSubject(ctx context.Context, filter string, most int, tell func(subject string)) (complete bool, err error) {
	for told := 0; told < most; {
		found, err := s.list(ctx, OpTimeout, filter, told)
		if err != nil {
			return false, err
		}
		for subject := range found.Subjects {
			tell(subject)
		}
		told += len(found.Subjects)
		if len(found.Subjects) == 0 || told >= found.total {
			return true, nil
		}
	}
	return false, nil
}

// list asks once what matches filter, but for the first subjects.
func (s *Store) list(ctx context.Context, limit time.Duration, filter string, skip int) (*Listing, error) {
	answer, err := s.Request(ctx, limit, &nats.Msg{
		Subject: "$JS.API.STREAM.INFO." + s.Fleet.CallsStream(),
		Data:    fmt.Appendf(nil, `{"subjects_filter":%q,"offset":%d}`, filter, skip),
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", filter, err)
	}
	found, err := readListing(answer.Data)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", filter, err)
	}
	return found, nil
}

func readListing(body []byte) (*Listing, error) {
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		Total int                 `json:"total"` // of subjects, of which one answer may have a part
		State *struct {
			LastSeq  uint64            `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	switch err := json.Unmarshal(body, &answer); {
	case err != nil:
		return nil, err
	case answer.Error != nil:
		return nil, answer.Error
	case answer.State == nil:
		return nil, errNoState
	}
	return &Listing{
		Last: answer.State.LastSeq, Subjects: answer.State.Subjects,
		Whole: len(answer.State.Subjects) >= answer.Total, total: answer.Total,
	}, nil
}

var errNoState = errors.New("the answer has no state of the stream")
