package lane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors that callers branch on.
var (
	// ErrFull says that the calls stream takes no more: nothing was enqueued.
	ErrFull = errors.New("the fleet's queue is full")
	// ErrTooLarge says that a payload is larger than the fleet keeps: over 64 MiB.
	ErrTooLarge = errors.New("too large for the fleet")
)

// The server's error codes that the protocol is built on.
const (
	codeStoreFailed  jetstream.ErrorCode = 10077 // a limit of the stream, named by the description
	codeWrongLastSeq jetstream.ErrorCode = 10071
	codeDeleteFailed jetstream.ErrorCode = 10057 // the description says why
	codeSeqNotFound  jetstream.ErrorCode = 10043
)

// opTimeout bounds one publish, shortTimeout one read or removal; the caller's
// context may end sooner. A request whose answer is lost with its connection waits so long.
const (
	opTimeout    = 5 * time.Second
	shortTimeout = time.Second
)

// store is the fleet's streams, by the few operations that the engine needs.
type store struct {
	fleet   protocol.Fleet
	nc      *nats.Conn
	js      jetstream.JetStream
	calls   jetstream.Stream
	results jetstream.Stream
	blobs   *blobs
	replies *replies
}

func openStore(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	s := &store{fleet: fleet, nc: nc, js: js, blobs: &blobs{js: js, bucket: fleet.BlobsBucket()}, replies: newReplies(nc)}
	if s.calls, err = js.Stream(ctx, fleet.CallsStream()); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", fleet.CallsStream(), err)
	}
	if s.results, err = js.Stream(ctx, fleet.ResultsStream()); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", fleet.ResultsStream(), err)
	}
	return s, nil
}

// clustered reports whether the server is one of several, between which messages
// of core NATS may get lost.
func (s *store) clustered() bool { return s.nc.ConnectedClusterName() != "" }

// refused says what the stream answered to a publish.
type refused uint8

const (
	accepted refused = iota // stored
	occupied                // the subject has its one message already
	full                    // the stream is at its limit
)

// publish stores a message and waits for the acknowledgement. A refusal is an
// answer, not an error.
func (s *store) publish(ctx context.Context, msg *nats.Msg) (uint64, refused, error) {
	answer, err := s.replies.request(ctx, opTimeout, msg)
	if err != nil {
		return 0, accepted, err
	}
	return readAck(answer.Data)
}

// readAck reads the answer to a publish. The usual one is read without a JSON
// decoder, which would cost more than all else that the client does for it.
func readAck(body []byte) (uint64, refused, error) {
	if _, rest, found := bytes.Cut(body, []byte(`"seq":`)); found && !bytes.Contains(body, []byte(`"error"`)) {
		end := 0
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		if seq, err := strconv.ParseUint(string(rest[:end]), 10, 64); err == nil && seq > 0 {
			return seq, accepted, nil
		}
	}
	if bytes.Contains(body, []byte(`"err_code":10077,"description":"maximum messages per subject exceeded"`)) {
		return 0, occupied, nil // the usual refusal
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, accepted, fmt.Errorf("acknowledgement %q: %w", body, err)
	}
	switch api := answer.Error; {
	case api == nil:
		return 0, accepted, fmt.Errorf("acknowledgement %q: %w", body, jetstream.ErrInvalidJSAck)
	case api.ErrorCode == codeWrongLastSeq,
		api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "per subject"):
		return 0, occupied, nil
	case api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "maximum"):
		return 0, full, nil
	default:
		return 0, accepted, api
	}
}

// errUnderWay says that a message was refused because of one that is not stored.
var errUnderWay = errors.New("another message on the subject is under way, and may never be stored")

// publishOnce is publish for a message of which a refusal has to mean that one is stored on its subject.
// In a cluster the leader refuses also because of what it has not agreed on with the others: an attempt of
// which no answer came, for example, that is lost when they choose another leader. So whoever is
// refused looks, and has to try again when there is nothing.
func (s *store) publishOnce(ctx context.Context, stream string, msg *nats.Msg) (uint64, refused, error) {
	seq, answer, err := s.publish(ctx, msg)
	if err != nil || answer != occupied || !s.clustered() {
		return seq, answer, err
	}
	there, err := s.read(ctx, stream, msg.Subject, 0)
	if err == nil && there == nil {
		err = errUnderWay
	}
	return 0, answer, err
}

// publishReady makes a lane ready. Being refused means that it is ready or held.
func (s *store) publishReady(ctx context.Context, pool protocol.Pool, lane protocol.Lane) error {
	msg := nats.NewMsg(s.fleet.ReadySubject(pool, lane.Hash()))
	msg.Header.Set(protocol.HeaderLane, headerSafe(string(lane)))
	_, answer, err := s.publish(ctx, msg)
	if err != nil {
		return fmt.Errorf("publish ready message of lane %s: %w", lane, err)
	}
	if answer == full {
		return fmt.Errorf("publish ready message of lane %s: %w", lane, ErrFull)
	}
	return nil
}

// next returns the first message of the calls stream at or after seq that matches filter; nil
// when there is none.
func (s *store) next(ctx context.Context, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.read(ctx, s.fleet.CallsStream(), filter, seq)
}

// read is next for any stream. It asks the stream's leader, so it sees every acknowledged message.
func (s *store) read(ctx context.Context, stream, filter string, seq uint64) (*jetstream.RawStreamMsg, error) {
	request := append(strconv.AppendUint([]byte(`{"seq":`), max(seq, 1), 10), `,"next_by_subj":"`+filter+`"}`...)
	answer, err := s.replies.request(ctx, shortTimeout, &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: request})
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	msg, err := readMessage(answer.Data)
	if err != nil {
		return nil, fmt.Errorf("read %s from %d: %w", filter, seq, err)
	}
	return msg, nil
}

// readMessage reads the answer to STREAM.MSG.GET; nil when there is no such message,
// which is the usual answer and read without a JSON decoder.
func readMessage(body []byte) (*jetstream.RawStreamMsg, error) {
	if !bytes.Contains(body, []byte(`"message":`)) && bytes.Contains(body, []byte(`"err_code":10037`)) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
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
	if answer.Error != nil {
		return nil, answer.Error
	}
	if answer.Message == nil {
		return nil, jetstream.ErrMsgNotFound
	}
	m := answer.Message
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

// remove deletes messages of the calls stream, and returns when the deletions are
// applied. A message that is gone already is fine.
func (s *store) remove(ctx context.Context, seqs ...uint64) error {
	for _, seq := range seqs {
		if err := s.removeOne(ctx, seq); err != nil {
			return fmt.Errorf("remove message %d: %w", seq, err)
		}
	}
	return nil
}

func (s *store) removeOne(ctx context.Context, seq uint64) error {
	answer, err := s.replies.request(ctx, shortTimeout, s.deletion(seq))
	if err != nil {
		return err
	}
	return deleteFault(answer.Data)
}

// deletion asks for a message to be deleted. Erasing its bytes is slow, and nobody needs it.
func (s *store) deletion(seq uint64) *nats.Msg {
	return &nats.Msg{
		Subject: "$JS.API.STREAM.MSG.DELETE." + s.fleet.CallsStream(),
		Data:    append(strconv.AppendUint([]byte(`{"no_erase":true,"seq":`), seq, 10), '}'),
	}
}

// deleteFault reads the answer to a deletion; a message that was gone already is no fault.
func deleteFault(body []byte) error {
	if bytes.Contains(body, []byte(`"success":true`)) {
		return nil
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	switch api := answer.Error; {
	case api == nil:
		return errNotDeleted
	case api.ErrorCode == codeSeqNotFound, api.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil
	case api.ErrorCode == codeDeleteFailed &&
		(strings.Contains(api.Description, "no message found") || strings.Contains(api.Description, "deleted message")):
		return nil
	default:
		return api
	}
}

var errNotDeleted = errors.New("not deleted, and the server does not say why")

// storeResult stores a result unless there is one already.
func (s *store) storeResult(ctx context.Context, r *protocol.Result) error {
	body, err := s.fit(ctx, r)
	if err != nil {
		return err
	}
	msg := &nats.Msg{
		Subject: s.fleet.ResultSubject(r.SessionID, r.CallID), Data: body,
		Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: []string{"0"}},
	}
	_, answer, err := s.publishOnce(ctx, s.fleet.ResultsStream(), msg)
	if err != nil {
		return fmt.Errorf("store result of call %s: %w", r.CallID, err)
	}
	if answer == full {
		return fmt.Errorf("store result of call %s: %w", r.CallID, ErrFull)
	}
	return nil
}

// messageOverhead is room for the subject and the headers of a message.
const messageOverhead = 16 << 10

// fit encodes a result. The value of one that no message can carry is stored
// apart. A result must always arrive: where that is not possible, one without the value says so.
func (s *store) fit(ctx context.Context, r *protocol.Result) ([]byte, error) {
	body, err := protocol.EncodeResult(r)
	small := *r
	switch {
	case err != nil:
		small.Value, small.Status = nil, protocol.StatusFailed
		small.Error = protocol.Errorf(protocol.CodeInternal, "the call ran, but its result cannot be encoded: %v", err)
	case !s.tooLarge(body):
		return body, nil
	default:
		raw, err := protocol.EncodeValue(r.Value)
		if err != nil {
			return nil, err
		}
		stored, err := s.blobs.put(ctx, "result/"+string(r.SessionID), raw)
		switch {
		case err == nil:
			small.Value = stored
		case errors.Is(err, ErrTooLarge):
			small.Value, small.Status = nil, protocol.StatusFailed
			small.Error = protocol.Errorf(protocol.CodePayloadTooLarge, "the call ran, but its result is too large: %v; ask for less at once", err)
		default:
			return nil, err
		}
	}
	return protocol.EncodeResult(&small)
}

// tooLarge reports whether a body does not fit into a message.
func (s *store) tooLarge(body []byte) bool {
	return int64(len(body)) > s.nc.MaxPayload()-messageOverhead
}

// result returns the stored result of a call; nil when there is none.
func (s *store) result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	msg, err := s.results.GetLastMsgForSubject(ctx, s.fleet.ResultSubject(session, call))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("look for the result of call %s: %w", call, err)
	}
	r, err := protocol.DecodeResult(msg.Data)
	if err != nil {
		return nil, err
	}
	return r, s.blobs.value(ctx, r)
}

// headerSafe makes a readable name fit for a header: what it cannot carry is escaped.
func headerSafe(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	return string(quoted[1 : len(quoted)-1])
}
