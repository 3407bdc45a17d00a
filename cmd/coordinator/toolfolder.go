package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/mcptools"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// folderFlag names the folder of the user's own tools.
type folderFlag struct {
	Tools     string `placeholder:"DIR" help:"Folder of manifests of your own tools, see docs/tools-of-your-own.md; workers need it as well."`
	McpConfig string `placeholder:"FILE" help:"MCP servers whose tools the model has, too, as agents name them in mcp.json: they run in the session's sandbox."`
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

// toolbox is a table of tools, and the servers that have more of them.
type toolbox struct {
	own     []tools.Tool // without those of servers
	table   *tools.Table
	servers []mcp.Server
}

// openTools makes a table of some toolsets and of a folder, which may be nil. Manifests
// that are broken are told to warn, and left out.
func openTools(toolsets []string, folder *manifest.Folder, warn func(string)) (*tools.Table, error) {
	box, err := folderFlag{}.toolbox(toolsets, folder, warn)
	return box.table, err
}

// toolbox is openTools with the servers of the flags.
func (f folderFlag) toolbox(toolsets []string, folder *manifest.Folder, warn func(string)) (box toolbox, err error) {
	if box.own, err = toolset.Named(toolsets...); err != nil {
		return box, cli.Usagef("--toolset: %v", err)
	}
	if box.table, err = tools.NewTable(box.own...); err != nil {
		return box, cli.Usagef("--toolset %s: %v", strings.Join(toolsets, ","), err)
	}
	if box.servers, err = f.configured(); err != nil || folder == nil {
		return box, err
	}
	loaded := folder.Load(toolNames(box.own)...)
	for _, problem := range loaded.Problems {
		warn(problem.Error())
	}
	box.own = append(box.own, loaded.Tools...)
	box.table, err = tools.NewTable(box.own...)
	return box, err
}

// configured are the servers of --mcp-config.
func (f folderFlag) configured() ([]mcp.Server, error) {
	if f.McpConfig == "" {
		return nil, nil
	}
	content, err := os.ReadFile(f.McpConfig)
	if err != nil {
		return nil, cli.Usagef("--mcp-config: %v", err)
	}
	servers, faults := mcp.Parse(content)
	if len(faults) > 0 {
		return nil, cli.Usagef("--mcp-config %s: %v", f.McpConfig, errors.Join(faults...))
	}
	return servers, nil
}

// ask adds the tools of the servers, which begin to run in the sandbox of a session. What cannot be
// had is told to warn, and left out.
func (b *toolbox) ask(ctx context.Context, fl *fleet.Fleet, session protocol.SessionID, warn func(string)) error {
	if len(b.servers) == 0 {
		return nil
	}
	do := func(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
		return fl.Dispatcher.Told(ctx, call, func(waits string) { warn(call.Tool + " waits for: " + waits) })
	}
	more, problems, err := mcptools.Open(ctx, do, session, b.servers, b.own)
	if err != nil {
		return err
	}
	for _, problem := range problems {
		warn(problem.Error())
	}
	b.table, err = tools.NewTable(slices.Concat(b.own, more)...)
	return err
}

// more returns the tools of the servers for a turn of any session.
func (b toolbox) more(fl *fleet.Fleet, logger *slog.Logger) func(context.Context, protocol.SessionID, []tools.Tool) ([]tools.Tool, error) {
	return func(ctx context.Context, session protocol.SessionID, own []tools.Tool) ([]tools.Tool, error) {
		made, problems, err := mcptools.Open(ctx, fl.Dispatcher.One, session, b.servers, own)
		for _, problem := range problems {
			logger.WarnContext(ctx, "MCP server is not whole", slog.Any("problem", problem))
		}
		return made, err
	}
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
