// Package manifest reads tools from a folder of files, one tool or server a file, so that
// any program becomes a tool, without Go.
//
//	name: word_count
//	description: Count the words of a text file.
//	parameters:
//	  type: object
//	  properties: {path: {type: string}}
//	  required: [path]
//	command: [python3, "{tools}/word_count.py"]
//	resources: [{key: "sandbox/{$sandbox}/{path...}", access: shared}]
//	delivery: idempotent
//
// A file is YAML (JSON is YAML too), named *.yaml, *.yml or *.json.
// docs/tools-of-your-own.md describes the fields; [Parse] is authoritative.
//
// A manifest of kind mcp names a server of the Model Context Protocol instead, and how its tools
// are used. It has the fields of a file of package mcp, and becomes the same [mcp.Server].
//
// A [Folder] is read again at every [Folder.Load]. An invalid file is a [Problem] with its line.
// The other tools stay, and so does the last valid version of the invalid one, if this process read
// it.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// maxFiles bounds the manifests of a folder; more are left out, which is a [Problem].
const maxFiles = 1000

// Folder is a folder of manifests that may change at any time. It is safe for
// concurrent use.
type Folder struct {
	dir string

	mu    sync.Mutex
	files map[string]*file // by name
	last  string           // the problems of the last Load
}

// file is a manifest as it was read last.
type file struct {
	content  []byte
	tool     *tools.Tool // of the last version without problems, or
	server   *mcp.Server // this; both are nil when there was none
	problems []Problem   // of the last version
}

// name is what the file names, as it is taken: of a server the beginning of the names of its tools.
func (m *file) name() (name, taken, what string) {
	switch {
	case m.tool != nil:
		return m.tool.Name, m.tool.Name, "tool"
	case m.server != nil:
		return m.server.Name, m.server.Prefix(), "MCP server"
	default:
		return "", "", ""
	}
}

// Set is what a folder has.
type Set struct {
	// Tools and Servers are in the order of their files' names. The tools of the servers are not
	// among Tools: they have to be asked for.
	Tools   []tools.Tool
	Servers []mcp.Server
	// Problems are the present errors.
	Problems []Problem
	// News says that the problems differ from the last Load.
	News bool
}

// Open returns a folder, which must exist. Its manifests are read by Load.
func Open(dir string) (*Folder, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(absolute)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: errors.New("not a directory")}
	}
	opened, err := os.OpenRoot(absolute) // which takes the right to read it
	if err != nil {
		return nil, err
	}
	_ = opened.Close() // nothing was written
	return &Folder{dir: absolute, files: map[string]*file{}}, nil
}

// Dir is the absolute path of the folder.
func (f *Folder) Dir() string { return f.dir }

// Load reads what has changed since the last Load and returns the tools and servers. Names that
// are reserved, and those of two manifests, are problems: the first one keeps its name. The name of
// a server is reserved by its [mcp.Server.Prefix].
func (f *Folder) Load(reserved ...string) Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	var set Set
	names, err := f.names()
	if err != nil {
		set.Problems = append(set.Problems, Problem{File: f.dir, Message: err.Error()})
		for name := range f.files { // what was there stays until the folder can be read
			names = append(names, name)
		}
		slices.Sort(names)
	} else {
		if len(names) > maxFiles {
			set.Problems = append(set.Problems, Problem{File: f.dir, Message: fmt.Sprintf("has %d manifests; those after the first %d are left out", len(names), maxFiles)})
			names = names[:maxFiles]
		}
		f.refresh(names)
	}
	owners := map[string]string{}
	for _, name := range reserved {
		owners[name] = "a built-in tool"
		if strings.HasSuffix(name, "__") {
			owners[name] = "a server of --mcp-config"
		}
	}
	for _, name := range names {
		f.add(&set, name, owners)
	}
	told := fmt.Sprint(set.Problems)
	set.News, f.last = told != f.last && (len(set.Problems) > 0 || f.last != ""), told
	return set
}

// names returns the manifests of the folder, sorted.
func (f *Folder) names() ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".yaml", ".yml", ".json":
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// refresh reads the files again and drops removed ones.
func (f *Folder) refresh(names []string) {
	for name := range f.files {
		if !slices.Contains(names, name) {
			delete(f.files, name)
		}
	}
	for _, name := range names {
		if f.files[name] == nil {
			f.files[name] = &file{}
		}
		f.files[name].read(filepath.Join(f.dir, name))
	}
}

// read parses the file if it has changed. One that is broken keeps the tool that it was.
func (m *file) read(path string) {
	content, err := regular.Read(path, maxBytes)
	if err != nil {
		m.content, m.problems = nil, []Problem{{File: path, Message: errors.Unwrap(err).Error()}}
		return
	}
	if m.content != nil && bytes.Equal(content, m.content) {
		return
	}
	m.content = content
	if isServer(content) {
		var server mcp.Server
		if server, m.problems = parseServer(path, content); len(m.problems) == 0 {
			m.tool, m.server = nil, &server
		}
		return
	}
	var tool tools.Tool
	if tool, m.problems = Parse(path, content); len(m.problems) == 0 {
		m.tool, m.server = &tool, nil
	}
}

// add adds the tool or server of a file to the set, with its problems.
func (f *Folder) add(set *Set, fileName string, owners map[string]string) {
	m := f.files[fileName]
	set.Problems = append(set.Problems, m.problems...)
	name, taken, what := m.name()
	if name == "" {
		return
	}
	if len(m.problems) > 0 {
		set.Problems = append(set.Problems, Problem{
			File: filepath.Join(f.dir, fileName), Message: fmt.Sprintf("the %s %s stays as it was before", what, name),
		})
	}
	if owner := owners[taken]; owner != "" {
		set.Problems = append(set.Problems, Problem{
			File: filepath.Join(f.dir, fileName), Line: nameLine(m.content),
			Message: fmt.Sprintf("the name %s is that of %s: choose another", name, owner),
		})
		return
	}
	owners[taken] = fmt.Sprintf("the %s of %s", what, fileName)
	if m.server != nil {
		set.Servers = append(set.Servers, *m.server)
	} else {
		set.Tools = append(set.Tools, *m.tool)
	}
}

var nameField = regexp.MustCompile(`(?m)^[ \t{]*"?name"?[ \t]*:`)

// nameLine is the line on which a manifest names its tool.
func nameLine(content []byte) int {
	at := nameField.FindIndex(content)
	if at == nil {
		return 1
	}
	return 1 + bytes.Count(content[:at[0]], []byte{'\n'})
}

// Problem is an error in a manifest.
type Problem struct { //nolint:errname // "problem" is the word for it
	// File is the path of the manifest, or of the folder.
	File string
	// Line counts from 1; 0 if the error is of no line.
	Line int
	// Message says what is wrong, and what is allowed.
	Message string
}

// Error returns file:line: message.
func (p Problem) Error() string {
	if p.Line == 0 {
		return p.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message)
}
