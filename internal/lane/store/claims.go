package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// StoredClaim is a claim as it stands in the claims stream.
type StoredClaim struct {
	wire.Claim

	Epoch uint64
	At    time.Time // when it was stored, by the server's clock
}

// StoreClaim stores a claim on the condition that the lane's record has the sequence expect; 0 is
// none. [Occupied] says that it has another one. In a cluster the leader refuses also because of a
// write that is under way and may never be stored.
func (s *Store) StoreClaim(
	ctx context.Context, pool protocol.Pool, claim *wire.Claim, expect uint64,
) (epoch uint64, answer Answer, err error) {
	body, err := wire.Encode(claim)
	if err != nil {
		return 0, Accepted, err
	}
	return s.storeRecord(ctx, wire.ClaimSubject(s.Fleet, pool, wire.HashLane(claim.Lane)), body, expect)
}

// storeRecord replaces the message of a subject of the claims stream, if it still is the one
// expected.
func (s *Store) storeRecord(ctx context.Context, subject string, body []byte, expect uint64) (uint64, Answer, error) {
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: []string{strconv.FormatUint(expect, 10)},
	}}
	return s.Publish(ctx, msg)
}

// Claim returns the claim of a lane; nil when no worker holds it.
func (s *Store) Claim(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (*StoredClaim, error) {
	msg, err := s.claims.next(ctx, wire.ClaimSubject(s.Fleet, pool, lane), 0)
	if err != nil || msg == nil {
		return nil, err
	}
	return readClaim(msg)
}

// Claims returns the claims of lanes; lanes that no worker holds are left out.
func (s *Store) Claims(ctx context.Context, pool protocol.Pool, lanes []wire.LaneHash) (map[wire.LaneHash]*StoredClaim, error) {
	subjects := make([]string, len(lanes))
	for i, lane := range lanes {
		subjects[i] = wire.ClaimSubject(s.Fleet, pool, lane)
	}
	found, err := s.claims.stored(ctx, subjects)
	if err != nil {
		return nil, err
	}
	claims := make(map[wire.LaneHash]*StoredClaim, len(found))
	for i, lane := range lanes {
		if msg := found[subjects[i]]; msg != nil {
			if claims[lane], err = readClaim(msg); err != nil {
				return nil, err
			}
		}
	}
	return claims, nil
}

func readClaim(msg *jetstream.RawStreamMsg) (*StoredClaim, error) {
	claim, err := wire.Decode[wire.Claim](msg.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", msg.Subject, err)
	}
	return &StoredClaim{Claim: *claim, Epoch: msg.Sequence, At: msg.Time}, nil
}

// EachClaim passes the claims of a pool, one after the other. Claims of a version that this one
// cannot read are left out.
func (s *Store) EachClaim(ctx context.Context, pool protocol.Pool, visit func(*StoredClaim)) error {
	return s.claims.each(ctx, wire.ClaimSubject(s.Fleet, pool, ">"), func(msg *jetstream.RawStreamMsg) {
		if claim, err := readClaim(msg); err == nil {
			visit(claim)
		}
	})
}

// RemoveRecord removes the claim or heartbeat with a sequence, and returns when it is gone.
func (s *Store) RemoveRecord(ctx context.Context, seq uint64) error {
	return s.removeFrom(ctx, wire.ClaimsStream(s.Fleet), seq)
}

// EndClaim removes a claim of one's own, and returns when it is gone. One by which calls were
// interrupted, or of which the rate limit still counts starts, stays without an owner: the next
// holder has to know.
func (s *Store) EndClaim(ctx context.Context, pool protocol.Pool, claim wire.Claim, epoch uint64) error {
	if !claim.Interrupted && claim.Spent == 0 {
		return s.RemoveRecord(ctx, epoch)
	}
	claim.Incarnation = ""
	_, answer, err := s.StoreClaim(ctx, pool, &claim, epoch)
	if answer != Occupied {
		return answer.full(err)
	}
	found, err := s.Claim(ctx, pool, wire.HashLane(claim.Lane))
	if err == nil && found != nil && found.Epoch == epoch {
		err = ErrPending
	}
	return err // else an earlier try is stored, whose answer was lost
}

// DropClaim requests the removal of a claim without waiting for an answer; nothing happens without
// a connection.
func (s *Store) DropClaim(epoch uint64) {
	_ = s.NC.PublishMsg(deletion(wire.ClaimsStream(s.Fleet), epoch))
}

// StoredHeartbeat is a heartbeat as it stands in the claims stream.
type StoredHeartbeat struct {
	wire.Heartbeat

	Incarnation wire.IncarnationID
	Seq         uint64
	At          time.Time // when it was stored, by the server's clock; only [Store.Heartbeat] sets it
}

// Lease is the lease that the worker requested, at most the longest allowed one.
func (h *StoredHeartbeat) Lease() time.Duration {
	return time.Duration(min(h.LeaseMS, natsio.MaxAckWait.Milliseconds())) * time.Millisecond
}

// StoreHeartbeat renews or expires a heartbeat, on the condition that the record has the sequence
// expect.
func (s *Store) StoreHeartbeat(
	ctx context.Context, pool protocol.Pool, incarnation wire.IncarnationID, beat *wire.Heartbeat, expect uint64,
) (seq uint64, answer Answer, err error) {
	body, err := wire.Encode(beat)
	if err != nil {
		return 0, Accepted, err
	}
	return s.storeRecord(ctx, wire.HeartbeatSubject(s.Fleet, pool, incarnation), body, expect)
}

// Heartbeat returns the record of an incarnation; nil when there is none.
func (s *Store) Heartbeat(ctx context.Context, pool protocol.Pool, incarnation wire.IncarnationID) (*StoredHeartbeat, error) {
	msg, err := s.claims.next(ctx, wire.HeartbeatSubject(s.Fleet, pool, incarnation), 0)
	if err != nil || msg == nil {
		return nil, err
	}
	beat, err := ReadHeartbeat(wire.LifeOfSubject(s.Fleet, msg.Subject), msg.Data, msg.Sequence)
	if err == nil {
		beat.At = msg.Time
	}
	return beat, err
}

// EachHeartbeat passes the heartbeats of a pool, one after the other, like [Store.EachClaim].
func (s *Store) EachHeartbeat(ctx context.Context, pool protocol.Pool, visit func(*StoredHeartbeat)) error {
	return s.claims.each(ctx, wire.HeartbeatSubject(s.Fleet, pool, ">"), func(msg *jetstream.RawStreamMsg) {
		beat, err := ReadHeartbeat(wire.LifeOfSubject(s.Fleet, msg.Subject), msg.Data, msg.Sequence)
		if err == nil {
			visit(beat)
		}
	})
}

// ReadHeartbeat reads a heartbeat as it is stored, or as the server republishes it.
func ReadHeartbeat(incarnation wire.IncarnationID, body []byte, seq uint64) (*StoredHeartbeat, error) {
	beat, err := wire.Decode[wire.Heartbeat](body)
	if err != nil {
		return nil, fmt.Errorf("heartbeat %s: %w", incarnation, err)
	}
	return &StoredHeartbeat{Heartbeat: *beat, Incarnation: incarnation, Seq: seq}, nil
}

// Consumer is what the server says about a pool's consumer; nil when there is none.
func (s *Store) Consumer(ctx context.Context, pool protocol.Pool) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	consumer, err := s.Calls.Consumer(ctx, wire.ReadyConsumer(pool))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("consumer of pool %s: %w", pool, err)
	}
	return consumer.CachedInfo(), nil
}

// Redeliver has the pool's consumer deliver ready messages again at once, whichever worker received
// them before. A message that is not in delivery is left alone, and so is the sequence 0, which the
// claim of an idle lane has. After an error the consumer may not know the request.
func (s *Store) Redeliver(ctx context.Context, pool protocol.Pool, seqs ...uint64) error {
	return s.RedeliverAfter(ctx, pool, 0, seqs...)
}

// RedeliverAfter is Redeliver after a while.
func (s *Store) RedeliverAfter(ctx context.Context, pool protocol.Pool, wait time.Duration, seqs ...uint64) error {
	consumer, err := s.Consumer(ctx, pool)
	if err != nil || consumer == nil {
		return err
	}
	seqs = slices.DeleteFunc(slices.Clone(seqs), func(seq uint64) bool { return seq == 0 }) // such a request gets no answer
	for i, seq := range seqs {                                                              // the server looks for the message by its own sequence, and whether the delivery is possible
		ack := fmt.Sprintf("$JS.ACK.%s.%s.1.%d.%d.%d.0", wire.CallsStream(s.Fleet), wire.ReadyConsumer(pool),
			seq, consumer.Delivered.Consumer, time.Now().UnixNano())
		if wait == 0 { // only what has a delay outlives the consumer's leader
			err = s.NC.Publish(ack, nack(time.Nanosecond))
		}
		switch {
		case err != nil:
		case i < len(seqs)-1:
			err = s.NC.Publish(ack, nack(wait))
		default: // the answer to the last is one to all
			_, err = s.Request(ctx, ShortTimeout, &nats.Msg{Subject: ack, Data: nack(wait)})
		}
		if err != nil {
			return fmt.Errorf("deliver ready message %d again: %w", seq, err)
		}
	}
	return nil
}

// Nack has the pool's consumer deliver a ready message again after a while, 0 is at once. ack is
// the subject of its acknowledgements. There is no answer; without a connection nothing is sent.
func (s *Store) Nack(ack string, wait time.Duration) { _ = s.NC.Publish(ack, nack(wait)) }

func nack(wait time.Duration) []byte {
	if wait == 0 {
		return []byte("-NAK")
	}
	return fmt.Appendf(nil, `-NAK {"delay": %d}`, wait.Nanoseconds())
}

// Ack reports to the pool's consumer that a ready message is gone. Without it the consumer forgets
// the message when it would deliver it again.
func (s *Store) Ack(ack string) { _ = s.NC.Publish(ack, nil) }
