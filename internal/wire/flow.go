package wire

import (
	"cmp"
	"context"
	"slices"
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

type flowKey struct{}

// WithFlow returns a context in which dispatched calls that name neither tenant nor priority get
// those of a flow.
func WithFlow(ctx context.Context, tenant protocol.Tenant, priority protocol.Priority) context.Context {
	if tenant == "" && priority == "" {
		return ctx
	}
	return context.WithValue(ctx, flowKey{}, Flow{tenant, priority})
}

// ApplyFlow gives calls the flow of a context. It returns the calls as they are, or a copy.
func ApplyFlow(ctx context.Context, calls []protocol.Call) []protocol.Call {
	flow, has := ctx.Value(flowKey{}).(Flow)
	if !has {
		return calls
	}
	calls = slices.Clone(calls)
	for i := range calls {
		if calls[i].Tenant == "" && calls[i].Priority == "" {
			calls[i].Tenant, calls[i].Priority = flow.Tenant, flow.Priority
		}
	}
	return calls
}
