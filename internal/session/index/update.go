package index

import (
	"cmp"
	"context"
	"crypto/hmac"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A transaction ends behind that many messages or bytes of them, whichever comes first.
const (
	batchMessages = 256
	batchBytes    = 8 << 20
)

// Keys of meta.
const (
	keyStream   = "stream"   // when the stream was made: sequences of another one mean nothing
	keyPosition = "position" // the sequence up to which messages were applied
	keyScrub    = "scrub"    // the log of writes has text that was removed
	keySince    = "since"    // texts before that time have left the file, by its bounds
	keyUpdated  = "updated"  // when it was, about
	keyBytes    = "bytes"    // bounds of the file, for processes that name none
	keyAge      = "age"
	keyFile     = "file" // names the file in positions of readers, see [position]
	keySeal     = "seal" // the key of its [seal]
)

// source is a stream that is read: of journals, or of results.
type source struct {
	stream  jetstream.Stream
	subject wire.Subject
	prefix  string // of keys of meta; "" is that of the journals
	proof   func(call protocol.CallRef, about *wire.About) string
}

// message is one of a source.
type message struct {
	session protocol.SessionID
	seq     uint64
	stored  int64 // when, by the server's clock, in milliseconds
	body    []byte
	record  bool        // it is the record of a removed session
	result  bool        // it is a result, and not of a journal
	about   *wire.About // what the header of a result says of its call; nil without one
	proven  bool        // the fleet knows that its sender and tenant are right
}

// message reads a message of a source.
func (s source) message(subject string, seq uint64, stored time.Time, header nats.Header, body []byte) message {
	m := message{seq: seq, stored: stored.UnixMilli(), body: body}
	if s.prefix == "" {
		m.session, m.record = protocol.SessionID(subject[strings.LastIndexByte(subject, '.')+1:]), journal.IsRecord(header)
		return m
	}
	session, call, _ := strings.Cut(strings.TrimPrefix(subject, strings.TrimSuffix(s.subject, "*.*")), ".")
	m.session, m.result = protocol.SessionID(session), true
	if text := header.Get(wire.HeaderAbout); text != "" {
		about := wire.AboutOfHeader(text)
		proof := s.proof(protocol.CallRef{SessionID: m.session, ID: protocol.CallID(call)}, &about)
		m.about, m.proven = &about, proof != "" && hmac.Equal([]byte(proof), []byte(header.Get(wire.HeaderProof)))
	}
	return m
}

// time is when something was that a message says: not after it was stored, however far ahead the
// clock was of the process that has said so. Else it would never be old enough to leave the file.
func (m *message) time(said time.Time) time.Time {
	if stored := time.UnixMilli(m.stored); said.After(stored) {
		return stored
	}
	return said
}

// Update applies what the journals have got and lost since the last update. If ctx ends before, the
// next update continues there.
func (x *Index) Update(ctx context.Context) error {
	begun := time.Now()
	err := x.change(ctx, func(o *opened) error { return x.update(ctx, o) })
	if err != nil {
		return fmt.Errorf("update the index of sessions: %w", err)
	}
	x.current.Store(&begun)
	return nil
}

// Follow updates the file until ctx ends. It reports an error once, until it is another one.
func (x *Index) Follow(ctx context.Context, logger *slog.Logger) {
	const period = 2 * time.Second
	begun := time.Now()
	defer telemetry.ObserveIndex(telemetry.Meter(), func() time.Duration {
		return time.Since(*cmp.Or(x.current.Load(), &begun))
	})()
	last := ""
	for {
		if err := x.Update(ctx); err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			logger.WarnContext(ctx, "searches across sessions may miss what is new", slog.Any("error", err))
		}
		if !pause.For(ctx, period) {
			return
		}
	}
}

// update reads the results that there were before it read the journals: so the journals have most
// of their texts.
func (x *Index) update(ctx context.Context, o *opened) error {
	if err := x.readSecret(ctx); err != nil {
		return err
	}
	results := make([]*jetstream.StreamInfo, len(x.results))
	for i, from := range x.results {
		var err error
		if results[i], err = look(ctx, from.stream); err != nil {
			return err
		}
	}
	if err := errors.Join(x.updateJournals(ctx, o), x.missed(ctx, o)); err != nil {
		return err
	}
	for i, from := range x.results {
		if err := x.updateResults(ctx, o, from, results[i]); err != nil {
			return err
		}
	}
	return errors.Join(x.bound(ctx, o), sweep(ctx, o, sweepTime), scrub(ctx, o))
}

// readSecret reads the secret of the fleet, if its user may.
func (x *Index) readSecret(ctx context.Context) error {
	if x.secret != nil || x.options.Secret == nil {
		return nil
	}
	const most = time.Second                                               // a server does not answer what it refuses
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), most) // an update may have less time, again and again
	defer cancel()
	secret, err := x.options.Secret(short)
	if x.secret = secret; err == nil {
		return nil
	}
	rights := natsio.Rights{Publish: []string{"$JS.API.STREAM.INFO.KV_" + wire.PlacesBucket(x.fleet)}}
	if errors.Is(natsio.CheckRights(context.WithoutCancel(ctx), x.nc, rights), natsio.ErrRights) {
		x.options.Secret, err = nil, nil
	}
	return err
}

// proof is what a result has if a call is what it is said to be; "" without the secret.
func (x *Index) proof(call protocol.CallRef, about *wire.About) string {
	if x.secret == nil {
		return ""
	}
	return wire.Proof(x.secret, x.fleet, call, about.Tenant, about.By)
}

// missed removes the calls of sessions without a journal from a file that was not updated for so
// long that records of removed sessions have left their stream: it may have missed one.
func (x *Index) missed(ctx context.Context, o *opened) error {
	const often = time.Hour
	text, err := meta(ctx, o.read, keyUpdated)
	if err != nil {
		return err
	}
	last, err := time.Parse(time.RFC3339, text)
	if err == nil && time.Since(last) < often {
		return nil
	}
	return within(ctx, o.write, func(tx *sql.Tx) error {
		w := newWriter(ctx, tx)
		if err == nil && time.Since(last) > journal.RemovedAge-often {
			w.exec("UPDATE entry SET session = 0 WHERE session IN (SELECT id FROM session WHERE messages = 0)")
			w.exec("DELETE FROM call WHERE session IN (SELECT id FROM session WHERE messages = 0)")
			w.exec("DELETE FROM session WHERE messages = 0")
		}
		w.exec("DELETE FROM session WHERE messages = 0 AND removed > 0 AND removed < ?", time.Now().Add(-inFlight).UnixMilli())
		return errors.Join(w.close(), setMeta(ctx, tx, keyUpdated, time.Now().UTC().Format(time.RFC3339)))
	})
}

// errLook means that the server did not describe a stream.
var errLook = errors.New("look into stream")

func look(ctx context.Context, stream jetstream.Stream, options ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	info, err := stream.Info(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errLook, stream.CachedInfo().Config.Name, err)
	}
	return info, nil
}

// updateResults applies the results up to the last one of an earlier look. Those that have left
// their stream stay in the file.
func (x *Index) updateResults(ctx context.Context, o *opened, from source, info *jetstream.StreamInfo) error {
	position, _, err := begin(ctx, o, from, info, func(*sql.Tx) error { return nil })
	if err != nil || position >= info.State.LastSeq {
		return err
	}
	return x.apply(ctx, o, from, position, info.State.LastSeq)
}

func (x *Index) updateJournals(ctx context.Context, o *opened) error {
	info, err := look(ctx, x.stream)
	if err != nil {
		return err
	}
	var messages uint64
	position, info, err := begin(ctx, o, x.journals(), info, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT coalesce(sum(messages), 0) FROM session").Scan(&messages)
	})
	if err != nil {
		return err
	}
	// As long as no message has left the stream, its new ones are those behind the position.
	left := info.State.Msgs-messages != info.State.LastSeq-position
	if position < info.State.LastSeq {
		if err := x.apply(ctx, o, x.journals(), position, info.State.LastSeq); err != nil {
			return err
		}
	}
	if left {
		return x.reconcile(ctx, o)
	}
	return nil
}

// begin returns the position of a source, and calls more in the same transaction. If the stream is
// another one, or was restored, the file begins from scratch; without a journal it keeps its calls.
// Another process may have applied more than the description of the stream says: then begin returns
// a later one.
func begin(ctx context.Context, o *opened, from source, info *jetstream.StreamInfo, more func(tx *sql.Tx) error) (position uint64, _ *jetstream.StreamInfo, err error) {
	err = within(ctx, o.write, func(tx *sql.Tx) error {
		of, err := meta(ctx, tx, from.prefix+keyStream)
		if err != nil {
			return err
		}
		if position, err = positionOf(ctx, tx, from); err == nil && position > info.State.LastSeq {
			info, err = look(ctx, from.stream)
		}
		if err != nil {
			return err
		}
		if made := strconv.FormatInt(info.Created.UnixNano(), 10); of != made || position > info.State.LastSeq {
			position = 0
			if from.prefix == "" {
				err = empty(ctx, tx)
			}
			err = errors.Join(err, setMeta(ctx, tx, from.prefix+keyStream, made), setMeta(ctx, tx, from.prefix+keyPosition, "0"))
		}
		return errors.Join(err, more(tx))
	})
	return position, info, err
}

// journals are the source of all that was said.
func (x *Index) journals() source {
	return source{stream: x.stream, subject: wire.EventSubject(x.fleet, "*")}
}

// apply applies the messages behind a position, up to the last one.
func (x *Index) apply(ctx context.Context, o *opened, from source, position, last uint64) error {
	for position < last {
		next, err := x.read(ctx, o, from, position, last)
		if errors.Is(err, errBehind) {
			return nil // the next update begins there
		}
		if err != nil {
			return fmt.Errorf("message %d of %d: %w", next, last, err)
		}
		if next == position { // a server may be behind, or the last messages have left the stream
			msg, err := from.stream.GetMsg(ctx, position+1, jetstream.WithGetMsgSubject(from.subject))
			switch {
			case err == nil && msg.Sequence <= last:
				if !pause.For(ctx, pause.Retry) {
					return context.Cause(ctx)
				}
				continue
			case err != nil && !errors.Is(err, jetstream.ErrMsgNotFound):
				return err
			}
			return x.store(ctx, o, from, position, []message{{seq: last}})
		}
		position = next
	}
	return nil
}

// read applies the messages behind a position that a server has, up to the last one, and returns
// the new position. A later result may be of a session that begins again behind what was read of
// the journals.
func (x *Index) read(ctx context.Context, o *opened, from source, position, last uint64) (uint64, error) {
	var batch []message
	size, delivered := 0, uint64(0)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := x.store(ctx, o, from, position, batch)
		if err == nil {
			position, err = batch[len(batch)-1].seq, x.bound(ctx, o)
		}
		batch, size = batch[:0], 0
		return err
	}
	err := natsio.EachFrom(ctx, from.stream, []string{from.subject}, position+1, false, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if err != nil {
			return err
		}
		if delivered++; about.Sequence.Consumer != delivered {
			return errGap
		}
		if about.Sequence.Stream > last {
			return errEnough
		}
		batch = append(batch, from.message(msg.Subject(), about.Sequence.Stream, about.Timestamp, msg.Headers(), msg.Data()))
		if size += len(msg.Data()); len(batch) < batchMessages && size < batchBytes {
			return nil
		}
		return flush()
	})
	if err == nil || errors.Is(err, errGap) || errors.Is(err, errEnough) {
		err = flush()
	}
	return position, err
}

var (
	// errGap means that messages were lost between the server and this process, which reads them
	// again.
	errGap = errors.New("messages were lost on their way")
	// errEnough means that all messages were read that were asked for.
	errEnough = errors.New("the rest is for the next update")
)

// store applies messages behind a position, and stores the sequence of the last one as the new
// position, in one transaction. One without a session is only a position.
func (x *Index) store(ctx context.Context, o *opened, from source, position uint64, batch []message) error {
	return within(ctx, o.write, func(tx *sql.Tx) error {
		at, err := positionOf(ctx, tx, from)
		if err != nil {
			return err
		}
		if at < position { // another process has made the file again
			return errBehind
		}
		w := newWriter(ctx, tx)
		for i := range batch {
			if batch[i].seq > at && batch[i].session != "" { // else another process has applied it
				w.message(&batch[i])
			}
		}
		return errors.Join(w.close(), setMeta(ctx, tx, from.prefix+keyPosition, strconv.FormatUint(max(at, batch[len(batch)-1].seq), 10)))
	})
}

// errBehind means that another process has made the file again.
var errBehind = errors.New("the index begins from scratch")

// reconcile removes what has left the stream: sessions without messages, and the rows of those that
// have fewer, whose rest is read again.
func (x *Index) reconcile(ctx context.Context, o *opened) error {
	info, err := look(ctx, x.stream, jetstream.WithSubjectFilter(wire.EventSubject(x.fleet, "*")))
	if err != nil {
		return err
	}
	fewer, err := x.fewer(ctx, o, info.State.Subjects)
	for _, id := range fewer {
		if err == nil {
			err = x.reread(ctx, o, id)
		}
	}
	return err
}

// fewer returns the sessions that have fewer messages in the stream than in the file.
func (x *Index) fewer(ctx context.Context, o *opened, subjects map[string]uint64) (ids []protocol.SessionID, err error) {
	rows, err := o.read.QueryContext(ctx, "SELECT name, messages FROM session")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id protocol.SessionID
		var messages uint64
		if err := rows.Scan(&id, &messages); err != nil {
			return nil, err
		}
		if subjects[wire.EventSubject(x.fleet, id)] < messages {
			ids = append(ids, id)
		}
	}
	return ids, rows.Err()
}

// reread reads the journal of one session again, up to the position.
func (x *Index) reread(ctx context.Context, o *opened, id protocol.SessionID) error {
	var all []message
	for msg, err := range natsio.Messages(ctx, x.nc, x.stream, wire.EventSubject(x.fleet, id), 1) {
		if err != nil {
			return err
		}
		all = append(all, x.journals().message(msg.Subject, msg.Sequence, msg.Time, msg.Header, msg.Data))
	}
	return within(ctx, o.write, func(tx *sql.Tx) error {
		at, err := positionOf(ctx, tx, x.journals())
		if err != nil {
			return err
		}
		w := newWriter(ctx, tx)
		w.forget(id)
		for i := range all {
			if all[i].seq <= at {
				w.message(&all[i])
			}
		}
		return w.close()
	})
}

// Forget removes a session that was removed from the stream, without reading what is new there. No
// search finds it any more. Of a large session some text may stay in the file until the next
// updates.
func (x *Index) Forget(ctx context.Context, id protocol.SessionID) error {
	return x.change(ctx, func(o *opened) error {
		err := within(ctx, o.write, func(tx *sql.Tx) error {
			w := newWriter(ctx, tx)
			if s := w.session(id); s.messages == 0 {
				w.forget(id)
			} else { // the next update finds which of its messages have left the stream
				w.clear(s)
			}
			return w.close()
		})
		if err == nil {
			err = errors.Join(sweep(ctx, o, forgetTime), scrub(ctx, o))
		}
		return err
	})
}

// How long an update, and the removal of a session, overwrite texts of removed sessions, which no
// search finds. The next update continues. A text takes some ms: each of its words is looked up.
const (
	sweepTime  = 2 * time.Second
	forgetTime = 10 * time.Second
)

// sweep removes the texts of removed sessions.
func sweep(ctx context.Context, o *opened, most time.Duration) error {
	for begun := time.Now(); time.Since(begun) < most; {
		var left bool
		if err := o.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM entry WHERE session = 0)").Scan(&left); err != nil || !left {
			return err
		}
		err := within(ctx, o.write, func(tx *sql.Tx) error {
			w := newWriter(ctx, tx)
			w.remove("SELECT id, at, role, tool, body FROM entry WHERE session = 0 LIMIT ?", removeStep)
			return w.close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeStep is how many texts leave the file in one transaction, so that other processes can write
// in between. Removing a text takes some times as long as adding it.
const removeStep = 200

// bound removes the oldest texts and calls of a file that is too large, and some of those that are
// too old.
func (x *Index) bound(ctx context.Context, o *opened) error {
	age, bytes, err := x.bounds(ctx, o)
	if err != nil {
		return err
	}
	if age > 0 {
		before := time.Now().Add(-age).UnixMilli()
		for begun := time.Now(); time.Since(begun) < sweepTime; {
			if removed, err := removeOldest(ctx, o, before); err != nil || removed == 0 {
				return err
			}
		}
	}
	for {
		var pages, free, size int64
		for query, value := range map[string]*int64{"PRAGMA page_count": &pages, "PRAGMA freelist_count": &free, "PRAGMA page_size": &size} {
			if err := o.read.QueryRowContext(ctx, query).Scan(value); err != nil {
				return err
			}
		}
		if (pages-free)*size <= bytes {
			return nil
		}
		if removed, err := removeOldest(ctx, o, always); err != nil || removed == 0 {
			return err
		}
	}
}

// removeOldest removes some of what is oldest and before a time, and returns how much it was.
func removeOldest(ctx context.Context, o *opened, before int64) (removed int, err error) {
	err = within(ctx, o.write, func(tx *sql.Tx) error {
		w := newWriter(ctx, tx)
		removed = w.removeOldest(before)
		return w.close()
	})
	return removed, err
}

// bounds are those of the options, or else those that the last process named.
func (x *Index) bounds(ctx context.Context, o *opened) (age time.Duration, bytes int64, err error) {
	age, bytes = x.options.MaxAge, x.options.MaxBytes
	for key, value := range map[string]*int64{keyAge: (*int64)(&age), keyBytes: &bytes} {
		stored, err := meta(ctx, o.read, key)
		if err != nil {
			return 0, 0, err
		}
		named := strconv.FormatInt(*value, 10)
		switch {
		case *value == 0 && stored != "":
			if *value, err = strconv.ParseInt(stored, 10, 64); err != nil {
				return 0, 0, err
			}
		case *value != 0 && stored != named:
			if err := within(ctx, o.write, func(tx *sql.Tx) error { return setMeta(ctx, tx, key, named) }); err != nil {
				return 0, 0, err
			}
		}
	}
	return age, cmp.Or(bytes, defaultMaxBytes), nil
}

// scrub empties the log of writes if it has text that was removed. A search that still reads it
// leaves that to the next update.
func scrub(ctx context.Context, o *opened) error {
	flag, err := meta(ctx, o.write, keyScrub)
	if err != nil || flag == "" {
		return err
	}
	var busy, pages, moved int
	if err := o.write.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved); err != nil || busy != 0 {
		return err
	}
	_, err = o.write.ExecContext(ctx, "DELETE FROM meta WHERE key = ? AND value = ?", keyScrub, flag)
	return err
}

// queryer is a database, or a transaction.
type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// meta returns a value; "" without one.
func meta(ctx context.Context, from queryer, key string) (value string, err error) {
	err = from.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

func setMeta(ctx context.Context, tx *sql.Tx, key, value string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO meta VALUES(?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", key, value)
	return err
}

// positionOf is the sequence up to which messages of a source were applied.
func positionOf(ctx context.Context, tx *sql.Tx, from source) (uint64, error) {
	text, err := meta(ctx, tx, from.prefix+keyPosition)
	if err != nil || text == "" {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// empty removes all rows. Triggers would look at each.
func empty(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "DROP TRIGGER "+strings.Join(triggerNames, "; DROP TRIGGER ")+
		"; DELETE FROM entry; DELETE FROM call; DELETE FROM rate; DELETE FROM rate_time; DELETE FROM session; DELETE FROM meta WHERE key NOT IN ('bytes', 'age', 'seal'); INSERT INTO word(word) VALUES('delete-all');"+triggers())
	return errors.Join(err, setMeta(ctx, tx, keyScrub, stamp()), setMeta(ctx, tx, keyFile, newFile()))
}

// stamp is a value that no other removal has.
func stamp() string { return strconv.FormatInt(time.Now().UnixNano(), 10) }
