package environment

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// ToolFlags name the user's own tools and MCP servers.
type ToolFlags struct {
	Tools     string `placeholder:"DIR" brief:"Folder of your own tools." help:"Folder of manifests of your own tools and MCP servers, see docs/tools-of-your-own.md; workers need it as well."`
	Skills    string `placeholder:"DIR" help:"Folder of skills, such as .claude/skills: a folder with a SKILL.md each, see docs/agents.md."`
	McpConfig string `placeholder:"FILE" brief:"MCP servers, in the mcp.json format of agents." help:"File of MCP servers whose tools the model gets, in the mcp.json format of agents. They run in the session's sandbox."`
}

// folder is the folder's absolute path, for an embedded worker; "" if none is named.
func (f ToolFlags) folder() (string, error) {
	if f.Tools == "" {
		return "", nil
	}
	return filepath.Abs(f.Tools)
}

// Toolbox is a session's table of tools, and where its tools come from.
type Toolbox struct {
	// Table has all tools.
	Table *tools.Table
	// Folder is the folder of manifests; nil without one.
	Folder *manifest.Folder
	// Configured are the MCP servers of --mcp-config, and Servers those of the folder, too.
	Configured, Servers []mcp.Server
	// Skills has the tool that reads skills; empty without --skills.
	Skills []tools.Tool
	// Rules bind the start of MCP servers.
	Rules mcptools.Rules

	pool   protocol.Pool // of tools that name none
	sets   []tools.Tool  // of toolsets, and Skills
	own    []tools.Tool  // of sets and the folder
	listed []mcp.Server  // whose tools are in served
	served []tools.Tool  // of MCP servers
}

// OpenToolbox makes the table of some toolsets and the folder. Broken manifests and skills are
// reported to warn, and left out. The tools of MCP servers are missing until [Toolbox.List].
func (f ToolFlags) OpenToolbox(toolsets []string, warn func(string)) (_ *Toolbox, err error) {
	box := &Toolbox{}
	if f.Tools != "" {
		if box.Folder, err = manifest.Open(f.Tools); err != nil {
			return nil, cli.Usagef("--tools: %v", err)
		}
	}
	if box.sets, err = toolset.Named(toolsets...); err != nil {
		return nil, cli.Usagef("--toolset: %v", err)
	}
	if box.Skills, err = f.openSkills(warn); err != nil {
		return nil, err
	}
	box.sets = append(box.sets, box.Skills...)
	if _, err = tools.NewTable(box.sets...); err != nil {
		return nil, cli.Usagef("--toolset %s: %v", strings.Join(toolsets, ","), err)
	}
	if f.McpConfig != "" {
		if box.Configured, err = workercmd.ServersOf(f.McpConfig); err != nil {
			return nil, err
		}
	}
	return box, box.load(func(set manifest.Set) {
		for _, problem := range set.Problems {
			warn(problem.Error())
		}
	})
}

// load makes the table of what the folder has now, and passes that to report.
func (b *Toolbox) load(report func(manifest.Set)) (err error) {
	b.own, b.Servers = slices.Clone(b.sets), slices.Clone(b.Configured)
	if b.Folder != nil {
		set := b.Folder.Load(append(toolNames(b.sets), mcptools.Prefixes(b.Configured)...)...)
		report(set)
		b.own, b.Servers = append(b.own, set.Tools...), append(b.Servers, set.Servers...)
	}
	names := toolNames(b.own)
	served := slices.DeleteFunc(slices.Clone(b.served), func(tool tools.Tool) bool { return slices.Contains(names, tool.Name) })
	return b.make(served)
}

// make makes the table, with tools of MCP servers.
func (b *Toolbox) make(served []tools.Tool) error {
	table, err := tools.NewTable(slices.Concat(b.own, served)...)
	if err == nil {
		b.Table = table.InPool(b.pool)
	}
	return err
}

// Reload makes the table of what the folder has now. It warns about broken manifests that are new.
func (b *Toolbox) Reload(warn func(string)) error { return b.load(newProblems(warn)) }

// newProblems warns about what is wrong with a folder, if that is new.
func newProblems(warn func(string)) func(manifest.Set) {
	return func(set manifest.Set) {
		for _, problem := range set.Problems {
			if set.News {
				warn(problem.Error())
			}
		}
	}
}

// folderPeriod is how often Follow looks at the folder.
const folderPeriod = 2 * time.Second

// Changes passes on sessions in which an MCP server has other tools than it had; it holds one.
type Changes chan protocol.SessionID

// Notify passes on a session, unless one is waiting.
func (c Changes) Notify(session protocol.SessionID) {
	select {
	case c <- session:
	default:
	}
}

// Follow passes the table to set whenever the tools of the folder, or of MCP servers, change, until
// ctx ends; nobody else uses the toolbox meanwhile. It calls list when the folder's servers change.
func (b *Toolbox) Follow(
	ctx context.Context, fl *fleet.Fleet, changed Changes, list func(context.Context) error, set func(*tools.Table), warn func(string),
) {
	var look <-chan time.Time
	if b.Folder != nil {
		ticker := time.NewTicker(folderPeriod)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case session := <-changed:
			err = b.List(ctx, fl, session, warn)
		case <-look:
			err = b.load(newProblems(warn))
			if err == nil && !reflect.DeepEqual(b.Servers, b.listed) {
				err = list(ctx)
			}
		}
		if err == nil {
			set(b.Table)
		} else if ctx.Err() == nil {
			warn(fmt.Sprintf("the tools could not be read again, so the earlier ones stay: %v", err))
		}
	}
}

// List adds the tools of the MCP servers, which are started in the sandbox of a session. Servers
// that fail, and those that the rules deny, are reported to warn, and left out.
func (b *Toolbox) List(ctx context.Context, fl *fleet.Fleet, session protocol.SessionID, warn func(string)) error {
	do := func(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
		return fl.Dispatcher.CallWith(ctx, call, calls.CallOptions{Observe: calls.OnWaits(func(waits string) { warn(call.Tool + " waits for: " + waits) })})
	}
	served, problems, err := mcptools.Open(ctx, do, session, b.Rules, b.Servers, b.own)
	if err != nil {
		return err
	}
	for _, problem := range problems {
		warn(problem.Error())
	}
	b.served, b.listed = served, b.Servers
	return b.make(served)
}

// OnlyServerOf leaves out every MCP server but that of a tool. It returns false if the tool belongs
// to none.
func (b *Toolbox) OnlyServerOf(tool string) bool {
	for i := range b.Servers {
		if strings.HasPrefix(tool, b.Servers[i].Prefix()) {
			b.Servers = b.Servers[i : i+1]
			return true
		}
	}
	return false
}

func toolNames(set []tools.Tool) []string {
	names := make([]string, len(set))
	for i := range set {
		names[i] = set[i].Name
	}
	return names
}

// ListAside lists the tools of a toolbox's MCP servers in a session that is removed afterwards.
func (f *FleetFlags) ListAside(ctx context.Context, fl *fleet.Fleet, box *Toolbox, warn func(string)) error {
	id := protocol.NewSessionID()
	if len(box.Servers) > 0 {
		defer f.RemoveSession(context.WithoutCancel(ctx), fl, id, protocol.DefaultPool, warn)
	}
	return box.List(ctx, fl, id, warn)
}

// removeTimeout bounds the removal of a session.
const removeTimeout = 30 * time.Second

// RemoveSession removes the workspace of a session of single calls, which has no journal.
func (f *FleetFlags) RemoveSession(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, warn func(string)) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if _, err := session.Remove(ctx, fl, id, session.Options{Pool: pool, Force: true, Used: true}); err != nil {
		warn(fmt.Sprintf("the call's session is not removed: %v (coordinator session rm%s %s)", err, f.Reach(), id))
	}
}
