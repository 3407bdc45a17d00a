package lane_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
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
