package natsio

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// A request for the first message at or behind a sequence needs no consumer and no right but to
// read, and the leader of a stream answers it with all that was acknowledged. One such request
// after the other takes the way to the server and back for each message. So a [Walk] divides the
// sequences in front of it into ranges, and reads these concurrently, each to its end:
//
//	read │ range │ range │ range │ range
//	  m m│ m   m │       │   m   │ m m m
//
// So it misses no message, however unevenly they are distributed. How wide the ranges are depends
// on how far the last messages were from each other.

// Walk reads messages of a stream, in their order. It is not safe for concurrent use.
type Walk struct {
	next func(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error)
	most int // ranges that are read concurrently

	at      uint64   // what is before it was read
	ranges  int      // that the last read had
	grows   bool     // the next one may have more
	last    []uint64 // sequences of the last messages
	largest int      // message, in bytes
}

const (
	// walkRanges bounds the ranges that a walk reads concurrently, and walkBytes how many bytes
	// their answers have, but for the last one of each range.
	walkRanges = 32
	walkBytes  = 4 << 20
	// rangeMessages is how many messages a range has on average, if not all sequences are of
	// messages that are read, and maxRange how many it has at most.
	rangeMessages = 4
	maxRange      = 4 * rangeMessages
	// walkGaps is how many gaps between the last messages say how wide ranges are.
	walkGaps = 32
	// lastSequence is behind all messages of any stream, and ranges that begin there have an end. A
	// client may name any sequence.
	lastSequence = math.MaxUint64 / 2
)

// NewWalk returns a walk that begins with the first message at or behind a sequence. It sends at
// most so many requests at a time; 0 means 32. A request is next: it returns the first message at
// or behind a sequence, nil if there is none, and is called concurrently.
func NewWalk(from uint64, most int, next func(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error)) *Walk {
	if most <= 0 {
		most = walkRanges
	}
	return &Walk{next: next, most: most, at: min(max(from, 1), lastSequence)}
}

// Read returns the next messages, at most so many, and whether there may be more behind them. What
// it begins with takes one request, and the more it has read the more requests it sends at once.
func (w *Walk) Read(ctx context.Context, most int) (found []*jetstream.RawStreamMsg, more bool, err error) {
	for more = true; more && len(found) == 0; {
		width, each := w.width()
		if w.grows {
			w.ranges *= 2
		}
		w.ranges = max(1, min(w.ranges, w.most, walkBytes/max(w.largest*each, 1), (most+each-1)/each))
		ranges, room := make([]walked, w.ranges), walkBytes/w.ranges
		group, ctx := errgroup.WithContext(ctx)
		for i := range ranges {
			group.Go(func() (err error) {
				from := w.at + uint64(i)*width //nolint:gosec // a small number
				ranges[i], err = w.read(ctx, from, from+width, room)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, false, err
		}
		before := len(w.last)
		found, more = w.join(ranges, most)
		w.grows = before > 0 && len(found) >= len(ranges) // the first message says nothing of the gaps
		if !w.grows {
			w.ranges = max(len(found), 1)
		}
	}
	return found, more, nil
}

// walked is what was read of a range.
type walked struct {
	found []*jetstream.RawStreamMsg // the last one may be behind the range
	end   bool                      // there was no message behind these
	part  bool                      // it was not read to its end
}

// read reads a range, up to the message with which it has maxRange of them or no more room in
// bytes.
func (w *Walk) read(ctx context.Context, from, to uint64, room int) (r walked, err error) {
	for from < to {
		if len(r.found) == maxRange || room < 0 {
			r.part = true
			break
		}
		msg, err := w.next(ctx, from)
		switch {
		case err != nil:
			return r, err
		case msg == nil:
			r.end = true
			return r, nil
		}
		r.found, from, room = append(r.found, msg), msg.Sequence+1, room-len(msg.Data)
	}
	return r, nil
}

// join puts the messages of ranges together, up to the first range that was not read to its end:
// behind it, messages may be missing that were stored meanwhile.
func (w *Walk) join(ranges []walked, most int) (found []*jetstream.RawStreamMsg, more bool) {
	for i := range ranges {
		r := &ranges[i]
		for _, msg := range r.found {
			if msg.Sequence < w.at { // an earlier range had it, too
				continue
			}
			if len(found) == most {
				return found, true
			}
			found, w.at = append(found, msg), msg.Sequence+1
			w.largest = max(w.largest, len(msg.Data))
			w.last = append(w.last, msg.Sequence)
		}
		w.last = slices.Delete(w.last, 0, max(len(w.last)-walkGaps-1, 0))
		switch {
		case r.end:
			return found, false
		case r.part:
			return found, true
		}
	}
	return found, true
}

// width is how many sequences a range has, and about how many messages.
func (w *Walk) width() (width uint64, messages int) {
	if len(w.last) < 2 {
		return 1, 1
	}
	gaps := make([]uint64, 0, walkGaps)
	for i := range w.last[1:] {
		gaps = append(gaps, w.last[i+1]-w.last[i])
	}
	slices.Sort(gaps)
	if middle := gaps[len(gaps)/2]; middle > 1 {
		return middle * rangeMessages, rangeMessages
	}
	return 1, 1
}

const (
	// messageTimeout bounds the reading of one message: a slow network transfers some MiB in that
	// time.
	messageTimeout = 30 * time.Second
	// deliveredAfter is how many messages are read by requests before a consumer delivers the rest,
	// which takes a tenth of the work for each, and some requests of its own.
	deliveredAfter = 64
)

// Messages passes on the messages of a subject at or behind a sequence, from 1, in their order, up
// to the last one. It sees every message that was acknowledged, if the stream allows no direct
// reads. The first message takes one request. Where there are many, a consumer delivers them, if
// one server has the stream and the user may make a consumer; otherwise many requests are sent at a
// time. An error ends it.
func Messages(ctx context.Context, nc *nats.Conn, stream jetstream.Stream, subject wire.Subject, from uint64) iter.Seq2[*jetstream.RawStreamMsg, error] {
	next := func(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
		ctx, cancel := context.WithTimeout(ctx, messageTimeout)
		defer cancel()
		msg, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, nil //nolint:nilnil // there is none
		}
		return msg, err
	}
	return func(yield func(*jetstream.RawStreamMsg, error) bool) {
		most, delivered := walkRanges, false
		walk := NewWalk(from, most, next)
		for more, n := true, 0; more; {
			if n >= deliveredAfter && !delivered {
				behind, ended := deliver(ctx, nc, stream, subject, walk, yield)
				if ended {
					return
				}
				walk, delivered = NewWalk(behind, most, next), true
			}
			found, left, err := walk.Read(ctx, walkRanges*rangeMessages)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && most > 1 { // they have to share a slow network
				most = 1
				walk = NewWalk(walk.at, most, next)
				continue
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, msg := range found {
				if !yield(msg, nil) {
					return
				}
			}
			more, n = left, n+len(found)
		}
	}
}

// deliver has a consumer deliver what a walk has before it, and returns the sequence behind the
// last message. Whatever the reason is that there are no more, requests find out what is behind it.
// ended reports that the reader wants no more.
func deliver(
	ctx context.Context, nc *nats.Conn, stream jetstream.Stream, subject wire.Subject, walk *Walk, yield func(*jetstream.RawStreamMsg, error) bool,
) (behind uint64, ended bool) {
	behind = walk.at
	info := stream.CachedInfo()
	if info.Config.Replicas > 1 { // a server that is behind may have the consumer
		return behind, false
	}
	if CheckRights(ctx, nc, Rights{Publish: []string{"$JS.API.CONSUMER.CREATE." + info.Config.Name + "." + probed}}) != nil {
		return behind, false
	}
	delivered := uint64(0)
	config := jetstream.ConsumerConfig{FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: behind}
	batch := func(bool) uint64 { return uint64(max(1, min(lastBatch, walkBytes/max(walk.largest, 1)))) }
	_ = each(ctx, stream, config, batch, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if err != nil {
			return err
		}
		if delivered++; about.Sequence.Consumer != delivered {
			return errLostMessage
		}
		behind, walk.largest = about.Sequence.Stream+1, max(walk.largest, len(msg.Data()))
		if ended = !yield(&jetstream.RawStreamMsg{
			Subject: msg.Subject(), Sequence: about.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Time: about.Timestamp,
		}, nil); ended {
			return errEnough
		}
		return nil
	})
	return behind, ended
}

// Reasons for which a reader takes no more of a consumer.
var (
	errLostMessage = errors.New("a message was lost on its way")
	errEnough      = errors.New("enough was read")
)
