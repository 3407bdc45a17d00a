package wire

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultTenant is what subjects and headers have for the tenant "".
const DefaultTenant protocol.Tenant = "default"

// Flow is the calls of a tenant with a priority, of some of its sessions. Lanes in which calls of a
// flow wait get free slots together. The zero value is the default flow, whose lanes need no
// ticket.
type Flow struct {
	Tenant   protocol.Tenant
	Priority protocol.Priority
	// Share is a number below [Shares], by the session. The shares of a tenant get slots in turns,
	// so a session with many lanes delays those of other shares little.
	Share uint8
}

// Shares is the number of shares of each tenant and priority.
const Shares = 8

// FlowOf returns the flow of a call.
func FlowOf(c *protocol.Call) Flow {
	if c.Tenant == "" && c.Priority == "" { // as nearly all
		return Flow{}
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.SessionID)) // never fails
	return newFlow(c.Tenant, c.Priority, uint8(hash.Sum32()%Shares))
}

func newFlow(tenant protocol.Tenant, priority protocol.Priority, share uint8) Flow {
	c := Flow{Tenant: cmp.Or(tenant, DefaultTenant), Priority: cmp.Or(priority, protocol.Normal), Share: share}
	if c.Tenant == DefaultTenant && c.Priority == protocol.Normal {
		return Flow{}
	}
	return c
}

// AnyFlow stands for every flow in filters.
func AnyFlow() Flow { return Flow{Tenant: "*", Priority: "*"} }

// token is the priority and the share, as in normal_3; the share 0 is left out.
func (c Flow) token() string {
	if c.Share == 0 {
		return string(c.Priority)
	}
	return string(c.Priority) + "_" + strconv.Itoa(int(c.Share))
}

// parseFlow reads a tenant and a token.
func parseFlow(tenant, token string) Flow {
	priority, number, _ := strings.Cut(token, "_")
	share, err := strconv.ParseUint(number, 10, 8)
	if err != nil || share >= Shares {
		share = 0
	}
	return Flow{Tenant: protocol.Tenant(tenant), Priority: protocol.Priority(priority), Share: uint8(share)}
}

// IsDefault reports whether it is the flow of calls that name neither tenant nor priority.
func (c Flow) IsDefault() bool { return c == Flow{} }

// Header is the flow as [HeaderFlow] has it; "" for the default flow.
func (c Flow) Header() string {
	if c.IsDefault() {
		return ""
	}
	return string(c.Tenant) + "/" + c.token()
}

// FlowOfHeader is the flow with a [Flow.Header].
func FlowOfHeader(text string) Flow {
	tenant, token, _ := strings.Cut(text, "/")
	c := parseFlow(tenant, token)
	return newFlow(c.Tenant, c.Priority, c.Share)
}

type flowKey struct{}

// WithFlow returns a context in which dispatched calls that name neither tenant nor priority get
// those of a flow.
func WithFlow(ctx context.Context, tenant protocol.Tenant, priority protocol.Priority) context.Context {
	if tenant == "" && priority == "" {
		return ctx
	}
	return context.WithValue(ctx, flowKey{}, Flow{Tenant: tenant, Priority: priority})
}

// TenantOf is the tenant of [WithFlow]; "" without one.
func TenantOf(ctx context.Context) protocol.Tenant {
	flow, _ := ctx.Value(flowKey{}).(Flow)
	return flow.Tenant
}

// ChannelName is the full name of a channel, TENANT.NAME, for sessions in a context: those of one
// tenant share channels.
func ChannelName(ctx context.Context, name string) string {
	return string(cmp.Or(TenantOf(ctx), DefaultTenant)) + "." + name
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
