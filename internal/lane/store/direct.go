package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A direct get is answered by any server that has the stream, which may be one that is behind. Where only one has it there is no
// other, and the answer is as true as that of STREAM.MSG.GET at a fraction of its price: the request is not passed between accounts, the
// answer is the message itself, and one request may have many.

// direct reports whether the calls stream may be read by direct gets.
func (s *Store) direct() bool { return s.single.Load() && !s.Clustered() }

// readDirect is [Store.Next] by a direct get.
func (s *Store) readDirect(ctx context.Context, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	request := append(strconv.AppendUint([]byte(`{"seq":`), max(seq, 1), 10), `,"next_by_subj":"`+filter+`"}`...)
	answer, err := s.Replies.Request(ctx, ShortTimeout, s.directGet(request))
	if errors.Is(err, nats.ErrNoResponders) { // the stream allows it no more
		return s.read(ctx, s.Fleet.CallsStream(), filter, seq)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	switch answer.Header.Get(headerStatus) {
	case "":
		if s.foreign(answer, s.Fleet.CallsStream(), &s.single) {
			return s.read(ctx, s.Fleet.CallsStream(), filter, seq)
		}
		return FromCopy(answer)
	case statusNotFound:
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	return nil, fmt.Errorf("read %s from %d: %w", filter, seq, refusal(answer))
}

// foreign reports whether an answer is that of another stream, and asks no more that way then: a mirror may be set up to
// answer for the one that it mirrors, and is behind it.
func (s *Store) foreign(answer *nats.Msg, stream string, single *atomic.Bool) bool {
	name := answer.Header.Get(jetstream.StreamHeader)
	if name == "" || name == stream {
		return false
	}
	single.Store(false)
	return true
}

const directGet = "$JS.API.DIRECT.GET."

func (s *Store) directGet(request []byte) *nats.Msg {
	return &nats.Msg{Subject: directGet + s.Fleet.CallsStream(), Data: request}
}

const (
	// maxMatches is how many messages may match what [Store.ReadAll] asks for.
	maxMatches = 1024
	// readBytes is how much it has sent at once, short of its last message.
	readBytes = 1 << 20
)

// ErrNotAtOnce says that messages have to be read by [Store.Next], one after the other: there are too many of them, or
// the stream is not one that can be asked for more.
var ErrNotAtOnce = errors.New("they cannot be read at once")

// ReadAll returns the messages of the calls stream at or after seq that match filter, in the order of their sequences, as many
// as it can have sent at once but no more than most; whole says that these are all. The error wraps [ErrNotAtOnce] when only [Store.Next] can do it.
func (s *Store) ReadAll(ctx context.Context, filter string, seq uint64, most int) (found []*jetstream.RawStreamMsg, whole bool, err error) {
	if !s.direct() {
		return nil, false, ErrNotAtOnce
	}
	request := fmt.Appendf(nil, `{"multi_last":[%q],"seq":%d,"batch":%d,"max_bytes":%d}`, filter, max(seq, 1), most, readBytes)
	answers, err := s.Replies.Collect(ctx, ShortTimeout, s.directGet(request), most+1, endsBatch)
	if errors.Is(err, nats.ErrNoResponders) || err == nil && s.foreign(answers[0], s.Fleet.CallsStream(), &s.single) {
		return nil, false, ErrNotAtOnce
	}
	if err == nil {
		found, whole, err = readBatch(answers)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read all of %s from %d: %w", filter, seq, err)
	}
	return found, whole, nil
}

// Of the answers to a direct get.
const (
	headerStatus   = "Status"
	statusEnd      = "204"
	statusNotFound = "404"
	statusTooMany  = "413"
	noResults      = "No Results" // and not that one of them cannot be loaded
)

// endsBatch reports whether an answer is the last one of several.
func endsBatch(answer *nats.Msg) bool { return answer.Header.Get(headerStatus) != "" }

// readBatch reads the answers to a direct get of several messages. Each names the one before it, so that
// none is missed that got lost on the way.
func readBatch(answers []*nats.Msg) (found []*jetstream.RawStreamMsg, whole bool, err error) {
	last := answers[len(answers)-1]
	switch status := last.Header.Get(headerStatus); {
	case status == statusEnd:
	case status == statusNotFound && last.Header.Get("Description") == noResults:
		return nil, true, nil
	case status == statusTooMany:
		return nil, false, ErrNotAtOnce
	default:
		return nil, false, refusal(last)
	}
	before := uint64(0)
	for _, answer := range answers {
		if named, err := strconv.ParseUint(answer.Header.Get(jetstream.LastSequenceHeader), 10, 64); err != nil || named != before {
			return nil, false, errGap
		}
		if answer == last {
			break
		}
		msg, err := FromCopy(answer)
		if err != nil {
			return nil, false, err
		}
		before = msg.Sequence
		found = append(found, msg)
	}
	return found, last.Header.Get("Nats-Num-Pending") == "0", nil
}

var errGap = errors.New("an answer got lost")

// refusal is the error that the server answered with.
func refusal(answer *nats.Msg) error {
	return fmt.Errorf("%w: %s %s", errRefused, answer.Header.Get(headerStatus), answer.Header.Get("Description"))
}

var errRefused = errors.New("the server refuses")

// FromCopy reads a copy of a stored message that has its place in the stream in its header, as the server sends it.
func FromCopy(msg *nats.Msg) (*jetstream.RawStreamMsg, error) {
	seq, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	stored, timeErr := time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
	if err := errors.Join(err, timeErr); err != nil {
		return nil, err
	}
	return &jetstream.RawStreamMsg{
		Subject: msg.Header.Get(jetstream.SubjectHeader), Sequence: seq, Header: msg.Header, Data: msg.Data, Time: stored,
	}, nil
}
