// Package judge says who may do what, and through which doors acts come.
//
//	who (principal) ──► door (tools/call, resources/read, call, a turn, ...) ──► act on an object
//	                     role: [Principal.May]      rules: package policy        count: loop.Ledger
//
// An act is judged where it takes effect, by the same rules whichever door it came through:
// [Doors] lists them, docs/policy.md has the list, and test/integration tries every act through
// every door. What a principal's role allows is decided here; what a session may do, by the rules
// of package policy.
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

// Act is what a call does, whichever tool and door it has.
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

// Door is a way by which acts of a session come in.
type Door struct {
	Name string
	// Acts are those that come through it.
	Acts []Act
	// Count says where its calls are counted for max_calls.
	Count string
}

// Doors lists all doors by which acts of sessions come in. The rules of a policy hold at each of
// them. What people do themselves (coordinator session diff, /undo) comes through none.
func Doors() []Door {
	single := []Act{Read, Write, Execute, Use}
	return []Door{
		{"turn", []Act{Read, Write, Execute, Message, Trigger, Use}, "the session's journal"},
		{"call", single, "the session's journal, with `--session`"},
		{"call --batch", []Act{Read, Write, Execute}, "the batch, and the session's journal with `--session`"},
		{"MCP tools/call", single, "the session's journal"},
		{"MCP resources/read", []Act{Read}, "the session's journal"},
		{"Go Client.Call", single, "the session's journal"},
	}
}
