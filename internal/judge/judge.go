// Package judge says who may do what, and by which interfaces acts of a session come.
//
//	who (principal) ──► interface (tools/call, resources/read, call, a turn, ...) ──► act on an object
//	                     role: [Principal.May]       rules: package policy            count: loop.Ledger
//
// An act is judged where it takes effect, by the same rules for every interface: [Interfaces] lists
// them, docs/policy.md has the list, and test/integration tries every act by every interface. What
// a principal's role allows is decided here; what a session may do, by the rules of package policy.
package judge

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The roles of principals.
const (
	RoleRead = "read" // acts that change nothing
	RoleUse  = "use"  // every act
)

// Principal is who asks: the owner of a token, as a file of tokens describes it. The zero value is
// the owner of the process, who is asked for no token.
type Principal struct {
	Name   string
	Role   string // "" is [RoleUse]
	Tenant protocol.Tenant
}

// ID is an unambiguous text of a principal: two principals are the same if, and only if, their
// names, roles and tenants are.
func (p Principal) ID() string {
	id, _ := json.Marshal([]string{p.Name, p.Role, string(p.Tenant)}) // texts always can be
	return string(id)
}

// May reports whether the role of the principal allows an act; changes says whether the act can
// change anything, or end what runs. The error is for the principal.
func (p Principal) May(act string, changes bool) error {
	if !changes || p.Role == "" || p.Role == RoleUse {
		return nil
	}
	return fmt.Errorf("%s: a token of role %s may only do what changes nothing: it needs role %s", act, p.Role, RoleUse)
}

// Act is what a call does, whichever tool and interface it has.
type Act string

// The acts. Rules name the first five by their classes, such as @read.
const (
	Read    Act = "read"    // files, directories, processes and results
	Write   Act = "write"   // files changed by the tool itself
	Execute Act = "execute" // programs run, typed at and ended
	Message Act = "message" // messages sent to other sessions
	Trigger Act = "trigger" // timers, schedules and watches
	Use     Act = "use"     // the user's own tools, handlers, and tools of MCP servers
)

// Interface is a way by which acts of a session come.
type Interface struct {
	Name string
	// Acts are those that it has.
	Acts []Act
	// Count says where its calls are counted for max_calls.
	Count string
}

// Interfaces lists all of them. The rules of a policy hold for each. What people do themselves
// (coordinator session diff, /undo) is no act of a session.
func Interfaces() []Interface {
	single := []Act{Read, Write, Execute, Use}
	return []Interface{
		{"turns", []Act{Read, Write, Execute, Message, Trigger, Use}, "journal"},
		{"call", single, "journal, with `--session`"},
		{"call --batch", []Act{Read, Write, Execute}, "the batch; journal, with `--session`"},
		{"MCP tools/call", single, "journal"},
		{"MCP resources/read", []Act{Read}, "journal"},
		{"schedule", single, "journal"},
		{"Go Client.Call", single, "journal"},
	}
}
