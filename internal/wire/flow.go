package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultTenant is what subjects and headers have for the tenant "".
const DefaultTenant = judge.DefaultTenant

// Flow is the calls of a tenant with a priority, of some of its sessions. Lanes in which calls of a
// flow wait get free slots together. The zero value is the default flow, whose lanes need no
// ticket.
type Flow struct {
	Tenant   protocol.Tenant
	Priority protocol.Priority
	// Share is a number below [Shares], by the session. The shares of a tenant get slots in turns,
	// so a session with many lanes hardly delays sessions of other shares.
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

// WithFlow returns a context in which dispatched calls that name no tenant get that of a flow, and
// its priority if they name none either.
func WithFlow(ctx context.Context, tenant protocol.Tenant, priority protocol.Priority) context.Context {
	if tenant == "" && priority == "" {
		return ctx
	}
	return context.WithValue(ctx, flowKey{}, Flow{Tenant: tenant, Priority: priority})
}

// flowOf is the flow of [WithFlow]. Without a tenant it is of the tenant whose principal acts.
func flowOf(ctx context.Context) Flow {
	flow, _ := ctx.Value(flowKey{}).(Flow)
	if tenant := judge.Of(ctx).Tenant; flow.Tenant == "" && tenant != DefaultTenant {
		flow.Tenant = tenant
	}
	return flow
}

// WithOwner returns a context in which a session of an owner acts, with the priority of the
// context.
func WithOwner(ctx context.Context, owner judge.Owner) context.Context {
	if flow, has := ctx.Value(flowKey{}).(Flow); has && flow.Tenant != "" {
		ctx = WithFlow(ctx, owner.Tenant, flow.Priority)
	}
	return judge.With(ctx, judge.PrincipalOf(owner))
}

// TenantOf is the tenant of [WithFlow], or of the principal that acts; "" without one.
func TenantOf(ctx context.Context) protocol.Tenant { return flowOf(ctx).Tenant }

// ChannelName is the full name of a channel, TENANT.NAME, for sessions in a context: those of one
// tenant share channels.
func ChannelName(ctx context.Context, name string) string {
	return string(cmp.Or(TenantOf(ctx), DefaultTenant)) + "." + name
}

// ApplyFlow gives calls the flow and the principal of a context. It returns the calls as they are,
// or a copy.
func ApplyFlow(ctx context.Context, calls []protocol.Call) []protocol.Call {
	flow, by := flowOf(ctx), judge.Of(ctx).By()
	if flow == (Flow{}) && by == "" {
		return calls
	}
	calls = slices.Clone(calls)
	for i := range calls {
		if calls[i].Tenant == "" && calls[i].Priority == "" {
			calls[i].Priority = flow.Priority
		}
		calls[i].Tenant = cmp.Or(calls[i].Tenant, flow.Tenant)
		calls[i].By = cmp.Or(calls[i].By, by)
	}
	return calls
}

// Header names. Trace context travels beside them under its own lower-case
// W3C names (traceparent, tracestate).
const (
	// HeaderLane is the readable lane; subjects carry its hash.
	HeaderLane = "Tf-Lane"
	// HeaderCall is the call id, also when the subject does not name it.
	HeaderCall = "Tf-Call"
	// HeaderSigned is the signature of the call, in five parts separated by spaces: the id of the
	// key (16 hexadecimal digits), the time in milliseconds since 1970, how many calls were signed
	// together and which of them this is (from 0), and, in base64 (URL, without padding), the root
	// of their Merkle tree (RFC 6962, SHA-256), its Ed25519 signature, and the call's audit path. A
	// leaf is "toolfleet call 1", the fleet and that time, a line each, and the body. The signature
	// covers the line "toolfleet calls 1" and the root.
	HeaderSigned = "Tf-Signed"
	// HeaderQuestion is the id of the question that is put, in the refusal of an answer.
	HeaderQuestion = "Tf-Question"
	// HeaderFlow is the [Flow.Header] of the call; calls of the default flow have none.
	HeaderFlow = "Tf-Flow"
	// HeaderInFlight is set on a call that has a mark at its [InFlightSubject].
	HeaderInFlight = "Tf-In-Flight"
	// HeaderSession is the session id of the call.
	HeaderSession = "Tf-Session"
	// HeaderCancelled is set on a call that was cancelled before its time came.
	HeaderCancelled = "Tf-Cancelled"
	// HeaderLate is how many milliseconds after its time a call with not_before entered its lane.
	HeaderLate = "Tf-Late"
	// HeaderAbout is the [About] of the call, in the message of its result.
	HeaderAbout = "Tf-About"
	// HeaderProof is the [Proof] of a call, and of its result.
	HeaderProof = "Tf-Proof"
	// HeaderSeen is the [Seen] of a call that its caller sends for the first time.
	HeaderSeen = "Tf-Seen"
	// HeaderIncarnation names the only incarnation that a query about a lane is for.
	HeaderIncarnation = "Tf-Life"
)

// Seen is the last result of a lane that a caller knew before it sent a call for the first time:
// the epoch of its holder, and the sequence of its call. So every copy of the new call is stored
// after that one, and in the same hold or a later one. The zero value is none.
type Seen struct{ Epoch, Sequence uint64 }

// Header is what [HeaderSeen] has.
func (s Seen) Header() string {
	return strconv.FormatUint(s.Epoch, 10) + " " + strconv.FormatUint(s.Sequence, 10)
}

// SeenOfHeader is the Seen with a header; zero for any other text.
func SeenOfHeader(text string) (s Seen) {
	epoch, sequence, _ := strings.Cut(text, " ")
	var err, other error
	s.Epoch, err = strconv.ParseUint(epoch, 10, 64)
	s.Sequence, other = strconv.ParseUint(sequence, 10, 64)
	if err != nil || other != nil {
		return Seen{}
	}
	return s
}

// LaneHeader is the lane as [HeaderLane] has it: what a header cannot carry is escaped as in a JSON
// string, and so is a space at its beginning or end, which NATS would take away.
func LaneHeader(l protocol.Lane) string {
	quoted, err := json.Marshal(string(l))
	if err != nil {
		return ""
	}
	text := string(quoted[1 : len(quoted)-1])
	if rest, found := strings.CutPrefix(text, " "); found {
		text = escapedSpace + rest
	}
	if rest, found := strings.CutSuffix(text, " "); found {
		text = rest + escapedSpace
	}
	return text
}

const escapedSpace = `\u0020`

// LaneOfHeader is the lane with a [LaneHeader]; "" when there is none.
func LaneOfHeader(text string) (lane protocol.Lane) {
	if json.Unmarshal([]byte(`"`+text+`"`), &lane) != nil {
		return ""
	}
	return lane
}
