// Package store is the streams and the object store of a fleet, by the few operations that the lane
// engine needs: publish on a condition, read one message, list a mailbox, remove, and keep a result
// once. It knows how the server answers, and what an answer is worth when several servers may give
// it. What the messages mean is the engine's.
package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrFull is [natsio.ErrFull].
var ErrFull = natsio.ErrFull

// The server's error codes that the protocol is built on.
const (
	codeDeleteFailed jetstream.ErrorCode = 10057 // the description says why
	codeSeqNotFound  jetstream.ErrorCode = 10043
)

// Bounds of a request; the caller's context may end sooner. One whose answer is lost with its
// connection waits so long.
const (
	OpTimeout    = 5 * time.Second // of one publish
	ShortTimeout = time.Second     // of one read or removal
)

// Store is the streams of a fleet over one connection. It is safe for concurrent use.
type Store struct {
	Fleet   protocol.Fleet
	NC      *nats.Conn
	JS      jetstream.JetStream
	Calls   jetstream.Stream // the mailboxes and ready messages of lanes
	calls   *reader
	claims  *reader
	results *reader
	Blobs   *natsio.Blobs
	// ResultAge is how long results stay, as it was when the streams were opened; 0 is for ever.
	ResultAge time.Duration
}

// Open opens the streams of a fleet, which must exist.
func Open(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	s := &Store{Fleet: fleet, NC: nc, JS: js}
	if s.Blobs, err = natsio.NewBlobs(nc, fleet); err != nil {
		return nil, err
	}
	if s.Calls, s.calls, err = s.open(ctx, wire.CallsStream(fleet)); err != nil {
		return nil, err
	}
	if _, s.claims, err = s.open(ctx, wire.ClaimsStream(fleet)); err != nil {
		return nil, err
	}
	results, reader, err := s.open(ctx, wire.ResultsStream(fleet))
	if err != nil {
		return nil, err
	}
	s.results, s.ResultAge = reader, results.CachedInfo().Config.MaxAge
	return s, nil
}

func (s *Store) open(ctx context.Context, name string) (jetstream.Stream, *reader, error) {
	stream, err := s.JS.Stream(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("open stream %s: %w", name, err)
	}
	info := stream.CachedInfo()
	r := &reader{store: s, stream: name, created: info.Created}
	r.batcher.reader = r
	r.direct.Store(info.Config.AllowDirect && info.Config.Replicas <= 1)
	return stream, r, nil
}

// Created is when the streams of calls, claims and results were made, as it was when they were
// opened.
func (s *Store) Created() map[string]time.Time {
	return map[string]time.Time{
		wire.CallsStream(s.Fleet): s.calls.created, wire.ClaimsStream(s.Fleet): s.claims.created, wire.ResultsStream(s.Fleet): s.results.created,
	}
}

// Answer says what the stream answered to a publish.
type Answer uint8

// Every answer.
const (
	Accepted Answer = iota // stored
	Occupied               // the subject has its one message already
	Full                   // the stream, the account or the server is at its limit
)

// full is [ErrFull] for an answer that says so, else err.
func (a Answer) full(err error) error {
	if err == nil && a == Full {
		return ErrFull
	}
	return err
}

// Publish stores a message and waits for the acknowledgement. A refusal is an
// answer, not an error.
func (s *Store) Publish(ctx context.Context, msg *nats.Msg) (uint64, Answer, error) {
	answer, err := s.Request(ctx, OpTimeout, msg)
	if err != nil {
		return 0, Accepted, err
	}
	return readAck(answer.Data)
}

// readAck reads the answer to a publish.
func readAck(body []byte) (uint64, Answer, error) {
	if seq := sequenceIn(body); seq > 0 {
		return seq, Accepted, nil
	}
	var answer struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, Accepted, fmt.Errorf("acknowledgement %q: %w", body, err)
	}
	api := answer.Error
	switch {
	case api == nil && answer.Seq == 0:
		return 0, Accepted, fmt.Errorf("acknowledgement %q: %w", body, jetstream.ErrInvalidJSAck)
	case api == nil:
		return answer.Seq, Accepted, nil
	case natsio.OutcomeOf(api) == natsio.Conflict:
		return 0, Occupied, nil
	case natsio.NoRoom(api):
		return 0, Full, nil
	default:
		return 0, Accepted, api
	}
}

// sequenceIn reads an acknowledgement as the server writes it, `{"stream":"NAME","seq":1}`,
// without a JSON decoder; 0 for any other answer.
func sequenceIn(body []byte) uint64 {
	rest, begins := bytes.CutPrefix(body, []byte(`{"stream":"`))
	_, rest, found := bytes.Cut(rest, []byte(`","seq":`))
	digits, closed := bytes.CutSuffix(rest, []byte(`}`))
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	if !begins || !found || !closed || err != nil {
		return 0
	}
	return seq
}

// ErrPending says that a message was refused because of a write that is not stored yet.
var ErrPending = errors.New("another message on the subject is under way, and may never be stored")

// PublishOnce is [Store.Publish], but a refusal proves that the subject has a message. Otherwise
// the error is [ErrUnderWay]: try again.
func (s *Store) PublishOnce(ctx context.Context, stream string, msg *nats.Msg) (uint64, Answer, error) {
	seq, answer, err := s.Publish(ctx, msg)
	if err == nil && answer == Occupied {
		seq, err = s.Consistency().occupant(ctx, stream, msg.Subject)
	}
	return seq, answer, err
}

// MakeReady makes a lane ready, and reports whether the ready message was missing: being refused
// means that one is stored, so the lane is ready or held.
func (s *Store) MakeReady(ctx context.Context, pool protocol.Pool, lane protocol.Lane) (made bool, err error) {
	seq, err := s.MakeReadyOf(ctx, pool, lane, wire.Flow{})
	return seq > 0, err
}

// PublishReady publishes the ready message of a lane behind an entry of its mailbox, and does not
// wait for an answer. Should it get lost, the reaper makes the lane ready.
func (s *Store) PublishReady(pool protocol.Pool, lane protocol.Lane) {
	_ = s.NC.PublishMsg(s.emptyMessage(wire.ReadySubject(s.Fleet, pool, wire.HashLane(lane)), lane))
}

// Ticket publishes a ticket of a lane, unless the lane is ready, held, or has one of the flow. It
// reports whether the ticket was stored.
func (s *Store) Ticket(ctx context.Context, pool protocol.Pool, lane protocol.Lane, flow wire.Flow) (made bool, err error) {
	_, answer, err := s.Publish(ctx, s.ticket(pool, lane, flow))
	return err == nil && answer == Accepted, answer.full(err)
}

// PublishTicket is [Store.Ticket] without waiting for an answer, like [Store.PublishReady].
func (s *Store) PublishTicket(pool protocol.Pool, lane protocol.Lane, flow wire.Flow) {
	_ = s.NC.PublishMsg(s.ticket(pool, lane, flow))
}

func (s *Store) ticket(pool protocol.Pool, lane protocol.Lane, flow wire.Flow) *nats.Msg {
	hash := wire.HashLane(lane)
	msg := s.emptyMessage(wire.TicketSubject(s.Fleet, pool, hash, flow), lane)
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	msg.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, wire.ReadySubject(s.Fleet, pool, hash))
	return msg
}

// MakeReadyOf is [Store.MakeReady] for a lane whose ticket it is the turn of. It returns the
// sequence of the ready message; 0 if the lane is ready or held.
func (s *Store) MakeReadyOf(ctx context.Context, pool protocol.Pool, lane protocol.Lane, flow wire.Flow) (seq uint64, err error) {
	msg := s.emptyMessage(wire.ReadySubject(s.Fleet, pool, wire.HashLane(lane)), lane)
	if !flow.IsDefault() {
		msg.Header.Set(wire.HeaderFlow, flow.Header())
	}
	seq, answer, err := s.PublishOnce(ctx, wire.CallsStream(s.Fleet), msg)
	switch err = answer.full(err); {
	case err != nil:
		return 0, fmt.Errorf("publish ready message of lane %s: %w", lane, err)
	case answer != Accepted:
		return 0, nil
	}
	return seq, nil
}

func (s *Store) emptyMessage(subject string, lane protocol.Lane) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Header.Set(wire.HeaderLane, wire.LaneHeader(lane))
	return msg
}

// Mark stores a message without a body in a lane's mailbox, once.
func (s *Store) Mark(ctx context.Context, subject string, lane protocol.Lane) error {
	_, answer, err := s.PublishOnce(ctx, wire.CallsStream(s.Fleet), s.emptyMessage(subject, lane))
	return answer.full(err)
}

// Cancel requests that a call ends as cancelled, and makes its lane ready, so that a worker reads
// it.
func (s *Store) Cancel(ctx context.Context, pool protocol.Pool, lane protocol.Lane, call protocol.CallID) error {
	if err := s.Mark(ctx, wire.CancelSubject(s.Fleet, pool, wire.HashLane(lane), call), lane); err != nil {
		return fmt.Errorf("cancel call %s: %w", call, err)
	}
	s.PublishReady(pool, lane)
	return nil
}

// CancelLater asks for a call that waits for its time to end as cancelled.
func (s *Store) CancelLater(ctx context.Context, pool protocol.Pool, lane protocol.Lane, call protocol.CallID) error {
	if err := s.Mark(ctx, wire.LaterCancelSubject(s.Fleet, pool, wire.HashLane(lane), call), lane); err != nil {
		return fmt.Errorf("cancel call %s: %w", call, err)
	}
	return nil
}

// Next returns the first message of the calls stream at or after seq that matches filter; nil
// when there is none.
func (s *Store) Next(ctx context.Context, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.calls.next(ctx, filter, seq)
}

// EachReady passes the ready messages of all pools.
func (s *Store) EachReady(ctx context.Context, visit func(*jetstream.RawStreamMsg)) error {
	return s.calls.each(ctx, wire.CallsSubjects(s.Fleet)[1], visit)
}

// Ready returns the ready message of a lane; nil when there is none.
func (s *Store) Ready(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (*jetstream.RawStreamMsg, error) {
	return s.Next(ctx, wire.ReadySubject(s.Fleet, pool, lane), 0)
}

// readLeader reads from any stream. It asks the stream's leader, so it sees every acknowledged
// message.
func (s *Store) readLeader(ctx context.Context, stream, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	request := append(strconv.AppendUint([]byte(`{"seq":`), max(seq, 1), 10), `,"next_by_subj":"`+filter+`"}`...)
	answer, err := s.Request(ctx, ShortTimeout, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: request})
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	msg, err := readMessage(answer.Data)
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	return msg, nil
}

// readMessage reads the answer to STREAM.MSG.GET; nil when there is no such message.
func readMessage(body []byte) (*jetstream.RawStreamMsg, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	m := answer.Message
	switch api := answer.Error; {
	case api != nil && api.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil //nolint:nilnil // nothing there is an answer
	case api != nil:
		return nil, api
	case m == nil:
		return nil, jetstream.ErrMsgNotFound
	}
	msg := &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Data: m.Data, Time: m.Time}
	if len(m.Header) > 0 {
		header, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return nil, err
		}
		msg.Header = header
	}
	return msg, nil
}

// Retryable reports whether another try of a request may end otherwise. A store that failed is not
// waited for.
func Retryable(err error) bool {
	api, answered := errors.AsType[*jetstream.APIError](err)
	return natsio.Repeatable(err) && (!answered || api.ErrorCode != natsio.CodeStoreFailed)
}

// Nonce returns a number that was never used before.
func Nonce() uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return binary.BigEndian.Uint64(random[:])
}

// Clock is the server's time, so that ages of messages are right even when
// the clocks of machines differ.
type Clock struct{ offset atomic.Int64 } // server minus local, in nanoseconds

// Sync measures the offset once; on failure the old one stays.
func (c *Clock) Sync(ctx context.Context, stream jetstream.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	before := time.Now()
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	middle := before.Add(time.Since(before) / 2)
	c.offset.Store(int64(info.TimeStamp.Sub(middle)))
	return nil
}

// Now is the server's time.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

// Age is how long ago the server stored something, never negative.
func (c *Clock) Age(stored time.Time) time.Duration { return c.AgeAt(time.Now(), stored) }

// AgeAt is how long before a moment by this machine's clock the server stored something, never
// negative.
func (c *Clock) AgeAt(at, stored time.Time) time.Duration {
	return max(at.Add(time.Duration(c.offset.Load())).Sub(stored), 0)
}

// Request sends a message, and waits for the answer no longer than limit. [natsio.OutcomeOf] finds
// out whether its error says that nothing was sent.
func (s *Store) Request(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, natsio.NotSent(err)
	}
	if s.NC.IsClosed() {
		return nil, natsio.NotSent(nats.ErrConnectionClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.NC.RequestMsgWithContext(&sentFirst{Context: ctx}, msg) //nolint:contextcheck // it has this one
}

// sentFirst is a context that ends after a request was sent: the client checks it once before it
// sends, and the error would not say whether that was before or after.
type sentFirst struct {
	context.Context //nolint:containedctx // it is one

	checked bool
}

// Err is nil the first time.
func (c *sentFirst) Err() error {
	if !c.checked {
		c.checked = true
		return nil
	}
	return c.Context.Err()
}
