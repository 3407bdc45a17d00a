package lane_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server takes a call from its publisher, stands still, and passes it on when the call was sent again by another way,
// run and settled. What came late is not run.
func TestLate_ACallThatWasSentAgainMeanwhileRunsOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	call.Delivery = protocol.AtMostOnce
	copies, err := f.nc.SubscribeSync(protocol.DefaultFleet.ReadySubject(call.Pool, call.Lane().Hash()))
	require.NoError(t, err)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	put(t, p, call)
	require.Equal(t, call.ID, <-ran)
	f.await(p, call)
	f.requireQuiet()
	sent, err := copies.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	at, err := strconv.ParseInt(sent.Header.Get(protocol.HeaderSent), 10, 64)
	require.NoError(t, err)
	late := &nats.Msg{Subject: sent.Subject, Header: sent.Header, Data: sent.Data}
	late.Header.Set(protocol.HeaderSent, strconv.FormatInt(at-5*time.Second.Milliseconds(), 10)) // as if it came so much later
	_, err = f.js.PublishMsg(t.Context(), late)
	require.NoError(t, err)
	f.requireQuiet()
	require.Empty(t, ran)
}
