package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
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

// skill is a folder with instructions for one kind of work, in the format of other agents.
type skill struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`

	folder string
}

const skillFile = "SKILL.md"

// Bounds of what a session reads of skills.
const (
	maxSkills     = 200
	maxSkillFiles = 100 // of one skill, that are listed
)

// openSkills returns the tool that reads the skills of --skills; none without the flag. What is no
// skill is reported to warn, and left out.
func (f ToolFlags) openSkills(warn func(string)) ([]tools.Tool, error) {
	if f.Skills == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.Skills)
	if err != nil {
		return nil, cli.Usagef("--skills %s: %v", f.Skills, errors.Unwrap(err))
	}
	var skills []skill
	for _, entry := range entries {
		folder := filepath.Join(f.Skills, entry.Name())
		path := filepath.Join(folder, skillFile)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err != nil && !entry.IsDir() {
			continue
		}
		if len(skills) == maxSkills {
			return nil, cli.Usagef("--skills %s: has more than %d skills", f.Skills, maxSkills)
		}
		s, err := readSkill(folder, skills)
		if err != nil {
			warn(fmt.Sprintf("the skill is left out: %s: %v", path, err))
			continue
		}
		skills = append(skills, s)
	}
	if len(skills) == 0 {
		return nil, cli.Usagef("--skills %s: has no folder with a %s that can be read", f.Skills, skillFile)
	}
	return []tools.Tool{skillTool(skills)}, nil
}

// readSkill reads what the system prompt says of a skill, next to others.
func readSkill(folder string, others []skill) (skill, error) {
	s := skill{folder: folder}
	if _, err := yamlfile.FrontMatter(filepath.Join(folder, skillFile), &s); err != nil {
		return s, err
	}
	s.Name, s.Description = strings.TrimSpace(s.Name), strings.Join(strings.Fields(s.Description), " ")
	switch {
	case s.Name == "" || s.Description == "":
		return s, errors.New("line 1: name and description are required")
	case slices.ContainsFunc(others, func(other skill) bool { return other.Name == s.Name }):
		return s, fmt.Errorf("another skill has the name %s", s.Name)
	}
	return s, nil
}

type skillArguments struct {
	Name string `json:"name"`
	File string `json:"file"`
}

// skillTool is the tool by which a model reads skills. Its hint lists them.
func skillTool(skills []skill) tools.Tool {
	names, lines := make([]string, len(skills)), []string{"Read a skill with the tool skill before you begin work that its description fits. The skills are:"}
	for i, s := range skills {
		names[i] = s.Name
		lines = append(lines, "- "+s.Name+": "+s.Description)
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object", "required": []string{"name"}, "additionalProperties": false,
		"properties": map[string]any{
			"name": map[string]any{"type": "string", "enum": names, "description": "Name of the skill."},
			"file": map[string]any{"type": "string", "description": "A further file of the skill. Default: its instructions."},
		},
	})
	if err != nil {
		panic(fmt.Sprintf("encode schema: %v", err)) // strings always encode
	}
	return tools.Tool{
		Metadata:   tools.Metadata{Hint: strings.Join(lines, "\n"), Effect: tools.Effect{ReadOnly: true, Idempotent: true}},
		Definition: tools.Definition{Name: "skill", Description: "Read the instructions of a skill, or another file of it.", Schema: schema},
		Plan: tools.PlanOf(func(_ tools.Scope, args skillArguments) (tools.Plan, *protocol.Error) {
			s := skills[slices.Index(names, args.Name)] // the schema allows no other name
			return tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return s.read(args.File) }}, nil
		}),
	}
}

// read returns a file of the skill; "" is its instructions, with the names of its other files.
func (s skill) read(file string) (string, *protocol.Error) {
	if file == "" {
		text, err := yamlfile.FrontMatter(filepath.Join(s.folder, skillFile), &struct{}{})
		if err != nil {
			return "", protocol.Errorf(protocol.CodeToolFailed, "The skill %s cannot be read: %s %v.", s.Name, skillFile, err)
		}
		if others := s.files(); len(others) > 0 {
			text += "\n\n[The skill has these files, which the argument file reads: " + strings.Join(others, ", ") + "]"
		}
		return text, nil
	}
	root, err := os.OpenRoot(s.folder)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeToolFailed, "The skill %s cannot be read: %v.", s.Name, errors.Unwrap(err))
	}
	defer func() { _ = root.Close() }() // it was only read
	text, err := readBounded(root, filepath.FromSlash(file))
	if err != nil {
		return "", protocol.Errorf(protocol.CodeNotFound,
			"The skill %s has no file %s that can be read (%v). Its files are: %s.", s.Name, file, err,
			strings.Join(s.files(), ", "))
	}
	return text, nil
}

// readBounded reads a regular file, which may not lead out of the root.
func readBounded(root *os.Root, name string) (string, error) {
	content, err := regular.ReadIn(root, name, yamlfile.MaxFront)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	return string(content), nil
}

// files are the paths of the skill's other files, sorted, without hidden ones.
func (s skill) files() []string {
	var files []string
	_ = fs.WalkDir(os.DirFS(s.folder), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return nil //nolint:nilerr // what cannot be read is left out
		case strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case len(files) == maxSkillFiles:
			return fs.SkipAll
		case entry.Type().IsRegular() && path != skillFile:
			files = append(files, path)
		}
		return nil
	})
	return files
}
