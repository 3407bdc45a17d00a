package natsio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func api(code int, number jetstream.ErrorCode, description string) error {
	return fmt.Errorf("publish: %w", &jetstream.APIError{Code: code, ErrorCode: number, Description: description})
}

// Each error of a write has an outcome, and says whether another try makes sense. What is not known
// for certain to be stored or not is unknown.
func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		err        error
		outcome    natsio.Outcome
		repeatable bool
	}{
		"stored":                        {nil, natsio.Acknowledged, false},
		"another message is there":      {api(400, jetstream.JSErrCodeStreamWrongLastSequence, "wrong last sequence: 3"), natsio.Conflict, false},
		"the subject has its message":   {api(503, natsio.CodeStoreFailed, "maximum messages per subject exceeded"), natsio.Conflict, false},
		"a key exists":                  {fmt.Errorf("create: %w", jetstream.ErrKeyExists), natsio.Conflict, false},
		"another message is on its way": {api(400, jetstream.JSErrCodeStreamWrongLastSequenceConstant, "wrong last sequence"), natsio.Unknown, true},
		"and the client calls it a key": {
			fmt.Errorf("%w: %w", api(400, jetstream.JSErrCodeStreamWrongLastSequenceConstant, ""), jetstream.ErrKeyExists), natsio.Unknown, true,
		},
		"no leader":                       {api(503, 10008, "JetStream system temporarily unavailable"), natsio.Unknown, true},
		"the stream is full":              {api(503, natsio.CodeStoreFailed, "maximum bytes exceeded"), natsio.NotStored, false},
		"the server is full":              {api(503, 10023, "insufficient resources"), natsio.NotStored, false},
		"the disk is full":                {api(503, natsio.CodeStoreFailed, "write: no space left on device"), natsio.NotStored, false},
		"the store failed":                {api(503, natsio.CodeStoreFailed, "write: input/output error"), natsio.NotStored, true},
		"the stream is sealed":            {api(400, 10109, "invalid operation on sealed stream"), natsio.NotStored, false},
		"no stream":                       {jetstream.ErrNoStreamResponse, natsio.NotStored, true},
		"no responders":                   {nats.ErrNoResponders, natsio.NotStored, true},
		"no connection":                   {nats.ErrDisconnected, natsio.NotStored, true},
		"too large":                       {nats.ErrMaxPayload, natsio.NotStored, false},
		"not sent":                        {natsio.NotSent(nats.ErrTimeout), natsio.NotStored, false},
		"no answer":                       {nats.ErrTimeout, natsio.Unknown, true},
		"time is up":                      {context.DeadlineExceeded, natsio.Unknown, true},
		"the connection is closed":        {nats.ErrConnectionClosed, natsio.Unknown, false},
		"the answer is no answer":         {jetstream.ErrInvalidJSAck, natsio.Unknown, true},
		"unknown, whatever was said last": {fmt.Errorf("%w: %w", natsio.ErrUnknown, api(400, 10109, "sealed")), natsio.Unknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, want.outcome, natsio.OutcomeOf(want.err))
			require.Equal(t, want.repeatable, natsio.Repeatable(want.err))
		})
	}
}

// The laws of UntilKnown: tries end in what the table says, and what may be stored is never
// returned as not stored.
func TestUntilKnown(t *testing.T) {
	t.Parallel()
	lost, full := nats.ErrTimeout, api(503, natsio.CodeStoreFailed, "maximum bytes exceeded")
	taken, none := api(400, jetstream.JSErrCodeStreamWrongLastSequence, ""), jetstream.ErrNoStreamResponse
	type look struct {
		there bool
		err   error
	}
	for name, test := range map[string]struct {
		tries []error // in this order; behind the last one the context ends
		looks []look
		want  natsio.Outcome
	}{
		"stored":                                {[]error{nil}, nil, natsio.Acknowledged},
		"lost, then stored":                     {[]error{lost, lost, nil}, nil, natsio.Acknowledged},
		"no server, then stored":                {[]error{none, nil}, nil, natsio.Acknowledged},
		"no server, until the end":              {[]error{none, none}, nil, natsio.NotStored},
		"refused":                               {[]error{full}, nil, natsio.NotStored},
		"a conflict that is another's":          {[]error{taken}, nil, natsio.Conflict},
		"lost, then its own conflict":           {[]error{lost, taken}, []look{{there: true}}, natsio.Acknowledged},
		"lost, then another's conflict":         {[]error{lost, taken}, []look{{}}, natsio.Conflict},
		"lost, then refused, and it is there":   {[]error{lost, full}, []look{{there: true}}, natsio.Acknowledged},
		"lost, then refused, and is not":        {[]error{lost, full}, []look{{}}, natsio.NotStored},
		"lost, no server, and it is there":      {[]error{lost, none}, []look{{there: true}}, natsio.Acknowledged},
		"lost, no server, not there, stored":    {[]error{lost, none, nil}, []look{{}}, natsio.Acknowledged},
		"lost, no server, not there":            {[]error{lost, none}, []look{{}}, natsio.Unknown},
		"lost, no server, another's conflict":   {[]error{lost, none, taken}, []look{{}, {}}, natsio.Conflict},
		"lost, refused, the look is lost once":  {[]error{lost, taken, taken}, []look{{err: lost}, {there: true}}, natsio.Acknowledged},
		"lost, refused, the look is lost":       {[]error{lost, taken}, []look{{err: lost}}, natsio.Unknown},
		"lost, refused, nobody can look":        {[]error{lost, full}, nil, natsio.Unknown},
		"lost, until the end":                   {[]error{lost, lost}, nil, natsio.Unknown},
		"the connection is closed":              {[]error{nats.ErrConnectionClosed}, nil, natsio.Unknown},
		"lost, refused, closed before the look": {[]error{lost, taken}, []look{{err: nats.ErrConnectionClosed}}, natsio.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var isThere func(context.Context) (bool, error)
			if test.looks != nil {
				isThere = func(ctx context.Context) (bool, error) {
					require.NoError(t, ctx.Err(), "a look has its own time")
					next := test.looks[0]
					test.looks = test.looks[1:]
					return next.there, next.err
				}
			}
			err := natsio.UntilKnown(ctx, func(context.Context) error {
				next := test.tries[0]
				if test.tries = test.tries[1:]; len(test.tries) == 0 {
					end()
				}
				return next
			}, isThere)
			require.Equal(t, test.want, natsio.OutcomeOf(err), err)
			require.Equal(t, test.want == natsio.Unknown, errors.Is(err, natsio.ErrUnknown))
			require.Empty(t, test.tries)
			require.Empty(t, test.looks)
		})
	}
}

// Whatever becomes of the first message, on a real server: it is stored once in the end, or the
// writer that was first is.
func TestUntilKnown_OfAServer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	stream := mustStream(t, f.JS, wire.SessionsStream(f.Name))
	for name, fate := range map[string]natsiotest.Fate{
		"passes": natsiotest.Passes, "lost": natsiotest.Lost, "unanswered": natsiotest.Unanswered,
		"unavailable": natsiotest.Refused, "unavailable, and stored": natsiotest.Made,
	} {
		for _, other := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another writer %v", name, other), func(t *testing.T) {
				t.Parallel()
				nc, link := f.ConnectVia()
				js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(100*time.Millisecond))
				require.NoError(t, err)
				subject := wire.EventSubject(f.Name, protocol.NewSessionID())
				if other {
					_, err := f.JS.Publish(t.Context(), subject, []byte("theirs"))
					require.NoError(t, err)
				}
				first := true
				link.OnWrite(func(to string) natsiotest.Fate {
					if to != subject || !first {
						return natsiotest.Passes
					}
					first = false
					return fate
				})
				err = natsio.UntilKnown(t.Context(), func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
					defer cancel()
					_, err := js.Publish(ctx, subject, []byte("mine"), jetstream.WithExpectLastSequencePerSubject(0))
					return err
				}, func(ctx context.Context) (bool, error) {
					msg, err := stream.GetLastMsgForSubject(ctx, subject)
					if errors.Is(err, jetstream.ErrMsgNotFound) {
						return false, nil
					}
					return err == nil && string(msg.Data) == "mine", err
				})
				want, content := natsio.Acknowledged, "mine"
				if other {
					want, content = natsio.Conflict, "theirs"
				}
				require.Equal(t, want, natsio.OutcomeOf(err), err)
				info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject))
				require.NoError(t, err)
				require.EqualValues(t, 1, info.State.Subjects[subject])
				msg, err := stream.GetLastMsgForSubject(t.Context(), subject)
				require.NoError(t, err)
				require.Equal(t, content, string(msg.Data))
			})
		}
	}
}

// Law: the server counts what a tenant stores, and no more what was removed.
func TestStored(t *testing.T) {
	t.Parallel()
	const mebibyte = 1 << 20
	f := natsiotest.New(t, natsio.Topology{})
	acme := natsio.StoredBy(t.Context(), "acme")
	stored := func(tenant protocol.Tenant) int64 {
		t.Helper()
		require.NoError(t, f.NC.Flush())
		n, _, err := natsio.Stored(t.Context(), f.NC, tf, tenant)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, stored("acme"))

	_, err := natsio.PutObject(acme, f.JS, wire.KeptBucket(tf), "text/s/1", bytes.NewReader(make([]byte, mebibyte)))
	require.NoError(t, err)
	_, err = natsio.PutObject(wire.WithFlow(t.Context(), "acme", ""), f.JS, wire.BodiesBucket(tf), "body", bytes.NewReader(make([]byte, mebibyte)))
	require.NoError(t, err)
	mustPut(t, f.JS, wire.KeptBucket(tf), "text/s/2", bytes.NewReader(make([]byte, mebibyte)))
	require.EqualValues(t, 2*mebibyte, stored("acme"))
	require.EqualValues(t, mebibyte, stored(wire.DefaultTenant))
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.KeptBucket(tf), "text/s/1"))
	require.EqualValues(t, mebibyte, stored("acme"))

	for _, session := range []protocol.SessionID{"one", "two"} {
		natsio.MarkJournal(acme, f.NC, tf, session, 2*mebibyte)
	}
	require.Eventually(t, func() bool { return stored("acme") == 5*mebibyte }, time.Minute, 10*time.Millisecond)
	require.NoError(t, natsio.RemoveJournalMarks(t.Context(), f.JS, tf, "one"))
	require.EqualValues(t, 3*mebibyte, stored("acme"))

	natsio.MarkResult(f.NC, tf, "acme", mebibyte)
	require.Eventually(t, func() bool { return stored("acme") == 4*mebibyte }, time.Minute, 10*time.Millisecond)
	_, oldest, err := natsio.Stored(t.Context(), f.NC, tf, "acme")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), oldest, time.Minute)
}

// Law: small objects and messages count as what they have, on average.
func TestStored_SmallOnesCountAsTheyAre(t *testing.T) {
	t.Parallel()
	const small, each = 16 << 10, 400 // 50 chunks each, with a standard deviation of 6.6
	f := natsiotest.New(t, natsio.Topology{})
	ctx := natsio.StoredBy(t.Context(), "acme")
	for i := range each {
		_, err := natsio.PutObject(ctx, f.JS, wire.KeptBucket(tf), "text/s/"+strconv.Itoa(i), bytes.NewReader(make([]byte, small)))
		require.NoError(t, err)
		natsio.MarkResult(f.NC, tf, "acme", small)
	}
	require.NoError(t, f.NC.Flush())
	n, _, err := natsio.Stored(ctx, f.NC, tf, "acme")
	require.NoError(t, err)
	require.InDelta(t, 2*each*small, n, 60*128<<10, "six times the standard deviation")
}

// TestBlobs_RemoveWhereThereIsNoRoom: it makes room, which calls with large payloads wait for.
func TestBlobs_RemoveWhereThereIsNoRoom(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	body := bytes.Repeat([]byte("x"), 300<<10)
	stored, err := blobs.Put(t.Context(), "call/s", body)
	require.NoError(t, err)

	stream := mustStream(t, f.JS, natsio.ObjectStream(wire.BlobsBucket(f.Name)))
	full := stream.CachedInfo().Config
	full.MaxBytes, full.Discard = int64(stream.CachedInfo().State.Bytes), jetstream.DiscardNew
	stream, err = f.JS.UpdateStream(t.Context(), full)
	require.NoError(t, err)
	_, err = blobs.Put(t.Context(), "call/s", body)
	require.ErrorIs(t, err, natsio.ErrFull)

	blobs.Remove(t.Context(), stored)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)
	_, err = blobs.Get(t.Context(), stored)
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	_, err = blobs.Put(t.Context(), "call/s", body)
	require.NoError(t, err)
}

// A result whose attempts each failed with a long text still arrives, with both ends of each.
func TestBlobs_EncodeResultShortensTheErrorsOfAttempts(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	long := &protocol.Error{Code: protocol.CodeToolFailed, Message: "start" + strings.Repeat("x", 200<<10) + "end"}
	r := protocol.Result{
		CallID: "c", SessionID: protocol.NewSessionID(), Status: protocol.StatusFailed, Error: long,
	}
	for i := range 10 {
		r.Tries = append(r.Tries, protocol.Try{Attempt: i + 1, Error: long})
	}
	body, err := blobs.EncodeResult(t.Context(), &r)
	require.NoError(t, err)
	require.False(t, blobs.TooLarge(body))
	read, err := wire.DecodeResult(body)
	require.NoError(t, err)
	require.Len(t, read.Tries, 10)
	for _, try := range read.Tries {
		require.True(t, strings.HasPrefix(try.Error.Message, "start") && strings.HasSuffix(try.Error.Message, "end"))
	}
	require.Equal(t, long, r.Tries[0].Error, "the result itself stays whole")
}

// A bucket that somebody removes is found to be gone also by who has read from it: a result is had
// without its value.
func TestBlobs_ABucketThatIsGone(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	stored, err := blobs.Put(t.Context(), "result/s", []byte(`{}`))
	require.NoError(t, err)
	_, err = blobs.Get(t.Context(), stored)
	require.NoError(t, err)
	require.NoError(t, f.JS.DeleteObjectStore(t.Context(), wire.BlobsBucket(f.Name)))
	_, err = blobs.Get(t.Context(), stored)
	require.Error(t, err)
	_, err = blobs.Get(t.Context(), stored)
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	r := &protocol.Result{Value: stored}
	require.NoError(t, blobs.Value(t.Context(), r))
	require.Nil(t, r.Value)
}
