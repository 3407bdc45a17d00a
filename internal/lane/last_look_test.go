package lane_test

import (
	"bytes"
	"context"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// workerVariable makes a process of this test binary a worker: its server and its credentials.
	workerVariable = "LANE_TEST_WORKER"
	// releasing is asked by that worker before it lets a lane go; it waits for the answer.
	releasing = "test.releasing"
)

// beWorker is the main function of that process. It ends when it is killed, or with the tests,
// which hold its input open.
func beWorker(settings string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	address, creds, _ := strings.Cut(settings, " ")
	ctx := context.Background()
	nc, err := natsio.Connect(ctx, address, natsio.ConnectOptions{Name: "worker", Creds: creds})
	if err != nil {
		return err
	}
	h, err := lane.NewHolder(ctx, nc, witness{
		run:     func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) },
		release: func(protocol.Lane) { _, err = nc.Request(releasing, nil, patience) },
	}, lane.Options{Worker: "killed"})
	if err == nil {
		err = h.Run(ctx, ctx)
	}
	return err
}

// newWorker starts a worker as a process of its own. It reports when that has ended.
func newWorker(t *testing.T, address, creds string) (*os.Process, <-chan struct{}) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), workerVariable+"="+address+" "+creds)
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("worker: %s", said.Bytes())
		}
	})
	return cmd.Process, ended
}

// A worker is killed between its last look into a mailbox, which finds a call, and what follows: it
// neither makes the lane ready nor removes its claim. The caretakers have looked after the call
// while the old ready message was there, and do not come again. The lane is served all the same,
// because the claim is there.
func TestRelease_AWorkerKilledAfterItsLastLookLeavesNoEntry(t *testing.T) {
	t.Parallel()
	nf := natsiotest.Listening(t, natsio.Topology{})
	f := around(t, nf)
	f.ensurePool(4 * briefLease) // a busy machine does not end it while the other worker looks after the call
	server, err := url.Parse(nf.Server.URL())
	require.NoError(t, err)
	cable := natsiotest.NewCable(t, server.Host)
	asked, err := f.nc.SubscribeSync(releasing)
	require.NoError(t, err)
	require.NoError(t, f.nc.Flush())
	first, second := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	p := f.publisher()
	put(t, p, first)
	killed, ended := newWorker(t, "nats://"+cable.Address(), nf.Server.CredentialFile())

	question, err := asked.NextMsg(patience)
	require.NoError(t, err, "the worker does not let the lane go")
	f.enqueueWithoutReady(second)
	f.hold(succeeds, lane.Options{})
	care := wire.CareConsumer(protocol.DefaultPool)
	require.Eventually(t, func() bool {
		c, err := f.js.Consumer(t.Context(), wire.CallsStream(factFleet), care)
		if err != nil {
			return false
		}
		told := c.CachedInfo()
		return told.NumPending == 0 && told.NumAckPending == 0 && told.Delivered.Consumer > 0
	}, patience, 10*time.Millisecond, "nobody looks after the call")
	cable.Before(func(said []byte) bool { return bytes.Contains(said, []byte("PUB "+readyOf(first.Lane())+" ")) }, func() {
		cable.Sever() // so the ready message does not arrive
		_ = killed.Kill()
	})
	require.NoError(t, question.Respond(nil))
	select {
	case <-ended:
	case <-time.After(patience):
		require.Fail(t, "the worker does not make the lane ready")
	}
	require.Equal(t, protocol.StatusOK, f.await(p, second).Status)
	f.requireQuiet()
}
