package lane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors that callers branch on.
var (
	// ErrFull says that the calls stream, the account or the server is at its limit: the call was
	// not enqueued.
	ErrFull = store.ErrFull
	// ErrTooLarge says that a payload is larger than 64 MiB.
	ErrTooLarge = natsio.ErrTooLarge
	// ErrFullAgain is ErrFull for a call that an earlier attempt may have enqueued: it may be
	// stored, or have its result.
	ErrFullAgain = errors.New("the fleet's queue is full, and may have the call already")
	// ErrNotSent says that a call was not enqueued, and never will be by this attempt: it did not
	// leave the process, or no server received it.
	ErrNotSent = errors.New("the call was not sent")
)

// Publisher enqueues calls. It is safe for concurrent use.
type Publisher struct {
	// Signer, if set, signs the calls; it is not changed while the publisher is used.
	Signer *signing.Signer
	// Secret, if set, returns the secret of the fleet, with which calls prove who has sent them. A
	// user without the right to read it sends calls without a proof.
	Secret func(ctx context.Context) ([]byte, error)

	secret  secret
	store   *store.Store
	streams *natsio.Streams
	noRoom  atomic.Int64 // when a call was refused for lack of room, in nanoseconds since 1970
	clock   store.Clock
	synced  atomic.Int64 // when the clock was read, in nanoseconds since 1970
	bounds  *admission

	lanes readyCache
}

// poolLane is a lane in one of its pools: different workers may hold it in different pools.
type poolLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

// NewPublisher opens the streams of a fleet, which must exist.
func NewPublisher(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Publisher, error) {
	s, err := store.Open(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	p := &Publisher{store: s, streams: natsio.NewStreams(s.JS, s.Created())}
	p.bounds = newAdmission(p)
	p.lanes.makeReady = func(lane poolLane) { s.PublishReady(lane.pool, lane.lane) }
	return p, nil
}

// Outgoing is a call to enqueue, with headers such as its trace context.
type Outgoing struct {
	Call   *protocol.Call
	Header nats.Header
	// Findable says that [Publisher.Find] finds the call by its id while it has no result. That
	// costs a write when the lane is idle.
	Findable bool
	// Followed says that, if the call is accepted, [Publisher.Ended] is called once: when the
	// caller has its result, or gives it up. That saves ready messages. A followed call with a
	// random id that is not Again must not have been sent before by any process: its holder may
	// leave out the look for its result.
	Followed bool
	// Upload, if set, is called before a payload that no message can carry is stored, which may
	// take long. After its error the call is not sent.
	Upload func() error
}

// Ended says that an accepted call, which is followed, has its result or was given up; then r is
// nil.
func (p *Publisher) Ended(call *protocol.Call, r *protocol.Result) {
	if call.Delay() > 0 {
		return
	}
	var seen wire.Seen
	if r != nil {
		seen = wire.Seen{Epoch: r.Epoch, Sequence: r.Sequence}
	}
	p.lanes.onEnded(laneOf(call), seen)
}

// Enqueue enqueues a call; nil means accepted: the call will get exactly one result. Calls of one
// lane that are enqueued one after the other are accepted in that order. A payload that is too
// large for a message goes through the object store. [ErrBusy], [ErrQuota], [ErrFull],
// [ErrTooLarge], [natsio.ErrNoStream] and [ErrFullAgain] are final; otherwise Enqueue retries while
// the context lasts. The last error wraps [ErrNotSent] if the call was certainly not enqueued.
func (p *Publisher) Enqueue(ctx context.Context, out Outgoing) error {
	fault := p.enqueue(ctx, out)
	if errors.Is(fault, ErrFull) || errors.Is(fault, ErrFullAgain) {
		p.noRoom.Store(time.Now().UnixNano())
	}
	return fault
}

func laneOf(c *protocol.Call) poolLane { return poolLane{pool: c.Pool, lane: c.Lane()} }

func (p *Publisher) isFull() bool {
	return time.Since(time.Unix(0, p.noRoom.Load())) < fullFor
}

// enqueue enqueues a call: as the ready message itself if its lane may be idle, else into the
// mailbox. That saves a write; a wrong guess costs one. A call that waits for its time makes no
// lane ready, so it says nothing about the lane.
func (p *Publisher) enqueue(ctx context.Context, out Outgoing) (fault error) {
	if out.Call.Delay() > 0 {
		return p.enqueueLater(ctx, out)
	}
	lane, flow := laneOf(out.Call), wire.FlowOf(out.Call)
	full := p.isFull() // the last message that a full stream accepts must make its lane ready
	inline := flow.IsDefault() && (!p.lanes.use(lane) || full) && (!out.Findable || full)
	if out.Followed {
		defer func() {
			if fault == nil {
				p.lanes.onAccepted(lane)
			}
		}()
	}
	s := &sending{call: out.Call, again: out.Call.Again, findable: out.Findable && !full, upload: out.Upload}
	if err := p.admit(ctx, s, out.Header); err != nil {
		return s.notAccepted(natsio.NotSent(err))
	}
	if seen := p.lanes.lastResult(lane); out.Followed && !s.again && wire.IsRandomCallID(s.call.ID) && seen.Epoch > 0 {
		s.msg.Header.Set(wire.HeaderSeen, seen.Header())
	}
	if inline {
		done, err := p.publishInline(ctx, s)
		if done || err != nil {
			return err
		}
	}
	if err := p.publish(ctx, s); err != nil {
		return err
	}
	if flow.IsDefault() {
		p.lanes.onAppended(lane, out.Followed)
	} else {
		p.store.PublishTicket(lane.pool, lane.lane, flow)
	}
	return nil
}

// admit checks the bounds of a call, and encodes it.
func (p *Publisher) admit(ctx context.Context, s *sending, header nats.Header) error {
	marked, err := p.bounds.admit(ctx, s)
	if err == nil {
		err = p.encode(ctx, s, header)
	}
	if err == nil && marked {
		s.msg.Header.Set(wire.HeaderInFlight, "1")
	}
	return err
}

// sending is a call on its way into the stream.
type sending struct {
	call *protocol.Call // with a payload that fits into a message
	msg  *nats.Msg
	// again says that an earlier attempt may have stored the call, and findable that it would then
	// be found by its id.
	again, findable bool
	upload          func() error // see [Outgoing.Upload]
}

// notAccepted is the error of a call that was not accepted. It wraps [ErrNotSent] if no attempt can
// have enqueued it.
func (s *sending) notAccepted(err error) error {
	if !s.again && natsio.OutcomeOf(err) == natsio.NotStored {
		err = fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return fmt.Errorf("publish call %s: %w", s.call.ID, err)
}

// noRoomError is the error of a call for which a stream has no room.
func (s *sending) noRoomError() error {
	if s.again {
		return s.notAccepted(ErrFullAgain)
	}
	return s.notAccepted(ErrFull)
}

// markAgain re-encodes the call as one that may be stored already, unless the error of the last
// attempt excludes that.
func (s *sending) markAgain(fault error) error {
	if natsio.OutcomeOf(fault) == natsio.NotStored {
		return nil
	}
	s.again = true
	if s.call.Again {
		return nil
	}
	again := *s.call
	again.Again = true
	body, err := wire.EncodeCall(&again)
	if err != nil {
		return err
	}
	s.msg.Data = body
	return nil
}

// encode makes the message for the call's mailbox. A payload that is too large for it is stored
// separately, and the call refers to it.
func (p *Publisher) encode(ctx context.Context, s *sending, header nats.Header) error {
	body, err := wire.EncodeCall(s.call)
	if err == nil && p.store.Blobs.TooLarge(body) {
		var small *protocol.Call
		if s.upload != nil {
			if err := s.upload(); err != nil {
				return err
			}
		}
		if small, body, err = p.storePayload(ctx, s.call); err == nil {
			s.call = small
		}
	}
	if err != nil {
		return err
	}
	lane := s.call.Lane()
	s.msg = &nats.Msg{
		Subject: wire.CallSubject(p.store.Fleet, s.call.Pool, wire.HashLane(lane), s.call.ID),
		Header:  make(nats.Header, len(header)+headers), Data: body,
	}
	maps.Copy(s.msg.Header, header)
	s.msg.Header.Set(wire.HeaderLane, wire.LaneHeader(lane))
	s.msg.Header.Set(wire.HeaderCall, string(s.call.ID))
	s.msg.Header.Set(wire.HeaderSession, string(s.call.SessionID))
	if flow := wire.FlowOf(s.call); !flow.IsDefault() {
		s.msg.Header.Set(wire.HeaderFlow, flow.Header())
	}
	if secret := p.secret.get(ctx, p.Secret); secret != nil {
		s.msg.Header.Set(wire.HeaderProof, wire.Proof(secret, p.store.Fleet, protocol.CallRef{SessionID: s.call.SessionID, ID: s.call.ID}, s.call.Tenant, s.call.By))
	}
	return nil
}

const headers = 6

// secret is that of a fleet, once it was read.
type secret struct {
	mu    sync.Mutex
	value []byte
	tried time.Time
}

const (
	secretTimeout = 2 * time.Second // a server does not answer what it refuses
	secretAgain   = time.Minute
)

// get returns the secret; nil as long as it cannot be read.
func (s *secret) get(ctx context.Context, read func(ctx context.Context) ([]byte, error)) []byte {
	if read == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == nil && time.Since(s.tried) > secretAgain {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secretTimeout) // others need it when this call ends
		defer cancel()
		value, err := read(ctx)
		if s.tried = time.Now(); err == nil {
			s.value = value
		}
	}
	return s.value
}

// sign signs a call right before it is sent.
func (p *Publisher) sign(msg *nats.Msg) error {
	if p.Signer == nil {
		return nil
	}
	signed, err := p.Signer.Sign(p.store.Fleet, msg.Data, time.Now())
	if err == nil {
		msg.Header.Set(wire.HeaderSigned, signed)
	}
	return err
}

// storePayload stores a call's payload in the object store, and returns the call that refers to it,
// with its body.
func (p *Publisher) storePayload(ctx context.Context, call *protocol.Call) (*protocol.Call, []byte, error) {
	raw, err := wire.EncodePayload(call.Payload)
	if err != nil {
		return nil, nil, err
	}
	stored, err := p.store.Blobs.Put(natsio.StoredBy(ctx, call.Tenant), "call/"+string(call.SessionID), raw)
	if err != nil {
		return nil, nil, fmt.Errorf("payload of call %s: %w", call.ID, err)
	}
	need := RequirementsOf(call)
	stored.Of, stored.Model = need.Kind, need.Model
	small := *call
	small.Payload = stored
	body, err := wire.EncodeCall(&small)
	return &small, body, err
}

// publishInline publishes a call as the ready message itself. It reports false when the lane is
// ready or held.
func (p *Publisher) publishInline(ctx context.Context, s *sending) (done bool, err error) {
	if err := p.sign(s.msg); err != nil {
		return false, s.notAccepted(natsio.NotSent(err))
	}
	msg := *s.msg
	msg.Subject = wire.ReadySubject(p.store.Fleet, s.call.Pool, wire.HashLane(s.call.Lane()))
	_, answer, err := p.store.Publish(ctx, &msg)
	switch {
	case err != nil && ctx.Err() != nil:
		return false, s.notAccepted(err)
	case err != nil:
		// It may be stored. Trying the mailbox is safe, because the entry says that it may be.
		return false, s.markAgain(err)
	case answer == store.Full:
		return false, s.noRoomError()
	}
	return answer == store.Accepted, nil
}

// publish stores a call at the subject of its message, and retries while the context lasts.
func (p *Publisher) publish(ctx context.Context, s *sending) error {
	for retryWait := retryFirst; ; retryWait = min(2*retryWait, retryLast) {
		if err := p.sign(s.msg); err != nil {
			return s.notAccepted(err)
		}
		_, answer, err := p.store.PublishOnce(ctx, wire.CallsStream(p.store.Fleet), s.msg)
		switch {
		case err == nil && answer == store.Full:
			return s.noRoomError()
		case err == nil:
			return nil
		case errors.Is(err, nats.ErrNoResponders):
			if gone := p.streams.Check(ctx); gone != nil {
				return s.notAccepted(fmt.Errorf("%w: %w", gone, err))
			}
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // the server does not answer what it refuses
			if refused := natsio.CheckRights(ctx, p.store.NC, natsio.SendRights(p.store.Fleet, s.call.Pool)); errors.Is(refused, natsio.ErrRights) {
				return s.notAccepted(refused)
			}
		}
		if !store.Retryable(err) || !pause.For(ctx, retryWait) {
			return s.notAccepted(err)
		}
		if again := s.markAgain(err); again != nil {
			return s.notAccepted(again)
		}
	}
}

// enqueueLater stores a call that waits for its time. The worker that moves it into its lane may do
// so again after a crash, so the call says that it may have been enqueued before.
func (p *Publisher) enqueueLater(ctx context.Context, out Outgoing) error {
	marked := *out.Call
	marked.Again = true
	s := &sending{call: &marked, again: out.Call.Again, findable: true, upload: out.Upload}
	err := p.roomForLater(ctx)
	if err == nil {
		err = p.admit(ctx, s, out.Header)
	}
	if err != nil {
		return s.notAccepted(natsio.NotSent(err))
	}
	s.msg.Subject = wire.LaterSubject(p.store.Fleet, s.call.Pool, wire.HashLane(s.call.Lane()), s.call.ID)
	return p.publish(ctx, s)
}

// roomForLater returns [ErrFull] when nine tenths of the calls stream are full: a call is moved
// into its lane by one more message, for which a stream full of waiting calls has no room.
func (p *Publisher) roomForLater(ctx context.Context) error {
	info, err := p.store.Calls.Info(ctx)
	if err != nil {
		return err
	}
	c, s := info.Config, info.State
	if c.MaxMsgs > 0 && s.Msgs >= uint64(c.MaxMsgs/10*9) || c.MaxBytes > 0 && s.Bytes >= uint64(c.MaxBytes/10*9) { //nolint:gosec // positive
		return ErrFull
	}
	return nil
}

// DigestVoid is the digest of what [Publisher.Void] stores, and of its result.
const DigestVoid = "void"

// Void makes an id that no call has the id of one that is cancelled. Whatever is sent with that id
// later does not run, since it has a result by then, or finds the id occupied. It has no effect on
// a call that was stored before: [Publisher.Find] and [Publisher.Result] say which of both came
// first.
func (p *Publisher) Void(ctx context.Context, pool protocol.Pool, lane protocol.Lane, ref protocol.CallRef) error {
	call := &protocol.Call{
		ID: ref.ID, SessionID: ref.SessionID, Pool: pool, Resources: []protocol.Use{{Key: protocol.ResourceKey(lane), Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Again: true, Digest: DigestVoid,
		Payload: protocol.UnknownPayload{Name: DigestVoid, Raw: []byte(`{"type":"void"}`)},
	}
	s := &sending{call: call, again: true}
	if err := p.encode(ctx, s, nats.Header{wire.HeaderCancelled: {"1"}}); err != nil {
		return s.notAccepted(err)
	}
	if err := p.publish(ctx, s); err != nil {
		return err
	}
	p.lanes.makeReady(laneOf(call)) // if that is lost, a worker does so
	return nil
}

// Find returns a stored call without a result; nil if there is none in this account, or if it is
// void. A call that is the ready message of its lane is found by reading all ready messages.
func (p *Publisher) Find(ctx context.Context, session protocol.SessionID, id protocol.CallID) (*protocol.Call, error) {
	fleet := p.store.Fleet
	for _, filter := range []string{wire.CallSubject(fleet, "*", "*", id), wire.LaterSubject(fleet, "*", "*", id)} {
		for seq := uint64(0); ; {
			msg, err := p.store.Next(ctx, filter, seq)
			if err != nil {
				return nil, fmt.Errorf("find call %s: %w", id, err)
			}
			if msg == nil {
				break
			}
			if call, err := wire.DecodeCall(msg.Data); err == nil && call.SessionID == session && call.ID == id && call.Digest != DigestVoid {
				return call, nil
			}
			seq = msg.Sequence + 1
		}
	}
	var found *protocol.Call
	err := p.store.EachReady(ctx, func(msg *message) {
		if msg.Header.Get(wire.HeaderCall) != string(id) || msg.Header.Get(wire.HeaderSession) != string(session) {
			return
		}
		if call, err := wire.DecodeCall(msg.Data); err == nil {
			found = call
		}
	})
	if err != nil {
		return nil, fmt.Errorf("find call %s: %w", id, err)
	}
	return found, nil
}

// Cancel requests that a call ends as cancelled. The request is durable: once Cancel returns nil, a
// waiting call will not start, and a running one will be killed, unless it ends first; the result
// tells which. The lane's holder is notified at once. If the notification is lost, as it may be in
// a cluster, the holder reads the request within a second, or 30 if it holds many lanes, and kills
// what it started meanwhile. A call that waits for its time is cancelled within seconds; it may
// start, and is then killed, if its time comes meanwhile.
func (p *Publisher) Cancel(ctx context.Context, call *protocol.Call) error {
	if call.Delay() > 0 {
		if err := p.store.CancelLater(ctx, call.Pool, call.Lane(), call.ID); err != nil {
			return err
		}
	}
	return p.store.Cancel(ctx, call.Pool, call.Lane(), call.ID)
}

// Result returns the stored result of a call; nil when there is none yet. With an error, a non-nil
// result has a value that cannot be loaded.
func (p *Publisher) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return p.store.Result(ctx, session, call)
}

// Recorded is [Publisher.Result], and loads no value that is a [wire.Stored].
func (p *Publisher) Recorded(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	return p.store.Recorded(ctx, session, call)
}

// Streams checks whether the streams of calls and results exist, at most once a second for all
// callers. The error wraps [natsio.ErrNoStream] when one is missing.
func (p *Publisher) Streams(ctx context.Context) error { return p.streams.Check(ctx) }

// Lost reports whether a call that was accepted at a time, and has no result, was deleted with a
// stream that has been created anew since.
func (p *Publisher) Lost(ctx context.Context, call *protocol.Call, since time.Time) bool {
	if !since.Before(p.streams.Remade()) {
		return false
	}
	if there, err := isStored(ctx, p.store, call.Pool, call.Lane(), call.ID); there || err != nil {
		return false
	}
	r, err := p.store.Result(ctx, call.SessionID, call.ID) // a result is stored before its call is deleted
	return err == nil && r == nil
}

// Owner is the worker that has claimed a lane, as its heartbeat shows it.
type Owner struct {
	Worker protocol.WorkerID
	Beat   uint64        // of the heartbeat; each renewal changes it
	Silent time.Duration // since the last renewal
	Left   time.Duration // of the lease; 0 when it has ended
}

// Late reports whether a renewal is overdue. Workers renew within a third of a lease, see Due and
// Period of core.Lease.
func (o *Owner) Late() bool { return o.Left == 0 || o.Silent > (o.Silent+o.Left)*2/5 }

// Owner returns the worker that has claimed a call's lane; nil when none has. It needs
// [natsio.OwnerRights].
func (p *Publisher) Owner(ctx context.Context, call *protocol.Call) (*Owner, error) {
	claim, err := p.store.Claim(ctx, call.Pool, wire.HashLane(call.Lane()))
	if err != nil || claim == nil || claim.Incarnation == "" {
		return nil, err
	}
	beat, err := p.store.Heartbeat(ctx, call.Pool, claim.Incarnation)
	if err != nil || beat == nil {
		return nil, err
	}
	owner := &Owner{Worker: claim.WorkerID, Beat: beat.Seq}
	if beat.Expired {
		return owner, nil
	}
	if _, err := p.serverTime(ctx); err != nil {
		return nil, err
	}
	owner.Silent = p.clock.Age(beat.At)
	owner.Left = max(beat.Lease()-owner.Silent, 0)
	return owner, nil
}

// serverTime returns the server's clock, as it was measured a moment ago.
func (p *Publisher) serverTime(ctx context.Context) (now func() time.Time, err error) {
	if time.Since(time.Unix(0, p.synced.Load())) > syncEvery {
		if err := p.clock.Sync(ctx, p.store.Calls); err != nil {
			return nil, err
		}
		p.synced.Store(time.Now().UnixNano())
	}
	return p.clock.Now, nil
}

const (
	// fullFor is how long a stream counts as full after it refused a call.
	fullFor = time.Second
	// syncEvery is how long one reading of the server's clock is used.
	syncEvery  = 10 * time.Second
	retryFirst = 20 * time.Millisecond
	retryLast  = time.Second
)
