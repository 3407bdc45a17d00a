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

// A direct get is answered by any server that has the stream, which may be one that is behind.
// Where only one has it there is no other, and the answer is as true as that of STREAM.MSG.GET at a
// fraction of its price: the request is not passed between accounts, the answer is the message
// itself, and one request may have many.

// reader reads one stream in the cheapest way that is sure.
type reader struct {
	store  *Store
	stream string
	made   time.Time   // when the stream was made, as it was when it was opened
	direct atomic.Bool // one server has the stream, and nobody else answers direct gets

	batcher batcher
}

func (r *reader) readsDirect() bool { return r.direct.Load() && r.store.Consistency().ReadsDirect() }

// next returns the first message at or after seq that matches filter; nil when there is none.
func (r *reader) next(ctx context.Context, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	if !r.readsDirect() {
		return r.store.readLeader(ctx, r.stream, filter, seq)
	}
	request := append(strconv.AppendUint([]byte(`{"seq":`), max(seq, 1), 10), `,"next_by_subj":"`+filter+`"}`...)
	answer, err := r.store.Request(ctx, ShortTimeout, r.directGet(request))
	if errors.Is(err, nats.ErrNoResponders) { // the stream allows it no more
		return r.store.readLeader(ctx, r.stream, filter, seq)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	switch answer.Header.Get(headerStatus) {
	case "":
		if r.foreign(answer) {
			return r.store.readLeader(ctx, r.stream, filter, seq)
		}
		return FromCopy(answer)
	case statusNotFound:
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	return nil, fmt.Errorf("read %s from %d: %w", filter, seq, refusal(answer))
}

// foreign reports whether an answer is that of another stream, and asks no more that way then: a
// mirror may be set up to answer for the one that it mirrors, and is behind it.
func (r *reader) foreign(answer *nats.Msg) bool {
	name := answer.Header.Get(jetstream.StreamHeader)
	if name == "" || name == r.stream {
		return false
	}
	r.direct.Store(false)
	return true
}

func (r *reader) directGet(request []byte) *nats.Msg {
	return &nats.Msg{Subject: "$JS.API.DIRECT.GET." + r.stream, Data: request}
}

// maxBytes is how much is read at once, short of the last message.
const maxBytes = 1 << 20

// ErrNotAtOnce says that messages have to be read by [Store.Next], one after the other: the stream
// is not one that can be asked for more.
var ErrNotAtOnce = errors.New("they cannot be read at once")

func (r *reader) each(ctx context.Context, filter string, tell func(*jetstream.RawStreamMsg)) error {
	found, err := r.lookup(filter).Wait(ctx)
	for _, msg := range found {
		tell(msg)
	}
	if !errors.Is(err, ErrNotAtOnce) {
		return err
	}
	for seq := uint64(0); ; {
		msg, err := r.next(ctx, filter, seq)
		if err != nil || msg == nil {
			return err
		}
		tell(msg)
		seq = msg.Sequence + 1
	}
}

// Of the answers to a direct get.
const (
	headerStatus   = "Status"
	statusEnd      = "204"
	statusNobody   = "503"
	statusNotFound = "404"
)

func endsBatch(answer *nats.Msg) bool { return answer.Header.Get(headerStatus) != "" }

// readBatch reads the answers to a direct get of several messages. Each names the one before it, so
// that none is missed that got lost on the way.
func readBatch(answers []*nats.Msg) (found []*jetstream.RawStreamMsg, left int, err error) {
	last := answers[len(answers)-1]
	switch status := last.Header.Get(headerStatus); {
	case status == statusEnd:
	case status == statusNotFound && len(answers) == 1:
		return nil, 0, nil
	default:
		return nil, 0, refusal(last)
	}
	before := uint64(0)
	for _, answer := range answers {
		if named, err := strconv.ParseUint(answer.Header.Get(jetstream.LastSequenceHeader), 10, 64); err != nil || named != before {
			return nil, 0, errGap
		}
		if answer == last {
			break
		}
		msg, err := FromCopy(answer)
		if err != nil {
			return nil, 0, err
		}
		before = msg.Sequence
		found = append(found, msg)
	}
	left, err = strconv.Atoi(last.Header.Get("Nats-Num-Pending"))
	return found, left, err
}

var errGap = errors.New("an answer got lost")

func refusal(answer *nats.Msg) error {
	return fmt.Errorf("%w: %s %s", errRefused, answer.Header.Get(headerStatus), answer.Header.Get("Description"))
}

var errRefused = errors.New("the server refuses")

// FromCopy reads a copy of a stored message that has its place in the stream in its header, as the
// server sends it.
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
