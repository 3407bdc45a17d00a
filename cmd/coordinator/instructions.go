package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// instructionFlags say what a model is told before all else.
type instructionFlags struct {
	System                string `placeholder:"FILE" brief:"File with the system prompt." help:"File with the system prompt, of up to 256 KiB. Default: that of the session, else a general one."`
	NoProjectInstructions bool   `help:"Ignore AGENTS.md and CLAUDE.md of the workspace."`
}

// Bounds of instructions, in bytes.
const (
	maxSystem  = 256 << 10
	maxProject = 32 << 10 // of a file; the rest is left out
)

// projectFiles are the files of a workspace that hold instructions for agents.
func projectFiles() []string { return []string{"AGENTS.md", "CLAUDE.md"} }

// system reads the system prompt; "" when there is no file.
func (f *instructionFlags) system() (string, error) {
	if f.System == "" {
		return "", nil
	}
	file, err := os.Open(f.System)
	if err != nil {
		return "", cli.Usagef("--system %s: %v", f.System, errors.Unwrap(err))
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxSystem+1))
	switch {
	case err != nil:
		return "", cli.Usagef("--system %s: %v", f.System, errors.Unwrap(err))
	case len(content) > maxSystem:
		return "", cli.Usagef("--system %s: is larger than %d KiB", f.System, maxSystem>>10)
	case strings.TrimSpace(string(content)) == "":
		return "", cli.Usagef("--system %s: is empty", f.System)
	}
	return strings.TrimSpace(string(content)), nil
}

// project reads the files of a workspace; nil when there is no workspace, and the session keeps
// what it has. What cannot be read is told, and left out.
func (f *instructionFlags) project(workspace string, warn func(string)) ([]protocol.InstructionFile, error) {
	if f.NoProjectInstructions {
		return []protocol.InstructionFile{}, nil
	}
	if workspace == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(workspace) // which follows no link out of it
	if err != nil {
		return nil, fmt.Errorf("instructions of the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	files := []protocol.InstructionFile{}
	for _, name := range projectFiles() {
		text, err := projectText(root, name)
		same := func(other protocol.InstructionFile) bool { return other.Text == text }
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && text == "", slices.ContainsFunc(files, same): // one is often a link to the other
			continue
		case err != nil:
			warn(fmt.Sprintf("%s of the workspace is left out of the instructions: %v", name, err))
			continue
		case strings.HasSuffix(text, leftOut):
			warn(fmt.Sprintf("%s of the workspace is larger than %d KiB: the rest is left out of the instructions", name, maxProject>>10))
		}
		files = append(files, protocol.InstructionFile{Name: name, Text: text})
	}
	return files, nil
}

// leftOut ends a text that was longer.
const leftOut = "\n[The rest of the file is left out: it is too long. Read it with your tools if you need it.]"

// projectText reads one file of a workspace, up to its bound.
func projectText(root *os.Root, name string) (string, error) {
	info, err := root.Stat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // opening a FIFO would wait
		return "", errors.New("not a file")
	}
	file, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxProject+1))
	if err != nil {
		return "", err
	}
	if len(content) <= maxProject {
		return strings.TrimSpace(strings.ToValidUTF8(string(content), "\uFFFD")), nil
	}
	text := strings.ToValidUTF8(string(content[:maxProject]), "") // a character may be cut at its end
	return strings.TrimSpace(text) + leftOut, nil
}
