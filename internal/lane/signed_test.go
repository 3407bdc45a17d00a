package lane_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// result enqueues a call, and returns its result.
func (f *fleet) result(p *lane.Publisher, call *protocol.Call) *protocol.Result {
	f.t.Helper()
	put(f.t, p, call)
	return f.await(p, call)
}

// A worker with keys runs what their owners enqueue, as the ready message and from the mailbox, and
// nothing that others make up: without a signature, with a key of their own, another content, or a
// call of before.
func TestSigned_NothingElseIsRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	ours, theirs := t.TempDir(), t.TempDir()
	signer, err := signing.Make(ours)
	require.NoError(t, err)
	stranger, err := signing.Make(theirs)
	require.NoError(t, err)
	keys, err := signing.Open(filepath.Join(ours, signing.PublicFile))
	require.NoError(t, err)
	f.hold(succeeds, lane.Options{Worker: "w", Keys: keys})
	p := f.publisher()

	sign := func(s *signing.Signer, fleet protocol.Fleet, body []byte, at time.Time) string {
		value, err := s.Sign(fleet, body, at)
		require.NoError(t, err)
		return value
	}
	send := func(call *protocol.Call, change func(*nats.Msg)) *protocol.Result {
		msg := messageOf(t, wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
		msg.Header.Set(wire.HeaderSigned, sign(signer, protocol.DefaultFleet, msg.Data, time.Now()))
		change(msg)
		_, err := f.js.PublishMsg(t.Context(), msg)
		require.NoError(t, err)
		put(t, p, newCall("s", exclusive(string(call.Resources[0].Key)))) // makes the lane ready
		return f.await(p, call)
	}
	p.Signer = signer
	require.Equal(t, protocol.StatusOK, f.result(p, newCall("s", exclusive("a/ready"))).Status)
	require.Equal(t, protocol.StatusOK, send(newCall("s", exclusive("a/mailbox")), func(*nats.Msg) {}).Status)

	for name, c := range map[string]struct {
		change func(*nats.Msg)
		says   string
	}{
		"none":        {func(m *nats.Msg) { m.Header.Del(wire.HeaderSigned) }, "is not signed"},
		"of a worker": {func(m *nats.Msg) { m.Header.Set(wire.HeaderSigned, sign(stranger, "tf", m.Data, time.Now())) }, "which the worker does not trust"},
		"another content": {func(m *nats.Msg) {
			m.Data = []byte(strings.Replace(string(m.Data), `"session_id":"s"`, `"session_id":"s" `, 1))
		}, "does not match its content"},
		"another fleet": {func(m *nats.Msg) { m.Header.Set(wire.HeaderSigned, sign(signer, "other", m.Data, time.Now())) }, "does not match its content"},
		"of before": {func(m *nats.Msg) {
			m.Header.Set(wire.HeaderSigned, sign(signer, "tf", m.Data, time.Now().Add(-signing.Window-time.Minute)))
		}, "it is a copy"},
		"no signature": {func(m *nats.Msg) { m.Header.Set(wire.HeaderSigned, "a b c") }, "has another form"},
		"a signature cut short": {func(m *nats.Msg) {
			value := m.Header.Get(wire.HeaderSigned)
			m.Header.Set(wire.HeaderSigned, value[:len(value)-8])
		}, "has another form"},
		"another root": {func(m *nats.Msg) { // which a stranger signs in the name of the key
			value := strings.Fields(sign(stranger, "tf", m.Data, time.Now()))
			value[0] = strings.Fields(m.Header.Get(wire.HeaderSigned))[0]
			m.Header.Set(wire.HeaderSigned, strings.Join(value, " "))
		}, "does not match its key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := send(newCall("s", exclusive("b/"+name)), c.change)
			require.Equal(t, protocol.StatusRejected, r.Status)
			require.Equal(t, codes.NotSigned, r.Error.Code)
			require.Contains(t, r.Error.Message, c.says)
		})
	}
}

// Keys change while workers run: with both in the file each is taken, then the new one alone.
func TestSigned_KeysChange(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	before, after := t.TempDir(), t.TempDir()
	old, err := signing.Make(before)
	require.NoError(t, err)
	next, err := signing.Make(after)
	require.NoError(t, err)
	read := func(dir string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, signing.PublicFile))
		require.NoError(t, err)
		return content
	}
	file := filepath.Join(t.TempDir(), "keys.pem")
	stamp := time.Now().Add(-time.Hour)
	write := func(content ...[]byte) {
		var all []byte
		for _, one := range content {
			all = append(all, one...)
		}
		require.NoError(t, os.WriteFile(file, all, 0o600))
		stamp = stamp.Add(time.Second)
		require.NoError(t, os.Chtimes(file, stamp, stamp))
	}
	write(read(before))
	keys, err := signing.Open(file)
	require.NoError(t, err)
	f.hold(succeeds, lane.Options{Worker: "w", Keys: keys})
	p := f.publisher()
	status := func(s *signing.Signer) protocol.Status {
		p.Signer = s
		return f.result(p, newCall("s", exclusive("a/1"))).Status
	}
	require.Equal(t, protocol.StatusOK, status(old))
	require.Equal(t, protocol.StatusRejected, status(next))
	write(read(before), read(after))
	require.Eventually(t, func() bool { return status(next) == protocol.StatusOK }, patience, 100*time.Millisecond)
	require.Equal(t, protocol.StatusOK, status(old))
	write(read(after))
	require.Eventually(t, func() bool { return status(old) == protocol.StatusRejected }, patience, 100*time.Millisecond)
	require.Equal(t, protocol.StatusOK, status(next))
}

// A payload that is stored apart is the one that was signed.
func TestSigned_PayloadThatIsStoredApart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	signer, err := signing.Make(t.TempDir())
	require.NoError(t, err)
	p := f.publisher()
	p.Signer = signer
	call := newCall("s", exclusive("a/1"))
	call.Payload = protocol.CommandRun{Command: "true # " + strings.Repeat("x", int(f.nc.MaxPayload()))}
	put(t, p, call)
	store, err := f.js.ObjectStore(t.Context(), wire.BlobsBucket(protocol.DefaultFleet))
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 1)
	another, err := wire.EncodePayload(protocol.CommandRun{Command: "false"})
	require.NoError(t, err)
	_, err = store.PutBytes(t.Context(), objects[0].Name, another)
	require.NoError(t, err)
	f.hold(succeeds, lane.Options{Worker: "w"})
	r := f.await(p, call)
	require.Equal(t, protocol.StatusRejected, r.Status)
	require.Equal(t, codes.InvalidPayload, r.Error.Code)
}

// Calls that come as their lane's ready message start only after what was there before them.

func TestAlone_AnOlderEntryIsFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	older, newer := newCall("s", x), newCall("s", x)
	ran := make(chan protocol.CallID, 3)
	f.hold(tells(ran), lane.Options{})
	warm := newCall("s", exclusive("account/warm"))
	put(t, p, warm)
	require.Equal(t, warm.ID, <-ran)
	// Its publisher dies before it makes the lane ready.
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, older.Pool, wire.HashLane(older.Lane()), older.ID), older)
	put(t, p, newer)
	require.Equal(t, older.ID, <-ran)
	require.Equal(t, newer.ID, <-ran)
}

// busyHolder is a holder whose only slot is taken until the function that is returned is called,
// and the calls that it starts after that.
func busyHolder(t *testing.T, f *fleet, nc *nats.Conn, p *lane.Publisher) (finish func(), ran chan protocol.CallID) {
	t.Helper()
	blocker := newCall("s", exclusive("account/blocker"))
	release := make(chan struct{})
	ran = make(chan protocol.CallID, 9)
	h, err := lane.NewHolder(t.Context(), nc, hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		if run.Call.ID == blocker.ID {
			<-release
		}
		return succeed(run)
	}), lane.Options{Worker: "busy", Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("holder: %v", err)
		}
	})
	put(t, p, blocker)
	require.Equal(t, blocker.ID, <-ran)
	return func() { close(release) }, ran
}

func TestAlone_ACancelledCallDoesNotStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	finish, ran := busyHolder(t, f, f.connect(), p)
	cancelled, other := newCall("s", exclusive("account/cancelled")), newCall("s", exclusive("account/other"))
	put(t, p, cancelled, other)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	finish()
	require.Equal(t, other.ID, <-ran)
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	require.Empty(t, ran)
}

func TestAlone_APausedLaneStartsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	finish, ran := busyHolder(t, f, f.connect(), p)
	paused, other := newCall("s", exclusive("account/paused")), newCall("s", exclusive("account/other"))
	put(t, p, paused, other)
	o := f.operator()
	_, err := o.Pause(t.Context(), protocol.DefaultPool, paused.Lane())
	require.NoError(t, err)
	finish()
	require.Equal(t, other.ID, <-ran)
	f.await(p, other)
	f.requireHeldPaused(paused.Lane())
	late := newCall("s", exclusive("account/paused"))
	put(t, p, late)
	require.NoError(t, p.Cancel(t.Context(), late))
	require.Equal(t, protocol.StatusCancelled, f.await(p, late).Status) // so the holder has looked at the lane since
	require.Empty(t, ran)
	_, err = o.Resume(t.Context(), protocol.DefaultPool, paused.Lane())
	require.NoError(t, err)
	require.Equal(t, paused.ID, <-ran)
	f.await(p, paused)
}

// What was told while the connection was gone is not known.
func TestAlone_ACancelDuringADisconnectIsSeen(t *testing.T) {
	t.Parallel()
	nf := natsiotest.New(t, natsio.Topology{})
	f := around(t, nf)
	p := f.publisher()
	nc, link := nf.ConnectVia()
	finish, ran := busyHolder(t, f, nc, p)
	cancelled, other := newCall("s", exclusive("account/cancelled")), newCall("s", exclusive("account/other"))
	link.Cut()
	put(t, p, cancelled, other)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	link.Mend()
	require.Eventually(t, nc.IsConnected, patience, time.Millisecond)
	finish()
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	f.await(p, other)
	for len(ran) > 0 {
		require.NotEqual(t, cancelled.ID, <-ran)
	}
}
