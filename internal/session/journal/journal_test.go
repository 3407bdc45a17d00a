package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// patience is for what surely comes.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, nc *nats.Conn) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), nc, protocol.DefaultFleet)
	require.NoError(t, err)
	return j
}

func mustLoad(t *testing.T, j *journal.Journal, id protocol.SessionID) loop.History {
	t.Helper()
	history, err := j.Load(t.Context(), id)
	require.NoError(t, err)
	return history
}

func mustAppend(t *testing.T, j *journal.Journal, id protocol.SessionID, last uint64, events ...loop.Event) uint64 {
	t.Helper()
	last, err := j.Append(t.Context(), id, last, events...)
	require.NoError(t, err)
	return last
}

func TestJournal(t *testing.T) {
	t.Parallel()
	looptest.RunJournal(t, func(t *testing.T) loop.Journal {
		t.Helper()
		return open(t, natsiotest.New(t, natsio.Topology{}).NC)
	})
}

// Three servers refuse a second writer also while they do not know yet whether they will keep the
// first one's append.
func TestJournal_OnThreeServers(t *testing.T) {
	t.Parallel()
	c := natsiotest.NewCluster(t)
	require.NoError(t, natsio.Ensure(t.Context(), c.JS, natsio.Topology{Fleet: protocol.DefaultFleet, Storage: natsio.Storage{Replicas: 3}}))
	looptest.RunJournal(t, func(t *testing.T) loop.Journal {
		t.Helper()
		return open(t, c.Connect())
	})
}

func event(session protocol.SessionID, text string) loop.Event {
	return loop.Event{Type: loop.EventModelReply, SessionID: session, Time: time.Now().UTC(), Text: text}
}

func TestOpen_WithoutStreams(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	_, err := journal.Open(t.Context(), f.NC, "nobody")
	require.ErrorContains(t, err, "NOBODY_SESSIONS")
}

func TestAppend_MoreThanAMessageHolds(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j := open(t, f.NC)
	session := protocol.NewSessionID()
	var events []loop.Event
	for i := range 3 { // together more than the server takes at once
		events = append(events, event(session, strings.Repeat(string(rune('a'+i)), int(f.NC.MaxPayload())/2)))
	}
	last := mustAppend(t, j, session, 0, events...)
	history := mustLoad(t, j, session)
	require.Equal(t, events, history.Events)
	require.Equal(t, last, history.Last)

	_, err := j.Append(t.Context(), session, last, event(session, strings.Repeat("x", int(f.NC.MaxPayload()))))
	require.ErrorIs(t, err, loop.ErrEventTooLarge)
	require.ErrorContains(t, err, "a message may have")
	_, err = j.Append(t.Context(), session, last-1, events...)
	require.ErrorIs(t, err, loop.ErrJournalConflict)
	again := mustLoad(t, j, session)
	require.Equal(t, history, again, "what was refused is not there, not even in part")
}

// together is a stream that gives some messages, and others when two are asked for at once.
type together struct {
	jetstream.Stream

	some     uint64
	inFlight atomic.Int32
	once     sync.Once
	two      chan struct{}
}

func (s *together) GetMsg(ctx context.Context, seq uint64, options ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	defer s.inFlight.Add(-1)
	if s.inFlight.Add(1) == 2 {
		s.once.Do(func() { close(s.two) })
	}
	if seq > s.some {
		select {
		case <-s.two:
		case <-time.After(patience):
			return nil, errors.New("no other message was asked for at the same time")
		}
	}
	return s.Stream.GetMsg(ctx, seq, options...)
}

// TestLoad_ReadsManyMessagesAtOnce: a journal is read by many requests at the same time, also where
// messages of other sessions are between its own.
func TestLoad_ReadsManyMessagesAtOnce(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j := open(t, f.NC)
	last := map[protocol.SessionID]uint64{}
	var want []loop.Event
	for i := range 100 {
		for _, id := range []protocol.SessionID{"one", "other", "another"} {
			e := event(id, fmt.Sprintf("%s %d", id, i))
			last[id] = mustAppend(t, j, id, last[id], e)
			if id == "one" {
				want = append(want, e)
			}
		}
	}
	j.ReadFrom(func(s jetstream.Stream) jetstream.Stream {
		return &together{Stream: s, some: 30, two: make(chan struct{})}
	})
	history := mustLoad(t, j, "one")
	require.Equal(t, want, history.Events)
	require.Equal(t, last["one"], history.Last)
}

func TestAppend_AnAnswerThatIsLostIsSettled(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for name, others := range map[string]bool{"mine": false, "somebody else's": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc, link := f.ConnectVia()
			j := open(t, nc)
			session := protocol.NewSessionID()
			first := mustAppend(t, j, session, 0, event(session, "first"))
			link.Deafen()
			type answer struct {
				last uint64
				err  error
			}
			done := make(chan answer, 1)
			if others {
				_, err := open(t, f.NC).Append(t.Context(), session, first, event(session, "theirs"))
				require.NoError(t, err)
			}
			go func() {
				last, err := j.Append(t.Context(), session, first, event(session, "second"))
				done <- answer{last, err}
			}()
			var history loop.History
			require.Eventually(t, func() bool {
				read, err := open(t, f.NC).Load(t.Context(), session)
				history = read
				return err == nil && len(history.Events) == 2
			}, patience, time.Millisecond)
			link.Mend()
			got := <-done
			if others {
				require.ErrorIs(t, got.err, loop.ErrJournalConflict)
			} else {
				require.NoError(t, got.err)
				require.Equal(t, history.Last, got.last)
			}
			after := mustLoad(t, j, session)
			require.Equal(t, history, after, "nothing is stored twice")
		})
	}
}

// What the client refuses to send is refused at once, and not tried again for ever.
func TestAppend_WhatCannotBeSentIsRefused(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	_, err := open(t, f.NC).Append(t.Context(), "two words", 0, event("two words", "first"))
	require.ErrorIs(t, err, nats.ErrBadSubject)
}

// An image that fits into no message goes through the object store, and comes back.
func TestAppend_KeepsAnImageThatDoesNotFit(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j := open(t, f.NC)
	session := protocol.NewSessionID()
	small, large := event(session, "small"), event(session, "large")
	small.Image = &loop.Image{MediaType: "image/png", Data: []byte{1}}
	large.Image = &loop.Image{MediaType: "image/png", Data: make([]byte, f.NC.MaxPayload())}
	mustAppend(t, j, session, 0, small, large)
	history := mustLoad(t, j, session)
	require.Len(t, history.Events, 2)
	require.Equal(t, small.Image, history.Events[0].Image)
	require.Equal(t, large.Image.Data, history.Events[1].Image.Data)
	require.NotEmpty(t, large.Image.Data, "the caller's event is as it was")
	require.Empty(t, large.Image.Blob)
	require.Equal(t, large.Text, history.Events[1].Text)

	// Once it is kept no more, its text is all there is.
	js, err := jetstream.New(f.NC, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	store, err := js.ObjectStore(t.Context(), wire.KeptBucket(protocol.DefaultFleet))
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), history.Events[1].Image.Blob))
	history = mustLoad(t, j, session)
	require.Empty(t, history.Events[1].Image.Data)
	require.Equal(t, large.Text, history.Events[1].Text)
}

// Attachments that fit into no message go through the object store as well, those of a fork under
// the fork's own name. Without room for them the event is refused.
func TestAppend_KeepsAttachmentsThatDoNotFit(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{Storage: natsio.Storage{KeepBytes: 30 << 20}})
	j := open(t, f.NC)
	e := loop.Event{Type: loop.EventTurnStarted, Turn: 1}
	for i := range 3 {
		e.Attachments = append(e.Attachments, loop.Attachment{
			ID: fmt.Sprint(i), Name: "a.png", Image: loop.Image{MediaType: "image/png", Data: bytes.Repeat([]byte{byte(i)}, 4<<20)},
		})
	}
	var loaded loop.Event
	for i, session := range []protocol.SessionID{"a", "b"} {
		from := e
		if i > 0 {
			from = loaded
		}
		mustAppend(t, j, session, 0, from)
		history := mustLoad(t, j, session)
		loaded = history.Events[0]
		for k := range e.Attachments {
			require.Equal(t, e.Attachments[k].Data, loaded.Attachments[k].Data)
			require.Equal(t, e.Attachments[k].Name, loaded.Attachments[k].Name)
			require.Contains(t, loaded.Attachments[k].Blob, "/"+string(session)+"/")
			require.Empty(t, e.Attachments[k].Blob, "the caller's event is as it was")
		}
	}
	_, err := j.Append(t.Context(), "c", 0, e)
	require.ErrorIs(t, err, &protocol.Error{Code: protocol.CodeFleetFull})
}

func TestAppend_WaitsForTheServer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc, link := f.ConnectVia()
	j := open(t, nc)
	session := protocol.NewSessionID()
	link.Cut()
	require.Eventually(t, func() bool { return !nc.IsConnected() }, patience, time.Millisecond)
	done := make(chan error, 1)
	go func() {
		_, err := j.Append(t.Context(), session, 0, event(session, "kept"))
		done <- err
	}()
	link.Mend()
	require.NoError(t, <-done)
	history := mustLoad(t, j, session)
	require.Len(t, history.Events, 1)
}

func TestAppend_FailsOnAConnectionThatIsClosed(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc := f.Connect()
	j := open(t, nc)
	nc.Close()
	_, err := j.Append(t.Context(), "s", 0, event("s", "lost"))
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	_, err = j.Load(t.Context(), "s")
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}

// Begin says whose a session is, as Load does, whatever became of it, and reads no more of a long
// journal than of a short one.
func TestBegin_IsTheOwnerThatLoadFinds(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j := open(t, f.NC)
	const id = "s"
	requests := 0
	check := func(state string) {
		t.Helper()
		want, wantErr := j.Load(t.Context(), id)
		before := f.NC.Stats().OutMsgs
		got, err := j.Begin(t.Context(), id)
		requests = int(f.NC.Stats().OutMsgs - before)
		require.Equal(t, wantErr, err, state)
		require.Equal(t, want.Owned(), got.Owned(), state)
		require.Equal(t, want.Tenant(), got.Tenant(), state)
		require.Equal(t, want.By(), got.By(), state)
		require.Equal(t, len(want.Events) > 0, len(got.Events) > 0, state)
	}
	started := func(by string) loop.Event {
		return loop.Event{Type: loop.EventSessionStarted, SessionID: id, StartFields: loop.StartFields{Tenant: "acme"}, NoteFields: loop.NoteFields{By: by}}
	}
	check("there is none")
	last := mustAppend(t, j, id, 0, started("token:ann"))
	for range 50 {
		last = mustAppend(t, j, id, last, event(id, "text"))
	}
	check("it is long")
	require.LessOrEqual(t, requests, 2)
	require.NoError(t, j.Mark(t.Context(), id))
	check("it is being removed")
	_, err := j.Forget(t.Context(), id, journal.RemovedAge)
	require.NoError(t, err)
	check("it was removed")
	mustAppend(t, j, id, mustLoad(t, j, id).Last, started("token:bob"), event(id, "text"))
	check("another one has its name")
	require.LessOrEqual(t, requests, 3)
	require.NoError(t, j.Mark(t.Context(), id))
	_, err = j.Forget(t.Context(), id, 0)
	require.NoError(t, err)
	check("it was removed without a record")
	mark := loop.Event{
		Type: loop.EventCopyStarted, SessionID: id, StartFields: loop.StartFields{Tenant: "acme"},
		CallFields: loop.CallFields{CallID: "c"}, NoteFields: loop.NoteFields{By: "token:cid"},
	}
	last = mustAppend(t, j, id, mustLoad(t, j, id).Last, mark)
	check("a fork is not completed")
	mark.By = "token:dan"
	last = mustAppend(t, j, id, last, mark)
	check("another attempt")
	completed := loop.Event{Type: loop.EventSessionForked, SessionID: id, CallFields: loop.CallFields{CallID: "c"}}
	last = mustAppend(t, j, id, last, started("token:dan"), event(id, "text"), completed)
	check("it is completed")
	mustAppend(t, j, id, last, event(id, "text"))
	check("it continues")
	require.NoError(t, j.MarkAlone(t.Context(), id))
	check("only a mark is left")
	_, err = j.Forget(t.Context(), id, 0)
	require.NoError(t, err)
	mustAppend(t, j, id, 0, event(id, "of an earlier version"))
	check("nothing says whose it is")
}

func TestLoad_NamesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	j := open(t, f.NC)
	_, err := f.JS.Publish(t.Context(), wire.EventSubject(f.Name, "s"), []byte("{"))
	require.NoError(t, err)
	_, err = j.Load(t.Context(), "s")
	require.ErrorContains(t, err, "session s, message 1")
	require.ErrorIs(t, err, loop.ErrJournalInvalid, "nobody tries again")
}

// Where no more is kept a picture is left out, and the session goes on.
func TestAppend_AnImageThatIsNotKept(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{Storage: natsio.Storage{KeepBytes: 1 << 20}})
	j := open(t, f.NC)
	session := protocol.NewSessionID()
	e := event(session, "look")
	e.Image = &loop.Image{MediaType: "image/png", Data: make([]byte, f.NC.MaxPayload())}
	mustAppend(t, j, session, 0, e)
	history := mustLoad(t, j, session)
	require.Len(t, history.Events, 1)
	require.Equal(t, &loop.Image{MediaType: "image/png"}, history.Events[0].Image)
	require.Equal(t, "look", history.Events[0].Text)
}

// What was read before a removal, also an empty journal, is no ground to append on: the record of
// the removal stays, for its age, and only a process that has read it begins the session again.
func TestForget_FencesWhatWasReadBefore(t *testing.T) {
	t.Parallel()
	nc := natsiotest.New(t, natsio.Topology{}).NC
	j := open(t, nc)
	var err error
	for _, messages := range []uint64{0, 3} {
		id := protocol.SessionID(fmt.Sprintf("s-%d", messages))
		var last uint64
		for range messages {
			last = mustAppend(t, j, id, last, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
		}
		before := j.Now(t.Context())
		require.NoError(t, j.CheckCall(t.Context(), id))
		require.NoError(t, j.Mark(t.Context(), id))
		require.ErrorContains(t, j.CheckCall(t.Context(), id), "session "+string(id)+" is being removed")
		removed, err := j.Forget(t.Context(), id, journal.RemovedAge)
		require.NoError(t, err)
		require.Equal(t, messages, removed)
		_, err = j.Append(t.Context(), id, last, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
		require.ErrorIs(t, err, loop.ErrJournalConflict)

		require.ErrorContains(t, j.CheckCall(t.Context(), id), "session "+string(id)+" was removed")

		history := mustLoad(t, j, id)
		require.Empty(t, history.Events)
		require.True(t, history.Removed.Outlived(before, time.Time{}) || before == 0)
		require.False(t, history.Removed.Outlived(j.Now(t.Context()), time.Time{}))
		require.True(t, history.Removed.Outlived(0, history.Removed.At.Add(-time.Second)), "without a sequence the time decides")
		require.False(t, history.Removed.Outlived(0, history.Removed.At.Add(time.Second)))
		mustAppend(t, j, id, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
		again := mustLoad(t, j, id)
		require.Len(t, again.Events, 1)
		require.NoError(t, j.CheckCall(t.Context(), id))
		require.Equal(t, history.Removed, again.Removed, "requests that were made before it are still refused")

		require.NoError(t, j.Mark(t.Context(), id))
		removed, err = j.Forget(t.Context(), id, journal.RemovedAge)
		require.NoError(t, err)
		require.EqualValues(t, 1, removed)
		removed, err = j.Forget(t.Context(), id, journal.RemovedAge)
		require.NoError(t, err)
		require.Zero(t, removed)
	}
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), wire.SessionsStream("tf"))
	require.NoError(t, err)
	record, err := stream.GetLastMsgForSubject(t.Context(), wire.EventSubject("tf", "s-3"))
	require.NoError(t, err)
	age, err := time.ParseDuration(record.Header.Get(jetstream.MsgTTLHeader))
	require.NoError(t, err)
	require.Equal(t, journal.RemovedAge, age)
	require.EqualValues(t, 2, stream.CachedInfo().State.Msgs, "one message is left of each session")
}

// A process that completes a removal late, behind another one, removes nothing of the session that
// has begun again.
func TestForget_LeavesWhatHasBegunAgain(t *testing.T) {
	t.Parallel()
	j := open(t, natsiotest.New(t, natsio.Topology{}).NC)
	for _, age := range []time.Duration{journal.RemovedAge, 0} {
		id := protocol.SessionID("s-" + age.String())
		mustAppend(t, j, id, 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
		_, err := j.Forget(t.Context(), id, age)
		require.ErrorIs(t, err, journal.ErrBegunAgain, "it has no mark")
		require.NoError(t, j.Mark(t.Context(), id))
		removed, err := j.Forget(t.Context(), id, age)
		require.NoError(t, err)
		require.EqualValues(t, 1, removed)
		removed, err = j.Forget(t.Context(), id, age)
		require.NoError(t, err)
		require.Zero(t, removed)
		history := mustLoad(t, j, id)
		require.Equal(t, age > 0, history.Removed.Sequence > 0)
		mustAppend(t, j, id, history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
		_, err = j.Forget(t.Context(), id, age)
		require.ErrorIs(t, err, journal.ErrBegunAgain)
		history = mustLoad(t, j, id)
		require.Len(t, history.Events, 1)
	}
}

// A stream of an earlier version stores no such records, and the session is removed all the same.
func TestForget_InAStreamOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	nc := natsiotest.New(t, natsio.Topology{}).NC
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), wire.SessionsStream("tf"))
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	require.NoError(t, js.DeleteStream(t.Context(), config.Name))
	config.AllowMsgTTL, config.AllowRollup = false, false
	_, err = js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	j := open(t, nc)
	mustAppend(t, j, "s", 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
	require.NoError(t, j.Mark(t.Context(), "s"))
	_, err = j.Forget(t.Context(), "s", journal.RemovedAge)
	require.NoError(t, err)
	history := mustLoad(t, j, "s")
	require.Zero(t, history.Last)

	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{Fleet: "tf"}), "a process of this version edits the stream")
	require.NoError(t, j.Mark(t.Context(), "s"))
	_, err = j.Forget(t.Context(), "s", journal.RemovedAge)
	require.NoError(t, err)
	history = mustLoad(t, j, "s")
	require.NotZero(t, history.Removed.Sequence)
}
