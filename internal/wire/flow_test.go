package wire_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A flow is the same in headers and in subjects. Those without a share are of the first one.
func TestFlow_HeaderAndSubject(t *testing.T) {
	t.Parallel()
	shares := map[uint8]bool{}
	for i := range 200 {
		for _, priority := range []protocol.Priority{protocol.Interactive, protocol.Normal, protocol.Batch, ""} {
			flow := wire.FlowOf(&protocol.Call{Tenant: "acme", Priority: priority, SessionID: protocol.SessionID(fmt.Sprint("s", i))})
			require.Equal(t, flow, wire.FlowOfHeader(flow.Header()))
			of, ok := wire.FlowOfSubject(wire.TicketSubject("tf", "default", "hash", flow))
			require.True(t, ok)
			require.Equal(t, flow, of)
			shares[flow.Share] = true
		}
	}
	require.Len(t, shares, wire.Shares)
	require.Equal(t, wire.Flow{Tenant: "acme", Priority: protocol.Batch}, wire.FlowOfHeader("acme/batch"))
	require.Equal(t, wire.Flow{}, wire.FlowOf(&protocol.Call{SessionID: "s1"}))
	require.Equal(t, wire.Flow{}, wire.FlowOf(&protocol.Call{Tenant: wire.DefaultTenant, SessionID: "s1"}))
	require.Zero(t, wire.FlowOfHeader("acme/normal_99").Share)
	require.Equal(t, "tf.ready.default.*.*.*", wire.TicketsFilter("tf", "default", wire.AnyFlow()))
}
