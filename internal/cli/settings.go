package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
)

// Settings are flags in a YAML file: keys are names of flags, lists stand where a flag may be given
// several times. A mapping under the name of a command is for that command only, and comes first.

// ProjectFile is the name of a project's settings.
const ProjectFile = "toolfleet.yaml"

// maxSettings bounds a file of settings, in bytes.
const maxSettings = 256 << 10

// setting is the value of a flag in a file: a string, []string or map of texts.
type setting struct {
	value any
	line  int // 0 in a context
}

// settings are those of a file for one command.
type settings struct {
	path   string // absolute
	label  string // says what the file is: "project", "user" or "context NAME"
	values map[string]setting

	content []byte     // of the file
	root    *yaml.Node // parsed; nil if it is empty
}

// at says where a setting is.
func (s *settings) at(key string) string {
	if s.values[key].line == 0 {
		return s.label
	}
	return fmt.Sprintf("%s:%d (%s)", s.path, s.values[key].line, s.label)
}

// kept out of files: they are for one command line.
func perCommandLine() []string {
	return []string{"help", "help-all", "version", "print-config", "no-project-config", "session"}
}

// reader reads settings for a command of a program.
type reader struct {
	app     *kong.Application
	command *kong.Node // nil without one
	files   Files
}

// Files say which settings a program reads. The zero value reads none.
type Files struct {
	User    bool   // the file of the user
	Project bool   // that of the project too
	Section string // the section of this program; else all but the sections of Others
	Others  []string
}

// filesTag is the tag of commands that take less from files than others.
const (
	filesTag    = "files"
	onlySection = "section" // nothing from outside their section
	noFiles     = "none"
)

// read reads a file.
func (r *reader) read(path, label string) (*settings, error) {
	s := &settings{path: path, label: label, values: map[string]setting{}}
	var err error
	if s.root, s.content, err = parseYAML(path); err != nil || s.root == nil {
		return s, err
	}
	name := r.files.Section
	if name == "" && r.command != nil {
		name = r.command.Name
	}
	inSection := map[string]setting{}
	for key, node := range yamlfile.Pairs(s.root) {
		switch {
		case node.Kind == yaml.MappingNode && r.isSection(key.Value):
			values, err := r.section(path, key.Value, node)
			if err != nil {
				return nil, err
			}
			if key.Value == name {
				inSection = values
			}
		case r.files.Section != "": // checked by the program whose flags these are
		default:
			if err := r.add(s.values, path, key, node, r.flags()); err != nil {
				return nil, err
			}
		}
	}
	if r.command != nil && r.command.Tag.Get(filesTag) == onlySection {
		clear(s.values)
	}
	maps.Copy(s.values, inSection)
	s.rebase(r.flags())
	return s, nil
}

// flags are those of all commands, and of flags of one name that of the selected command.
func (r *reader) flags() map[string]*kong.Flag {
	flags := flagsBelow(r.app.Node)
	if r.command != nil {
		maps.Copy(flags, flagsBelow(r.command))
	}
	return flags
}

func (r *reader) isSection(name string) bool {
	return name == r.files.Section || slices.Contains(r.files.Others, name) || child(r.app.Node, name) != nil
}

// section reads the settings of one command, if its flags are known here.
func (r *reader) section(path, name string, node *yaml.Node) (map[string]setting, error) {
	command := child(r.app.Node, name)
	switch {
	case name == r.files.Section:
		command = r.app.Node
	case command == nil:
		return nil, nil //nolint:nilnil // of another program, which checks it
	}
	flags, values := flagsBelow(command), map[string]setting{}
	for at := command.Parent; at != nil; at = at.Parent {
		for _, flag := range at.Flags {
			flags[flag.Name] = flag
		}
	}
	for key, node := range yamlfile.Pairs(node) {
		if err := r.add(values, path, key, node, flags); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// add adds one setting of a file.
func (r *reader) add(values map[string]setting, path string, key, node *yaml.Node, flags map[string]*kong.Flag) error {
	value, err := r.setting(path, key, node, flags)
	if _, twice := values[key.Value]; twice && err == nil {
		err = Usagef("%s:%d: %s is set twice", path, key.Line, key.Value)
	}
	values[key.Value] = value
	return err
}

// setting reads one value. Its text is checked later, as that of the flag is.
func (r *reader) setting(path string, key, node *yaml.Node, flags map[string]*kong.Flag) (setting, error) {
	value := setting{line: key.Line}
	fail := func(format string, args ...any) error {
		return Usagef("%s:%d: %s", path, key.Line, fmt.Sprintf(format, args...))
	}
	flag := flags[key.Value]
	if slices.Contains(perCommandLine(), key.Value) {
		return value, fail("%s is for command lines only", key.Value)
	}
	if flag == nil {
		names := slices.Sorted(maps.Keys(flags))
		if node.Kind == yaml.MappingNode {
			names = append(strings.Split(commandNames(r.app.Node), ", "), r.files.Others...)
		}
		if near, ok := prose.Nearest(key.Value, names); ok {
			return value, fail("unknown key %q; did you mean %q?", key.Value, near)
		}
		return value, fail("unknown key %q: keys are flags without --, or names of commands; --help-all lists them", key.Value)
	}
	kind := flag.Target.Kind()
	isList := kind == reflect.Slice || kind == reflect.String && strings.HasSuffix(flag.PlaceHolder, ",...")
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return value, fail("%s has no value", key.Value)
	case node.Kind == yaml.ScalarNode && kind == reflect.Slice && flag.Tag.Sep == -1:
		value.value = []string{node.Value}
	case node.Kind == yaml.ScalarNode:
		value.value = node.Value
	case node.Kind == yaml.SequenceNode && isList:
		items := make([]string, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return value, fail("%s: item %d must be a text", key.Value, i+1)
			}
			items[i] = item.Value
		}
		if value.value = items; kind == reflect.String {
			value.value = strings.Join(items, ",")
		}
	case node.Kind == yaml.MappingNode && kind == reflect.Map:
		entries := map[string]any{} // as kong takes it
		for name, entry := range yamlfile.Pairs(node) {
			if _, twice := entries[name.Value]; twice || entry.Kind != yaml.ScalarNode {
				return value, fail("%s: %s must occur once, with a text", key.Value, name.Value)
			}
			entries[name.Value] = entry.Value
		}
		value.value = entries
	case isList:
		return value, fail("%s must be a text or a list of texts", key.Value)
	case kind == reflect.Map:
		return value, fail("%s must be a mapping of texts", key.Value)
	default:
		return value, fail("%s must be one value", key.Value)
	}
	return value, nil
}

// rebase makes the paths in s relative to the directory of its file; ~/ is the home directory.
func (s *settings) rebase(flags map[string]*kong.Flag) {
	absolute := func(path string) string {
		if rest, is := strings.CutPrefix(path, "~/"); is {
			home, _ := os.UserHomeDir() // without one the path is not found, and named
			return filepath.Join(home, rest)
		}
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(filepath.Dir(s.path), path)
	}
	for key, value := range s.values {
		flag := flags[key]
		if flag == nil {
			continue
		}
		switch v := value.value.(type) {
		case string:
			if kind, file, named := strings.Cut(v, ":"); named && key == "model" && (kind == "script" || kind == "replay") {
				value.value = kind + ":" + absolute(file)
			} else if flag.PlaceHolder == "FILE" || flag.PlaceHolder == "DIR" {
				value.value = absolute(v)
			}
		case []string:
			if key == "mount" {
				for i := range v {
					v[i] = absolute(v[i]) // HOST comes first
				}
			}
		case map[string]any:
			if flag.PlaceHolder == "POOL=FILE" {
				for pool := range v {
					v[pool] = absolute(fmt.Sprint(v[pool]))
				}
			}
		}
		s.values[key] = value
	}
}

// parseYAML reads a file with one mapping; the mapping of an empty file is nil.
func parseYAML(path string) (root *yaml.Node, content []byte, err error) {
	content, err = regular.Read(path, maxSettings)
	if errors.Is(err, regular.ErrNot) || errors.Is(err, regular.ErrLarge) {
		return nil, nil, Usagef("%s: must be a file of at most %s", path, Size(maxSettings))
	}
	if err != nil {
		return nil, nil, Usagef("%s: %v", path, errors.Unwrap(err))
	}
	root, errs := yamlfile.Mapping(content)
	if len(errs) > 0 {
		return nil, nil, Usagef("%s:%d: %s; settings are one mapping of flags to values, such as model: openai:gpt-4.1", path, max(errs[0].Line, 1), errs[0].Message)
	}
	return root, content, nil
}

// child is the command of a name; nil for none.
func child(node *kong.Node, name string) *kong.Node {
	for _, c := range node.Children {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// flagsBelow are the flags of a node and its commands, by name.
func flagsBelow(node *kong.Node) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for _, c := range node.Children {
		maps.Copy(flags, flagsBelow(c))
	}
	for _, flag := range node.Flags {
		flags[flag.Name] = flag
	}
	return flags
}
