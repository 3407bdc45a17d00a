package worker_test

import (
	"bytes"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// cabled runs a worker with a cable to the server.
func (r *rig) cabled(o worker.Options) (cable *natsiotest.Cable, stop func()) {
	r.t.Helper()
	address, err := url.Parse(r.Server.URL())
	require.NoError(r.t, err)
	cable = natsiotest.NewCable(r.t, address.Host)
	nc, err := natsio.Connect(r.t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: r.t.Name(), Creds: r.Server.CredentialFile(), Logger: r.Logger})
	require.NoError(r.t, err)
	r.t.Cleanup(nc.Close)
	w, err := worker.New(r.t.Context(), nc, o)
	require.NoError(r.t, err)
	return cable, r.run(w)
}

// doCut makes a call of a worker that loses its connection before it says the first thing about
// a part of a body, and has it again then.
func (r *rig) doCut(cable *natsiotest.Cable, session protocol.SessionID, payload protocol.Payload) *protocol.Result {
	r.t.Helper()
	severed := make(chan struct{})
	cable.Before(func(said []byte) bool { return bytes.Contains(said, []byte("$O."+wire.BodiesBucket(r.Name)+".C.")) }, func() {
		cable.Sever()
		close(severed)
	})
	call := newCall(session, payload)
	done := make(chan *protocol.Result, 1)
	go func() { done <- r.all([]protocol.Call{call})[call.ID] }()
	select {
	case <-severed:
		cable.Mend()
	case <-time.After(patience):
		require.Fail(r.t, "no body is stored, or fetched")
	}
	return <-done
}

// A commit and a restore wait for a fleet that is away meanwhile.
func TestCheckpoint_WaitsForTheFleet(t *testing.T) {
	t.Parallel()
	r := rigOf(t, natsiotest.Listening(t, natsio.Topology{}))
	cable, stop := r.cabled(r.options())
	requireOK(t, r.doCut(cable, "s-1", bash(`head -c 1000000 /dev/urandom > large; sha256sum large > sum`)))
	stop()
	cable, _ = r.cabled(r.options())
	requireOK(t, r.doCut(cable, "s-1", bash(`sha256sum -c sum`)))
}

// What there is no room for is taken back, and there may be room for the next call.
func TestCheckpoint_WithoutRoomForBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	requireOK(t, r.do("s-1", bash(`echo before > f`)))
	bound := func(bytes int64) {
		stream, err := r.JS.Stream(t.Context(), natsio.ObjectStream(wire.BodiesBucket(r.Name)))
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		config.MaxBytes = bytes
		_, err = r.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	bound(100 << 10)
	grow := bash(`head -c 1000000 /dev/urandom > large; echo after >> f`)
	result := r.do("s-1", grow)
	requireFault(t, result, protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
	require.Contains(t, result.Error.Message, "no room")
	r.requireContent("s-1", "f", "before\n")
	requireFault(t, r.do("s-1", protocol.FilesRead{Path: "large"}), protocol.StatusFailed, protocol.CodeNotFound)
	bound(-1)
	requireOK(t, r.do("s-1", grow))
	r.requireContent("s-1", "f", "before\nafter\n")
}
