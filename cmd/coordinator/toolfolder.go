package main

import (
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// folderFlag names the folder of the user's own tools.
type folderFlag struct {
	Tools string `placeholder:"DIR" help:"Folder of manifests of your own tools, see docs/tools-of-your-own.md; workers need it as well."`
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

// openTools makes the table of some toolsets and of a folder, which may be nil. Manifests
// that are broken are told to warn, and left out.
func openTools(toolsets []string, folder *manifest.Folder, warn func(string)) (*tools.Table, error) {
	set, err := toolset.Named(toolsets...)
	if err != nil {
		return nil, cli.Usagef("--toolset: %v", err)
	}
	table, err := tools.NewTable(set...)
	if err != nil {
		return nil, cli.Usagef("--toolset %s: %v", strings.Join(toolsets, ","), err)
	}
	if folder == nil {
		return table, nil
	}
	loaded := folder.Load(toolNames(set)...)
	for _, problem := range loaded.Problems {
		warn(problem.Error())
	}
	return tools.NewTable(append(set, loaded.Tools...)...)
}

func toolNames(set []tools.Tool) []string {
	names := make([]string, len(set))
	for i := range set {
		names[i] = set[i].Name
	}
	return names
}
