// Package journal keeps session journals on JetStream: one subject a session, one
// message an append, and the subject's last sequence as the guard.
//
// An append names the last sequence that its writer has seen. The server refuses
// it when the subject has moved on, so two coordinators can never both extend a
// session: one of them learns it, and stops.
package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Journal is the journal of a fleet's sessions. It is safe for concurrent use.
type Journal struct {
	fleet  protocol.Fleet
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream

	metrics *telemetry.JournalMetrics
}

var (
	_ loop.Journal = (*Journal)(nil)
	_ ports.Fencer = (*Journal)(nil)
)

const (
	// loadTimeout bounds the reading of one message, or of an image: a slow network transfers some
	// MiB in that time.
	loadTimeout = 30 * time.Second
	// messageOverhead is room for the subject and the headers of a message.
	messageOverhead = 4 << 10
)

// Open opens the journal of a fleet, whose streams must exist.
func Open(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Journal, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	stream, err := natsio.Open(ctx, js.Stream, wire.SessionsStream(fleet))
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", wire.SessionsStream(fleet), err)
	}
	return &Journal{fleet: fleet, nc: nc, js: js, stream: stream, metrics: telemetry.NewJournalMetrics(telemetry.Meter())}, nil
}

// Load implements [loop.Journal]. It reads from the stream's leader, so it sees
// every append that was acknowledged.
func (j *Journal) Load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	history, err := j.load(ctx, session)
	if err == nil {
		if history, err = history.Whole(); err != nil {
			err = fmt.Errorf("session %s: %w", session, err)
		}
	}
	return history, err
}

// load reads what is stored.
func (j *Journal) load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	var history loop.History
	for m, err := range j.Messages(ctx, session, 1) {
		if err != nil {
			return loop.History{}, err
		}
		for i := range m.Events {
			if err := j.loadImages(ctx, session, &m.Events[i]); err != nil {
				return loop.History{}, fmt.Errorf("session %s, message %d: %w", session, m.Sequence, err)
			}
		}
		history.Events = append(history.Events, m.Events...)
		history.Last = m.Sequence
		if m.Removed {
			history.Events, history.Removed = nil, loop.Removal{Sequence: m.Sequence, At: m.Events[0].Time}
		}
	}
	return history, nil
}

// Begin is Load for callers that need no more than whose the session is: of a journal that begins
// with [loop.EventSessionStarted] it reads two messages, however long it is, and returns the first
// event alone. Nothing that is appended behind this event names another owner.
func (j *Journal) Begin(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	var first loop.Event
	for m, err := range j.Messages(ctx, session, 1) {
		if err != nil {
			return loop.History{}, err
		}
		if m.Removed { // the session of this name begins behind it
			continue
		}
		if len(m.Events) == 0 || m.Events[0].Type != loop.EventSessionStarted {
			return j.Load(ctx, session)
		}
		first = m.Events[0]
		break
	}
	if first.Type == "" { // there is none
		return loop.History{}, nil
	}
	last, err := j.last(ctx, session)
	if err != nil {
		return loop.History{}, err
	}
	if last == nil || isMark(last) || IsRecord(last.Header) { // it is, or was, removed
		return j.Load(ctx, session)
	}
	return loop.History{Events: []loop.Event{first}, Last: last.Sequence}, nil
}

// Message is a message of a journal.
type Message struct {
	Sequence uint64
	Events   []loop.Event // without the data of images
	Bytes    int
	Removed  bool // it is the record of a removal, behind which a session of the same name begins
}

// Messages passes on the messages of a session at or behind a sequence, from 1, in their order, up
// to the last one that is stored. The first one takes one request; later ones are read many at a
// time. An error ends it.
func (j *Journal) Messages(ctx context.Context, session protocol.SessionID, from uint64) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for msg, err := range natsio.Messages(ctx, j.nc, j.stream, wire.EventSubject(j.fleet, session), from) {
			if err != nil {
				yield(nil, fmt.Errorf("load session %s from %d: %w", session, from, err))
				return
			}
			m, err := decoded(session, msg)
			if !yield(m, err) || err != nil {
				return
			}
			from = m.Sequence + 1
		}
	}
}

// Next reads the first message of a session at or behind a sequence, from 1; nil if there is none.
func (j *Journal) Next(ctx context.Context, session protocol.SessionID, from uint64) (*Message, error) {
	for m, err := range j.Messages(ctx, session, from) {
		return m, err
	}
	return nil, nil //nolint:nilnil // see above
}

func decoded(session protocol.SessionID, msg *jetstream.RawStreamMsg) (*Message, error) {
	m := &Message{Sequence: msg.Sequence, Bytes: len(msg.Data)}
	if err := json.Unmarshal(msg.Data, &m.Events); err != nil {
		return nil, fmt.Errorf("session %s, message %d: %w: %w", session, msg.Sequence, loop.ErrJournalInvalid, err)
	}
	m.Removed = IsRecord(msg.Header) && len(m.Events) == 1 && m.Events[0].Status == loop.RemovalCompleted
	return m, nil
}

// Event reads the event at an index of a message, with the data of its images and attachments; nil
// if there is none.
func (j *Journal) Event(ctx context.Context, session protocol.SessionID, sequence uint64, index int) (*loop.Event, error) {
	m, err := j.Next(ctx, session, sequence)
	if err != nil || m == nil || m.Sequence != sequence || index >= len(m.Events) {
		return nil, err
	}
	return &m.Events[index], j.loadImages(ctx, session, &m.Events[index])
}

// Last returns the sequence of the last message of a session; 0 if it has none.
func (j *Journal) Last(ctx context.Context, session protocol.SessionID) (uint64, error) {
	msg, err := j.last(ctx, session)
	if err != nil || msg == nil {
		return 0, err
	}
	return msg.Sequence, nil
}

// IsRecord reports by its headers whether a message is the record of [Journal.Forget]. No other
// message of a journal has an age of its own.
func IsRecord(header nats.Header) bool { return header.Get(jetstream.MsgTTLHeader) != "" }

// message reads the first message of a session at or behind a sequence.
func (j *Journal) message(ctx context.Context, session protocol.SessionID, from uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	return j.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(wire.EventSubject(j.fleet, session)))
}

// Append implements [loop.Journal]. Events that do not fit into one message go
// into several; an error then may leave the first of them appended, which a
// further Append with the same expected sequence reports as a conflict.
func (j *Journal) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	batches, err := j.batches(ctx, session, events)
	if err != nil {
		return 0, fmt.Errorf("append to session %s: %w", session, err)
	}
	last := expected
	if len(batches) == 0 { // nothing to store, but the guard holds
		return j.check(ctx, session, expected)
	}
	for _, body := range batches {
		if last, err = j.append(ctx, session, last, body, nil); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// append stores one message. If an answer was lost, the message that is stored shows whose it is.
func (j *Journal) append(ctx context.Context, session protocol.SessionID, expected uint64, body []byte, header nats.Header) (last uint64, err error) {
	begun := time.Now()
	defer func() { j.metrics.Appended(ctx, time.Since(begun), err) }()
	err = natsio.UntilKnown(ctx, func(ctx context.Context) (err error) {
		last, err = j.publish(ctx, session, expected, body, header)
		return err
	}, func(ctx context.Context) (bool, error) {
		msg, err := j.message(ctx, session, expected+1)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return false, nil
		case err != nil:
			return false, err
		}
		last = msg.Sequence
		return string(msg.Data) == string(body), nil
	})
	switch {
	case err == nil:
		return last, nil
	case natsio.OutcomeOf(err) == natsio.Conflict:
		return 0, fmt.Errorf("append to session %s behind %d: %w", session, expected, loop.ErrJournalConflict)
	default:
		return 0, j.refused(session, err)
	}
}

// errFull means that there is no room for an event.
var errFull error = &protocol.Error{Code: protocol.CodeFleetFull, Message: "there is no room for the session journal"}

// refused is the error of an append that is given up.
func (j *Journal) refused(session protocol.SessionID, err error) error {
	if natsio.NoRoom(err) {
		err = fmt.Errorf("%w: stream %s is at a limit, its own or the server's (%w): raise it, or remove sessions (coordinator session rm)",
			errFull, wire.SessionsStream(j.fleet), err)
	} else if errors.Is(err, context.DeadlineExceeded) && j.nc.IsConnected() { // a server whose disk is full does not answer
		err = fmt.Errorf("the NATS server stores nothing in stream %s; look whether the disk of its JetStream directory is full: %w", wire.SessionsStream(j.fleet), err)
	}
	return fmt.Errorf("append to session %s: %w", session, err)
}

func (j *Journal) publish(ctx context.Context, session protocol.SessionID, expected uint64, body []byte, header nats.Header) (uint64, error) {
	msg := &nats.Msg{Subject: wire.EventSubject(j.fleet, session), Header: maps.Clone(header), Data: body}
	ack, err := j.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(expected))
	if err != nil {
		return 0, err
	}
	natsio.MarkJournal(ctx, j.nc, j.fleet, session, len(body))
	return ack.Sequence, nil
}

// check compares a session's last sequence with what the caller expects.
func (j *Journal) check(ctx context.Context, session protocol.SessionID, expected uint64) (uint64, error) {
	var last uint64
	msg, err := j.last(ctx, session)
	if msg != nil {
		last = msg.Sequence
	}
	if err == nil && last != expected {
		return 0, fmt.Errorf("session %s is at %d, expected %d: %w", session, last, expected, loop.ErrJournalConflict)
	}
	return last, err
}

// last returns the last message of a session; nil for none.
func (j *Journal) last(ctx context.Context, session protocol.SessionID) (*jetstream.RawStreamMsg, error) {
	msg, err := j.stream.GetLastMsgForSubject(ctx, wire.EventSubject(j.fleet, session))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // it has none
	}
	if err != nil {
		return nil, fmt.Errorf("look at session %s: %w", session, err)
	}
	return msg, nil
}

// Mark ends the journal of a session with the mark [loop.EventRemoved]: no process can append to it
// from then on, and none that loads it begins a turn. It is the first step of a removal. A journal
// that ends with a mark stays as it is.
func (j *Journal) Mark(ctx context.Context, session protocol.SessionID) error {
	for {
		var expected uint64
		msg, err := j.last(ctx, session)
		if msg != nil {
			if isMark(msg) { // of a removal that was cut short
				return nil
			}
			expected = msg.Sequence
		}
		if err == nil {
			err = j.MarkBehind(ctx, session, expected)
		}
		if !errors.Is(err, loop.ErrJournalConflict) {
			return err
		}
	}
}

// isMark reports whether a message has the mark of a removal that was not completed.
func isMark(msg *jetstream.RawStreamMsg) bool {
	var events []loop.Event
	if json.Unmarshal(msg.Data, &events) != nil || len(events) == 0 {
		return false
	}
	last := &events[len(events)-1]
	return last.Type == loop.EventRemoved && last.Status != loop.RemovalCompleted
}

// MarkBehind is [Journal.Mark] unless the session was extended since it was read: then the error
// wraps [loop.ErrJournalConflict]. In a stream without room the mark takes that of earlier
// messages, but for the last one, which is the guard; what is left of the journal is invalid, so no
// turn continues there either. The error wraps a [protocol.Error] with [protocol.CodeFleetFull] if
// that is not enough.
func (j *Journal) MarkBehind(ctx context.Context, session protocol.SessionID, expected uint64) error {
	mark := loop.Event{Type: loop.EventRemoved, SessionID: session, Time: time.Now().UTC()}
	_, err := j.Append(ctx, session, expected, mark)
	if errors.Is(err, errFull) {
		if err = j.purge(ctx, session, jetstream.WithPurgeKeep(1)); err == nil {
			_, err = j.Append(ctx, session, expected, mark)
		}
	}
	return err
}

// MarkAlone is [Journal.Mark] for a stream in which the mark has no room beside the last message.
// For a moment the journal is empty, so nothing of the session may be unfinished: a turn would
// begin from scratch. The error wraps [loop.ErrJournalConflict] if one has begun.
func (j *Journal) MarkAlone(ctx context.Context, session protocol.SessionID) error {
	if err := j.purge(ctx, session); err != nil {
		return err
	}
	return j.MarkBehind(ctx, session, 0)
}

// RemovedAge is how long the record of a removed session is stored.
const RemovedAge = 7 * 24 * time.Hour

// Forget completes a removal that [Journal.Mark] has begun, and returns how many messages of the
// session it removed. The record that the session was removed takes the place of its journal in one
// write, and stays for an age, such as [RemovedAge]; 0 leaves none. Processes that have read the
// journal before cannot append, also if it was empty, and requests that were made before begin no
// session ([loop.Removal.Outlived]). There is no record in a stream without room for it, or if an
// earlier version made the stream and no process with the rights for it has edited it.
//
// The error wraps [ErrBegunAgain] if another process has completed the removal, and the name is
// used again: nothing of that session is removed.
func (j *Journal) Forget(ctx context.Context, session protocol.SessionID, age time.Duration) (removed uint64, err error) {
	for {
		mark, err := j.Removing(ctx, session)
		if err != nil || mark == 0 {
			return removed, err
		}
		messages, err := j.messages(ctx, session)
		if removed = max(removed, messages); err == nil {
			err = j.purge(ctx, session, jetstream.WithPurgeSequence(mark)) // which makes room
		}
		if err == nil && age > 0 {
			err = j.remember(ctx, session, mark, age)
		}
		switch {
		case errors.Is(err, loop.ErrJournalConflict): // of another process that removes the session
			continue
		case err == nil && age == 0, errors.Is(err, errFull), errors.Is(err, errNoRecords):
			err = j.purge(ctx, session, jetstream.WithPurgeSequence(mark+1))
		}
		if err != nil {
			err = fmt.Errorf("forget session %s: %w", session, err)
		}
		return removed, err
	}
}

// ErrBegunAgain means that a session was removed, and that there is another one of its name.
var ErrBegunAgain = errors.New("another process has completed the removal, and the session has begun again: what there is now stays")

// Removing returns the sequence of the mark with which the journal of a session ends; 0 if the
// session was removed. The error wraps [ErrBegunAgain] if there is a session without a mark.
func (j *Journal) Removing(ctx context.Context, session protocol.SessionID) (mark uint64, err error) {
	last, err := j.last(ctx, session)
	switch {
	case err != nil || last == nil || IsRecord(last.Header):
		return 0, err
	case !isMark(last):
		return 0, ErrBegunAgain
	default:
		return last.Sequence, nil
	}
}

// Fence implements [ports.Fencer]. It has no effect in a stream that stores no records.
func (j *Journal) Fence(ctx context.Context, session protocol.SessionID, expected uint64) error {
	if err := j.remember(ctx, session, expected, RemovedAge); !errors.Is(err, errNoRecords) {
		return err
	}
	return nil
}

// remember stores the record that a session was removed in the place of all its messages, on the
// condition that a sequence is the last one.
func (j *Journal) remember(ctx context.Context, session protocol.SessionID, expected uint64, age time.Duration) error {
	record := loop.Event{Type: loop.EventRemoved, SessionID: session, Time: time.Now().UTC()}
	record.Status = loop.RemovalCompleted
	body, err := json.Marshal([]loop.Event{record})
	if err != nil {
		return err
	}
	header := nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}, jetstream.MsgTTLHeader: {age.String()}}
	_, err = j.append(ctx, session, expected, body, header)
	if api, answered := errors.AsType[*jetstream.APIError](err); answered && (api.ErrorCode == codeNoTTL || api.ErrorCode == codeNoRollup) {
		return fmt.Errorf("%w: %w", errNoRecords, err)
	}
	return err
}

// errNoRecords says that an earlier version made the stream.
var errNoRecords = errors.New("the stream of journals stores no records of removed sessions")

// checkTimeout bounds what [Journal.CheckCall] takes of a call's time: servers do not answer a user
// without the right to read journals.
const checkTimeout = 5 * time.Second

// CheckCall returns an error, which names the session, if a call from outside of turns must not use
// its sandbox: the session is being removed, or was removed and has not begun again. It is nil if
// the user may not read journals.
func (j *Journal) CheckCall(ctx context.Context, session protocol.SessionID) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	stream, err := j.js.Stream(ctx, wire.SessionsStream(j.fleet))
	if err != nil {
		return nil // see above
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.EventSubject(j.fleet, session)))
	if err != nil || len(info.State.Subjects) == 0 { // as of a sandbox of single calls
		return nil // see above
	}
	last, err := j.last(ctx, session)
	switch {
	case err != nil || last == nil:
		return nil // see above
	case isMark(last):
		return codes.As(codes.ErrNotFound, fmt.Errorf("session %s is being removed (session rm completes that): use another --session", session))
	case IsRecord(last.Header):
		return codes.As(codes.ErrNotFound, fmt.Errorf("session %s was removed: use another --session, or begin it again with run or submit", session))
	default:
		return nil
	}
}

// messages counts the messages of a session, without marks and records of removals.
func (j *Journal) messages(ctx context.Context, session protocol.SessionID) (n uint64, err error) {
	stream, err := j.js.Stream(ctx, wire.SessionsStream(j.fleet))
	if err != nil {
		return 0, err
	}
	subject := wire.EventSubject(j.fleet, session)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, err
	}
	n = info.State.Subjects[subject]
	first, err := j.message(ctx, session, 1)
	if err == nil && IsRecord(first.Header) {
		n--
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	last, lastErr := j.last(ctx, session)
	if last != nil && isMark(last) {
		n--
	}
	return n, errors.Join(err, lastErr)
}

// Now returns the last sequence of all journals; 0 if it is not known. A request with it was made
// behind every removal until now, see [loop.Removal.Outlived].
func (j *Journal) Now(ctx context.Context) uint64 {
	stream, err := j.js.Stream(ctx, wire.SessionsStream(j.fleet))
	if err != nil {
		return 0
	}
	return stream.CachedInfo().State.LastSeq
}

// Codes of a stream that stores no messages with an age of their own, or in place of others.
const (
	codeNoTTL    = 10166
	codeNoRollup = 10111
)

func (j *Journal) purge(ctx context.Context, session protocol.SessionID, keep ...jetstream.StreamPurgeOpt) error {
	return j.stream.Purge(ctx, append(keep, jetstream.WithPurgeSubject(wire.EventSubject(j.fleet, session)))...)
}

// batches encodes events as JSON arrays that each fit into a message. Images that do not
// fit go into the object store.
func (j *Journal) batches(ctx context.Context, session protocol.SessionID, events []loop.Event) ([][]byte, error) {
	limit := int(j.nc.MaxPayload()) - messageOverhead
	var batches [][]byte
	var current []byte
	for _, event := range events {
		body, err := json.Marshal(event)
		if err != nil {
			return nil, err
		}
		if len(body)+2 > limit && (event.Image != nil || len(event.Attachments) > 0) {
			if err = j.storeImages(ctx, session, &event); err != nil {
				return nil, err
			}
			if body, err = json.Marshal(event); err != nil {
				return nil, err
			}
		}
		if len(body)+2 > limit {
			return nil, fmt.Errorf("event %s has %d bytes, a message may have %d (max_payload of the NATS server): %w", event.Type, len(body), limit, loop.ErrEventTooLarge)
		}
		if len(current) > 0 && len(current)+len(body)+2 > limit {
			batches = append(batches, append(current, ']'))
			current = nil
		}
		separator := byte(',')
		if len(current) == 0 {
			separator = '['
		}
		current = append(append(current, separator), body...)
	}
	if len(current) > 0 {
		batches = append(batches, append(current, ']'))
	}
	return batches, nil
}

// storeImages puts the data of an event's image and attachments into the object store. Where there
// is no room the journal has an image without its data, and takes no attachments.
func (j *Journal) storeImages(ctx context.Context, session protocol.SessionID, event *loop.Event) (err error) {
	if image := event.Image; image != nil {
		if event.Image, err = j.storeImage(ctx, session, image); errors.Is(err, errFull) {
			event.Image, err = &loop.Image{MediaType: image.MediaType}, nil
		}
	}
	event.Attachments = slices.Clone(event.Attachments)
	for i := 0; err == nil && i < len(event.Attachments); i++ {
		var stored *loop.Image
		if stored, err = j.storeImage(ctx, session, &event.Attachments[i].Image); err == nil {
			event.Attachments[i].Image = *stored
		}
	}
	return err
}

// storeImage puts the data of an image into the object store and returns what stands for it in the
// journal. Storing it twice is storing it once. Without room the error wraps [errFull].
func (j *Journal) storeImage(ctx context.Context, session protocol.SessionID, image *loop.Image) (*loop.Image, error) {
	sum := sha256.Sum256(image.Data)
	stored := &loop.Image{MediaType: image.MediaType, Blob: wire.ImageBlob(session, hex.EncodeToString(sum[:]))}
	_, err := natsio.PutObject(ctx, j.js, wire.KeptBucket(j.fleet), stored.Blob, bytes.NewReader(image.Data))
	if natsio.NoRoom(err) {
		err = fmt.Errorf("%w: %w", errFull, err)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", stored.Blob, err)
	}
	return stored, nil
}

// loadImages puts the data of an event's image and attachments back.
func (j *Journal) loadImages(ctx context.Context, session protocol.SessionID, event *loop.Event) error {
	err := j.loadImage(ctx, session, event.Image)
	for i := 0; err == nil && i < len(event.Attachments); i++ {
		err = j.loadImage(ctx, session, &event.Attachments[i].Image)
	}
	return err
}

// loadImage puts the data back. An image that is not kept any more stays without, and so does one
// that names an object of another session.
func (j *Journal) loadImage(ctx context.Context, session protocol.SessionID, image *loop.Image) error {
	if image == nil || !strings.HasPrefix(image.Blob, wire.ImageBlob(session, "")) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	data, err := natsio.GetObjectBytes(ctx, j.js, wire.KeptBucket(j.fleet), image.Blob)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", image.Blob, err)
	}
	image.Data = data
	return nil
}
