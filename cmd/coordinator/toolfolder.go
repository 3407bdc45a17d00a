package main

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/mcptools"
	"github.com/toolfleet/toolfleet/internal/workercmd"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// folderFlag names the folder of the user's own tools.
type folderFlag struct {
	Tools     string `placeholder:"DIR" brief:"Folder of your own tools." help:"Folder of manifests of your own tools and MCP servers, see docs/tools-of-your-own.md; workers need it as well."`
	McpConfig string `placeholder:"FILE" brief:"MCP servers, in the mcp.json format of agents." help:"File of MCP servers whose tools the model gets, in the mcp.json format of agents. They run in the session's sandbox."`
}

// openFolder returns the folder; nil when none is named.
func (f folderFlag) openFolder() (*manifest.Folder, error) {
	if f.Tools == "" {
		return nil, nil //nolint:nilnil // no folder is fine
	}
	folder, err := manifest.Open(f.Tools)
	if err != nil {
		return nil, cli.Usagef("--tools: %v", err)
	}
	return folder, nil
}

// dir is the folder's absolute path, for an embedded worker; "" when none is named.
func (f folderFlag) dir() (string, error) {
	if f.Tools == "" {
		return "", nil
	}
	return filepath.Abs(f.Tools)
}

// toolbox is a table of tools, and where more of them come from.
type toolbox struct {
	sets       []tools.Tool     // of toolsets
	folder     *manifest.Folder // nil without one
	own        []tools.Tool     // of both
	configured []mcp.Server     // of --mcp-config
	servers    []mcp.Server     // of that and the folder
	asked      []mcp.Server     // of which the served tools are
	served     []tools.Tool
	table      *tools.Table // of all
}

// openTools makes a table of some toolsets and of a folder, which may be nil. Manifests
// that are broken are told to warn, and left out.
func openTools(toolsets []string, folder *manifest.Folder, warn func(string)) (*tools.Table, error) {
	box, err := folderFlag{}.toolbox(toolsets, folder, warn)
	return box.table, err
}

// toolbox is openTools with the servers of the flags.
func (f folderFlag) toolbox(toolsets []string, folder *manifest.Folder, warn func(string)) (box toolbox, err error) {
	box.folder = folder
	if box.sets, err = toolset.Named(toolsets...); err != nil {
		return box, cli.Usagef("--toolset: %v", err)
	}
	if _, err = tools.NewTable(box.sets...); err != nil {
		return box, cli.Usagef("--toolset %s: %v", strings.Join(toolsets, ","), err)
	}
	if box.configured, err = f.configured(); err != nil {
		return box, err
	}
	return box, box.load(func(set manifest.Set) {
		for _, problem := range set.Problems {
			warn(problem.Error())
		}
	})
}

// load makes the table of what the folder has now, which told gets.
func (b *toolbox) load(told func(manifest.Set)) (err error) {
	b.own, b.servers = slices.Clone(b.sets), slices.Clone(b.configured)
	if b.folder != nil {
		set := b.folder.Load(append(toolNames(b.sets), mcp.Prefixes(b.configured)...)...)
		told(set)
		b.own, b.servers = append(b.own, set.Tools...), append(b.servers, set.Servers...)
	}
	names := toolNames(b.own)
	served := slices.DeleteFunc(slices.Clone(b.served), func(tool tools.Tool) bool { return slices.Contains(names, tool.Name) })
	b.table, err = tools.NewTable(slices.Concat(b.own, served)...)
	return err
}

// news tells what is wrong with a folder, if that is new.
func news(warn func(string)) func(manifest.Set) {
	return func(set manifest.Set) {
		for _, problem := range set.Problems {
			if set.News {
				warn(problem.Error())
			}
		}
	}
}

// folderPeriod is how often a folder is looked at for clients that are told of changes.
const folderPeriod = 2 * time.Second

// changes are sessions in which a server has other tools than it was asked for; one is enough at a
// time.
type changes chan protocol.SessionID

func (c changes) tell(session protocol.SessionID) {
	select {
	case c <- session:
	default:
	}
}

// follow has the clients of a server get the tools of the folder, and of MCP servers, as they
// change, until ctx ends. The toolbox is its own meanwhile. ask asks the servers of the folder when
// they are others.
func (b *toolbox) follow(
	ctx context.Context, server *mcpserver.Server, fl *fleet.Fleet, changed changes, ask func(context.Context) error, warn func(string),
) {
	var look <-chan time.Time
	if b.folder != nil {
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
			err = b.ask(ctx, fl, session, warn)
		case <-look:
			err = b.load(news(warn))
			if err == nil && !reflect.DeepEqual(b.servers, b.asked) {
				err = ask(ctx)
			}
		}
		if err == nil {
			server.SetTools(b.table)
		} else if ctx.Err() == nil {
			warn(fmt.Sprintf("the tools are as they were: %v", err))
		}
	}
}

// configured are the servers of --mcp-config.
func (f folderFlag) configured() ([]mcp.Server, error) {
	if f.McpConfig == "" {
		return nil, nil
	}
	return workercmd.ServersOf(f.McpConfig)
}

// ask adds the tools of the servers, which begin to run in the sandbox of a session. What cannot be
// had is told to warn, and left out.
func (b *toolbox) ask(ctx context.Context, fl *fleet.Fleet, session protocol.SessionID, warn func(string)) error {
	do := func(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
		return fl.Dispatcher.Told(ctx, call, func(waits string) { warn(call.Tool + " waits for: " + waits) })
	}
	served, problems, err := mcptools.Open(ctx, do, session, b.servers, b.own)
	if err != nil {
		return err
	}
	for _, problem := range problems {
		warn(problem.Error())
	}
	b.served, b.asked = served, b.servers
	b.table, err = tools.NewTable(slices.Concat(b.own, served)...)
	return err
}

// of returns the toolbox with only the server that a tool's name is of; ok is false when it is of
// none.
func (b toolbox) of(tool string) (_ toolbox, ok bool) {
	for i := range b.servers {
		if strings.HasPrefix(tool, b.servers[i].Prefix()) {
			b.servers = b.servers[i : i+1]
			return b, true
		}
	}
	return b, false
}

func toolNames(set []tools.Tool) []string {
	names := make([]string, len(set))
	for i := range set {
		names[i] = set[i].Name
	}
	return names
}
