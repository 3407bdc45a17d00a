package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Any server that has the stream answers a direct get, also a server that lags. If only one server
// has the stream, the answer is as reliable as that of STREAM.MSG.GET at a
// fraction of its price: the request is not passed between accounts, the answer is the message
// itself, and one request may have many.

// reader reads one stream in the cheapest way that is sure.
type reader struct {
	store   *Store
	stream  string
	created time.Time   // when the stream was made, as it was when it was opened
	direct  atomic.Bool // one server has the stream, and no other answers direct gets

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

// PageSize is how many messages a page has at most.
const PageSize = 100

// Page returns the first messages of the calls stream at or after seq that match filter, at most
// [PageSize] of them; none when there are none. A single server answers with all of them at once.
// In a cluster the leader answers many requests at the same time.
func (s *Store) Page(ctx context.Context, filter string, seq uint64) ([]*jetstream.RawStreamMsg, error) {
	if s.calls.readsDirect() {
		page, err := s.calls.page(ctx, filter, seq)
		if !errors.Is(err, ErrNotAtOnce) {
			return page, err
		}
	}
	return s.calls.pageOfLeader(ctx, filter, seq)
}

// maxAtOnce bounds the requests for one message that are sent at the same time.
const maxAtOnce = 32

func (r *reader) pageOfLeader(ctx context.Context, filter string, seq uint64) (found []*jetstream.RawStreamMsg, err error) {
	walk := r.walk(filter, seq)
	for more := true; more && len(found) < PageSize; {
		var some []*jetstream.RawStreamMsg
		if some, more, err = walk.Read(ctx, PageSize-len(found)); err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// walk reads messages by requests for one message, many at the same time.
func (r *reader) walk(filter string, seq uint64) *natsio.Walk {
	return natsio.NewWalk(seq, maxAtOnce, func(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
		return r.next(ctx, filter, seq)
	})
}

func (r *reader) page(ctx context.Context, filter string, seq uint64) ([]*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	nc := r.store.NC
	request := r.directGet(fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q,"batch":%d,"max_bytes":%d}`, max(seq, 1), filter, PageSize, maxBytes))
	request.Reply = nc.NewInbox()
	subscription, err := nc.SubscribeSync(request.Reply)
	if err != nil {
		return nil, err
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	if err := nc.PublishMsg(request); err != nil {
		return nil, err
	}
	for answers := []*nats.Msg(nil); ; {
		answer, err := subscription.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrNoResponders): // the stream allows it no more
			return nil, ErrNotAtOnce
		case err != nil:
			return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
		case r.foreign(answer):
			return nil, ErrNotAtOnce
		}
		if answers = append(answers, answer); endsBatch(answer) {
			found, _, err := readBatch(answers)
			return found, err
		}
	}
}

// Count is [natsio.Count] for the calls stream.
func (s *Store) Count(ctx context.Context, filter string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, ShortTimeout)
	defer cancel()
	n, _, err := natsio.Count(ctx, s.NC, wire.CallsStream(s.Fleet), filter)
	return n, err
}

// foreign reports whether an answer comes from another stream, and then ends direct gets: a mirror
// may answer for its origin, and lags behind.
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
// does not support such requests.
var ErrNotAtOnce = errors.New("they cannot be read at once")

func (r *reader) each(ctx context.Context, filter string, visit func(*jetstream.RawStreamMsg)) error {
	found, err := r.lookup(filter).Wait(ctx)
	for _, msg := range found {
		visit(msg)
	}
	if !errors.Is(err, ErrNotAtOnce) {
		return err
	}
	walk := r.walk(filter, 0)
	for more := true; more; {
		if found, more, err = walk.Read(ctx, PageSize); err != nil {
			return err
		}
		for _, msg := range found {
			visit(msg)
		}
	}
	return nil
}

// Of the answers to a direct get.
const (
	headerStatus       = "Status"
	statusEnd          = "204"
	statusNoResponders = "503"
	statusNotFound     = "404"
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

// Listing is the subjects of the calls stream that match a filter.
type Listing struct {
	Last     uint64            // the sequence of the stream up to which it is complete
	Subjects map[string]uint64 // and how many messages each has
	Whole    bool              // false when they were too many for one answer
	total    int               // of subjects that match
}

// ErrBehind says that a server answered which does not know yet what others have answered already.
var ErrBehind = errors.New("the server that answers is behind the others")

// BehindPause is the first pause for a server that lags by the latest messages; it doubles up to
// behindMost.
const (
	BehindPause = time.Millisecond
	behindMost  = 100 * time.Millisecond
)

// List lists what matches filter, by an answer of a server that knows the message with sequence
// floor. The error wraps [ErrBehind] when none does so soon.
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

// EachSubject passes every subject of the calls stream that matches filter, as many as one answer
// has after the other. It reports false when it stopped because they are more than most.
func (s *Store) EachSubject(ctx context.Context, filter string, most int, visit func(subject string)) (complete bool, err error) {
	for told := 0; told < most; {
		found, err := s.list(ctx, OpTimeout, filter, told)
		if err != nil {
			return false, err
		}
		for subject := range found.Subjects {
			visit(subject)
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
		Subject: "$JS.API.STREAM.INFO." + wire.CallsStream(s.Fleet),
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

// StoreResult stores the result of a call, with the proof of who has sent it, unless there is one
// already. It counts for the call's tenant.
func (s *Store) StoreResult(ctx context.Context, c *protocol.Call, accepted time.Time, proof string, r *protocol.Result) error {
	tenant := c.Tenant
	body, err := s.Blobs.EncodeResult(natsio.StoredBy(ctx, tenant), r)
	if err != nil {
		return err
	}
	msg := &nats.Msg{
		Subject: wire.ResultSubject(s.Fleet, r.SessionID, r.CallID), Data: body,
		Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: []string{"0"}, wire.HeaderAbout: []string{wire.AboutOf(c, accepted).Header()}},
	}
	if proof != "" {
		msg.Header.Set(wire.HeaderProof, proof)
	}
	_, answer, err := s.PublishOnce(ctx, wire.ResultsStream(s.Fleet), msg)
	if err = answer.full(err); err != nil {
		return fmt.Errorf("store result of call %s: %w", r.CallID, err)
	}
	if answer == Accepted {
		natsio.MarkResult(s.NC, s.Fleet, tenant, len(body))
	}
	return nil
}

// Result returns the stored result of a call; nil when there is none. With an error, a non-nil
// result has a value that cannot be loaded.
func (s *Store) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	r, err := s.Recorded(ctx, session, call)
	if err != nil || r == nil {
		return nil, err
	}
	return r, s.Blobs.Value(ctx, r)
}

// Recorded is [Store.Result], and loads no value that is a [wire.Stored].
func (s *Store) Recorded(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	msg, err := s.readLeader(ctx, wire.ResultsStream(s.Fleet), wire.ResultSubject(s.Fleet, session, call), 0)
	if err != nil {
		return nil, fmt.Errorf("look for the result of call %s: %w", call, err)
	}
	if msg == nil {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	r, err := wire.DecodeResult(msg.Data)
	if err != nil {
		return nil, err
	}
	if r.SessionID != session || r.CallID != call {
		return nil, fmt.Errorf("%w: what is stored for call %s is of call %s", wire.ErrInvalidResult, call, r.CallID)
	}
	return r, nil
}

// Ended returns how calls ended; those without a result are left out. A result that cannot be read
// counts as an unknown outcome.
func (s *Store) Ended(ctx context.Context, refs []protocol.CallRef) (map[protocol.CallRef]protocol.Status, error) {
	subjects := make([]string, len(refs))
	for i, ref := range refs {
		subjects[i] = wire.ResultSubject(s.Fleet, ref.SessionID, ref.ID)
	}
	found, err := s.results.stored(ctx, subjects)
	if err != nil {
		return nil, err
	}
	ended := map[protocol.CallRef]protocol.Status{}
	for i, ref := range refs {
		msg := found[subjects[i]]
		if msg == nil {
			continue
		}
		ended[ref] = protocol.StatusOutcomeUnknown
		if r, err := wire.DecodeResult(msg.Data); err == nil {
			ended[ref] = r.Status
		}
	}
	return ended, nil
}

// stored returns the stored messages of subjects, each of which takes one message.
func (r *reader) stored(ctx context.Context, subjects []string) (map[string]*jetstream.RawStreamMsg, error) {
	found := make(map[string]*jetstream.RawStreamMsg, len(subjects))
	for some := range slices.Chunk(subjects, maxBatch) {
		messages, err := r.lookup(some...).Wait(ctx)
		if errors.Is(err, ErrNotAtOnce) {
			messages, err = r.nextOfEach(ctx, some)
		}
		if err != nil {
			return nil, err
		}
		for _, msg := range messages {
			found[msg.Subject] = msg
		}
	}
	return found, nil
}

func (r *reader) nextOfEach(ctx context.Context, subjects []string) (found []*jetstream.RawStreamMsg, err error) {
	answers := make([]*jetstream.RawStreamMsg, len(subjects))
	var group errgroup.Group
	group.SetLimit(maxAtOnce)
	for i, subject := range subjects {
		group.Go(func() (err error) {
			answers[i], err = r.next(ctx, subject, 0)
			return err
		})
	}
	err = group.Wait()
	return slices.DeleteFunc(answers, func(msg *jetstream.RawStreamMsg) bool { return msg == nil }), err
}

// Stored returns the messages of subjects of the calls stream; subjects without one are left out.
func (s *Store) Stored(ctx context.Context, subjects []string) (map[string]*jetstream.RawStreamMsg, error) {
	return s.calls.stored(ctx, subjects)
}

// LookUpResults asks whether calls have results.
func (s *Store) LookUpResults(calls ...*protocol.Call) *Lookup {
	filters := make([]string, len(calls))
	for i, call := range calls {
		filters[i] = wire.ResultSubject(s.Fleet, call.SessionID, call.ID)
	}
	return s.results.lookup(filters...)
}

// HasResult reports whether a call has a result, also one whose value cannot be had or read. lookup
// is an earlier lookup of it; nil looks it up now.
func (s *Store) HasResult(ctx context.Context, call *protocol.Call, lookup *Lookup) (bool, error) {
	if lookup == nil {
		lookup = s.LookUpResults(call)
	}
	subject := wire.ResultSubject(s.Fleet, call.SessionID, call.ID)
	found, err := lookup.Wait(ctx)
	if errors.Is(err, ErrNotAtOnce) {
		var msg *jetstream.RawStreamMsg
		if msg, err = s.results.next(ctx, subject, 0); msg != nil {
			found = []*jetstream.RawStreamMsg{msg}
		}
	}
	if err != nil {
		return false, fmt.Errorf("look for the result of call %s: %w", call.ID, err)
	}
	return slices.ContainsFunc(found, func(msg *jetstream.RawStreamMsg) bool { return msg.Subject == subject }), nil
}
