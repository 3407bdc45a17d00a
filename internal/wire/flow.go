package wire

import (
	"cmp"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultTenant is what subjects and headers have for the tenant "".
const DefaultTenant protocol.Tenant = "default"

// Flow is the calls of a tenant with a priority. Lanes in which calls of a flow wait get free slots
// together. The zero value is the default flow, whose lanes need no ticket.
type Flow struct {
	Tenant   protocol.Tenant
	Priority protocol.Priority
}

// FlowOf returns the flow of a call.
func FlowOf(c *protocol.Call) Flow { return newFlow(c.Tenant, c.Priority) }

func newFlow(tenant protocol.Tenant, priority protocol.Priority) Flow {
	c := Flow{cmp.Or(tenant, DefaultTenant), cmp.Or(priority, protocol.Normal)}
	if c == (Flow{DefaultTenant, protocol.Normal}) {
		return Flow{}
	}
	return c
}

// IsDefault reports whether it is the flow of calls that name neither tenant nor priority.
func (c Flow) IsDefault() bool { return c == Flow{} }

// Header is the flow as [HeaderFlow] has it; "" for the default flow.
func (c Flow) Header() string {
	if c.IsDefault() {
		return ""
	}
	return string(c.Tenant) + "/" + string(c.Priority)
}

// FlowOfHeader is the flow with a [Flow.Header].
func FlowOfHeader(text string) Flow {
	tenant, priority, _ := strings.Cut(text, "/")
	return newFlow(protocol.Tenant(tenant), protocol.Priority(priority))
}
