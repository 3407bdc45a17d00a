package kinds

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/toolfleet/toolfleet/internal/plain"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/toolserver"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// guestWorkspace is where sandboxes with a root of their own have the workspace.
const guestWorkspace = "/workspace"

// mcpList returns the tools of a server that lives in the sandbox.
func mcpList(ctx context.Context, a *Attempt, p wire.MCPList) (protocol.Value, error) {
	spec, err := a.host.serverOf(p.Server)
	if err != nil {
		return nil, err
	}
	return valued(a.box.Servers.List(ctx, a.serverPlace(nil), spec))
}

// mcpCall calls a tool of a server that lives in the sandbox.
func mcpCall(ctx context.Context, a *Attempt, p protocol.MCPCall) (_ protocol.Value, err error) {
	if p.Server, err = a.host.serverOf(p.Server); err != nil {
		return nil, err
	}
	place := a.serverPlace(a.Live)
	value, err := a.box.Servers.Call(ctx, place, p, a.Run.Call.Delivery == protocol.Idempotent)
	if value == nil {
		return nil, err
	}
	return *value, err
}

// mcpSize is the size of what a tool of a server returned.
func mcpSize(v protocol.MCPCallResult) int { return len(plain.MCP(v)) }

// serverOf is a server with the folder of tools in its command.
func (h *Host) serverOf(spec protocol.MCPServer) (protocol.MCPServer, error) {
	if spec.URL != "" {
		return spec, nil
	}
	argv, env, err := h.ofTools(append([]string{spec.Command}, spec.Args...), spec.Env)
	if err == nil {
		spec.Command, spec.Args, spec.Env = argv[0], argv[1:], env
	}
	return spec, err
}

// serverPlace is where servers of a call's sandbox run; without frames nothing is shown,
// and nobody asked.
func (a *Attempt) serverPlace(live *Live) toolserver.Surroundings {
	h := a.host
	place := toolserver.Surroundings{Sandbox: a.sandbox, Root: guestWorkspace, HTTP: h.Servers, Logins: h.Logins, Variable: h.serverVariable}
	if h.Caps.Level < isolation.LevelFull {
		place.Root = a.box.Workspace()
	}
	if live != nil {
		show := live.Sparingly()
		place.Show = func(text string) { show(sandbox.Stdout, []byte(text)) }
		place.Ask = func(ctx context.Context, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
			return h.ask(ctx, a.Run.Call, q, fits)
		}
	}
	return place
}

// serverVariable is a variable of this process that servers may be given.
func (h *Host) serverVariable(name string) (string, error) {
	if !slices.Contains(h.MCPEnv, name) {
		return "", fmt.Errorf("${%s} is not allowed on worker %s: start it with --mcp-env %s", name, h.ID, name)
	}
	value, found := os.LookupEnv(name)
	if !found {
		return "", fmt.Errorf("${%s} is not set in the environment of worker %s", name, h.ID)
	}
	return value, nil
}
