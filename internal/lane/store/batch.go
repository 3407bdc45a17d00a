package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Many lanes ask small questions at the same time: whether calls have results, and what waits in a
// mailbox. One direct get of the last message of many subjects (multi_last) answers them together,
// as a group commit: a lookup is sent at once when no request is in flight, and lookups
// that arrive meanwhile go with the next request. An answer is never older than its question.

// maxBatch is how many filters a request has, short of those of its last question.
const maxBatch = 256

// Lookup is a question for the stored messages of some subjects, each of which takes one message.
// It is safe for concurrent use.
type Lookup struct {
	filters []string
	done    chan struct{} // closed when the rest is set
	found   []*jetstream.RawStreamMsg
	err     error
}

// Wait returns what was found, in the order of the sequences. The error wraps [ErrNotAtOnce] when
// the stream has to be queried by [Store.Next], or by another request for one message.
func (l *Lookup) Wait(ctx context.Context) ([]*jetstream.RawStreamMsg, error) {
	select {
	case <-l.done:
		return l.found, l.err
	default:
	}
	limit := time.NewTimer(2 * ShortTimeout) // the request before it, and its own
	defer limit.Stop()
	select {
	case <-l.done:
		return l.found, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-limit.C:
		return nil, fmt.Errorf("%w: %w", ErrNotAtOnce, context.DeadlineExceeded)
	}
}

// ReadLane returns the ready message of a lane, nil when there is none, and all that is in its
// mailbox, in the order of the sequences. The error wraps [ErrNotAtOnce] when both have to be read
// in another way: so it is where much waits.
func (s *Store) ReadLane(
	ctx context.Context, pool protocol.Pool, lane wire.LaneHash,
) (ready *jetstream.RawStreamMsg, entries []*jetstream.RawStreamMsg, err error) {
	subject := wire.ReadySubject(s.Fleet, pool, lane)
	entries, err = s.calls.lookup(subject, wire.MailboxFilter(s.Fleet, pool, lane)).Wait(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read lane: %w", err)
	}
	if i := slices.IndexFunc(entries, func(msg *jetstream.RawStreamMsg) bool { return msg.Subject == subject }); i >= 0 {
		ready = entries[i]
		entries = slices.Delete(entries, i, i+1)
	}
	return ready, entries, nil
}

// ReadAll returns all messages of the calls stream that match filter, like [Store.ReadLane].
func (s *Store) ReadAll(ctx context.Context, filter string) ([]*jetstream.RawStreamMsg, error) {
	return s.calls.lookup(filter).Wait(ctx)
}

// batcher sends the lookups of a stream, one request at a time.
type batcher struct {
	reader *reader

	mu       sync.Mutex
	inbox    string // of the answers; "" before the first request
	requests uint64 // sent so far
	waiting  []*Lookup
	inFlight *batch // nil when none is
}

type batch struct {
	lookups []*Lookup
	reply   string
	answers []*nats.Msg
	sent    time.Time
}

// lookup asks for the messages that match some filters: subjects, or the beginning of subjects
// with ".>".
func (r *reader) lookup(filters ...string) *Lookup {
	l := &Lookup{filters: filters, done: make(chan struct{})}
	if !r.readsDirect() {
		l.err = ErrNotAtOnce
		close(l.done)
		return l
	}
	b := &r.batcher
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, l)
	if b.inFlight != nil && time.Since(b.inFlight.sent) > ShortTimeout { // its answer is lost
		b.finish(nil, fmt.Errorf("%w: no answer", ErrNotAtOnce))
	}
	b.send()
	return l
}

// send sends the waiting lookups, unless a request is in flight; the lock is held.
func (b *batcher) send() {
	for b.inFlight == nil && len(b.waiting) > 0 {
		n, filters := 0, 0
		for ; n < len(b.waiting) && filters < maxBatch; n++ {
			filters += len(b.waiting[n].filters)
		}
		b.inFlight = &batch{lookups: b.waiting[:n:n], sent: time.Now()}
		b.waiting = b.waiting[n:]
		if err := b.publish(b.inFlight); err != nil {
			b.finish(nil, fmt.Errorf("%w: %w", ErrNotAtOnce, err))
		}
	}
}

func (b *batcher) publish(next *batch) error {
	nc := b.reader.store.NC
	if b.inbox == "" {
		inbox := nc.NewInbox()
		if _, err := nc.Subscribe(inbox+".*", b.onAnswer); err != nil { // for as long as the connection
			return err
		}
		b.inbox = inbox
	}
	b.requests++
	next.reply = b.inbox + "." + strconv.FormatUint(b.requests, 36)
	request := b.reader.directGet(next.request())
	request.Reply = next.reply
	return nc.PublishMsg(request)
}

func (b *batch) request() []byte {
	body := []byte(`{"multi_last":[`)
	for _, l := range b.lookups {
		for _, filter := range l.filters {
			body = append(append(append(body, '"'), filter...), '"', ',')
		}
	}
	return fmt.Appendf(body[:len(body)-1], `],"max_bytes":%d}`, maxBytes)
}

func (b *batcher) onAnswer(answer *nats.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to := b.inFlight
	if to == nil || to.reply != answer.Subject { // it was given up
		return
	}
	if to.answers = append(to.answers, answer); !endsBatch(answer) {
		return
	}
	b.finish(b.reader.readMultiLast(to.answers))
	b.send()
}

// finish passes the result of the running request to its callers; the lock is held.
func (b *batcher) finish(found []*jetstream.RawStreamMsg, err error) {
	lookups := b.inFlight.lookups
	b.inFlight = nil
	byFilter := make(map[string][]*Lookup, len(lookups))
	for _, l := range lookups {
		l.err = err
		for _, filter := range l.filters {
			byFilter[filter] = append(byFilter[filter], l)
		}
	}
	for _, msg := range found {
		for _, l := range byFilter[msg.Subject] {
			l.found = append(l.found, msg)
		}
		for end := len(msg.Subject); ; {
			if end = strings.LastIndexByte(msg.Subject[:end], '.'); end < 0 {
				break
			}
			for _, l := range byFilter[msg.Subject[:end]+".>"] {
				l.found = append(l.found, msg)
			}
		}
	}
	for _, l := range lookups {
		close(l.done)
	}
}

// readMultiLast reads the answers to a request. The error wraps [ErrNotAtOnce] when they are not
// all that there is.
func (r *reader) readMultiLast(answers []*nats.Msg) ([]*jetstream.RawStreamMsg, error) {
	last := answers[len(answers)-1]
	if last.Header.Get(headerStatus) == statusNotFound {
		// The server says 404 also of a message that it could not read.
		if len(answers) == 1 && last.Header.Get("Description") == "No Results" {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %w", ErrNotAtOnce, refusal(last))
	}
	if len(last.Data) == 0 && last.Header.Get(headerStatus) == statusNoResponders || r.foreign(answers[0]) {
		return nil, ErrNotAtOnce
	}
	found, left, err := readBatch(answers)
	if err == nil && left > 0 {
		err = errTooMuch
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAtOnce, err)
	}
	slices.SortFunc(found, func(a, b *jetstream.RawStreamMsg) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return found, nil
}

var errTooMuch = errors.New("more than one answer has")

// Remove deletes messages of the calls stream, and returns when the deletions are
// applied. A message that is gone already is fine.
func (s *Store) Remove(ctx context.Context, seqs ...uint64) error {
	for _, seq := range seqs {
		if err := s.removeFrom(ctx, wire.CallsStream(s.Fleet), seq); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) removeFrom(ctx context.Context, stream string, seq uint64) error {
	answer, err := s.Request(ctx, ShortTimeout, deletion(stream, seq))
	if err == nil {
		err = deletionError(answer.Data)
	}
	if err != nil {
		return fmt.Errorf("remove message %d of stream %s: %w", seq, stream, err)
	}
	return nil
}

// DeleteAsync requests the removal of a message of the calls stream without waiting for an answer;
// nothing happens without a connection.
func (s *Store) DeleteAsync(seq uint64) {
	_ = s.NC.PublishMsg(deletion(wire.CallsStream(s.Fleet), seq))
}

// deletion is the request to delete a message. It does not erase its bytes, which is slow.
func deletion(stream string, seq uint64) *nats.Msg {
	return &nats.Msg{
		Subject: "$JS.API.STREAM.MSG.DELETE." + stream,
		Data:    append(strconv.AppendUint([]byte(`{"no_erase":true,"seq":`), seq, 10), '}'),
	}
}

// deletionError reads the answer to a deletion; a message that was gone already is no error.
func deletionError(body []byte) error {
	var answer struct {
		Success bool                `json:"success"`
		Error   *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	switch api := answer.Error; {
	case answer.Success:
		return nil
	case api == nil:
		return errNotDeleted
	case api.ErrorCode == codeSeqNotFound, api.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil
	case api.ErrorCode == codeDeleteFailed &&
		slices.ContainsFunc([]string{"no message found", "deleted message", "EOF"}, // the last: it is behind the stream's end
			func(why string) bool { return strings.Contains(api.Description, why) }):
		return nil
	default:
		return api
	}
}

var errNotDeleted = errors.New("not deleted, and the server does not say why")
