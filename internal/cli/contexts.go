package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/synadia-io/orbit.go/natscontext"
	"go.yaml.in/yaml/v3"
	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// A context is one of the nats tool: a file with servers, credentials and certificates. What that
// tool would drop from it, such as the name of the fleet, is in a second file, of flags, which
// overrides it. Contexts of earlier versions have only the second one.

// Contexts choose stored connection flags, as flags.
type Contexts struct {
	Context string `placeholder:"NAME" aliases:"nats-context" env:"TOOLFLEET_CONTEXT,TOOLFLEET_NATS_CONTEXT" brief:"Connection flags under a name, see coordinator context." help:"Context whose connection flags apply where neither a flag nor a variable says otherwise: one of coordinator context add or of the nats tool; none for no context. Default: the one in use (coordinator context use), unless --nats is given."`

	reach string // see Reach
}

// AfterApply implements a hook of kong.
func (c *Contexts) AfterApply(kctx *kong.Context, s *sources) error {
	c.reach = s.reach(kctx)
	return nil
}

// Reach returns the shortest flags by which another command reaches the same fleet, quoted for a
// shell and each with a space in front: the context by its name, and what this command line, its
// variables or the project's file set apart from it. Secrets of URLs are left out.
func (c *Contexts) Reach() string { return c.reach }

// Context is a stored context.
type Context struct {
	Name   string            `json:"name"`
	InUse  bool              `json:"in_use"`
	Values map[string]string `json:"values"` // by the name of the flag, without secrets
}

// contextFiles are the files of a context: that of the nats tool, and that with more flags.
func contextFiles(name string) (tool, more string, err error) {
	if name == "" || name == noContext || strings.Contains(name, "..") || strings.ContainsAny(name, `/\`) {
		return "", "", Usagef("context %q: a name is that of a file, without .., and not %s", name, noContext)
	}
	if more, err = ConfigDir(filepath.Join("contexts", name+".yaml")); err == nil {
		tool, err = ConfigDir(filepath.Join("..", "nats", "context", name+".json"))
	}
	return tool, more, err
}

// readContext reads the flags of a context, and its servers; nil if there is none.
func readContext(name string) (s *settings, servers string, err error) {
	tool, more, err := contextFiles(name)
	if err != nil {
		return nil, "", err
	}
	s = &settings{path: more, label: contextLabel + name, values: map[string]setting{}}
	read := func(path string, parse func([]byte, any) error, into any) bool {
		content, failed := regular.Read(path, maxSettings)
		if failed == nil {
			failed = parse(content, into)
		}
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, Usagef("context %s: %s: %v", name, path, failed))
		}
		return failed == nil
	}
	var fields natscontext.Settings
	var flags map[string]any
	if read(tool, json.Unmarshal, &fields) {
		servers, s.values[flagNats] = fields.URL, setting{value: natsio.ContextScheme + tool}
	}
	read(more, yaml.Unmarshal, &flags)
	for key, value := range flags {
		if known := append(ConnectionFlags(), "fleet"); !slices.Contains(known, key) {
			err = errors.Join(err, Usagef("context %s: %s: %s must be %s", name, more, key, strings.Join(known, ", ")))
		}
		s.values[key] = setting{value: value}
	}
	if url, is := flags[flagNats]; is {
		servers = fmt.Sprint(url)
	}
	if err != nil || s.values[flagNats].value == nil { // the nats tool has removed it
		return nil, "", err
	}
	return s, servers, nil
}

// AddContext stores a new context with servers and flags. Without servers the flags are for a
// context that the nats tool has. A token stays in its file.
func AddContext(name, servers string, flags map[string]any) error {
	tool, more, err := contextFiles(name)
	if err != nil {
		return err
	}
	context, _, err := readContext(name)
	switch {
	case err != nil:
		return err
	case context == nil && servers == "":
		return Usagef("there is no context %s of the nats tool: give its servers with --nats URL", name)
	case context != nil && (servers != "" || exists(more)):
		return Usagef("context %s exists: remove it first, with coordinator context rm %s", name, name)
	}
	fields := natscontext.Settings{URL: servers, InboxPrefix: natsio.InboxPrefix(servers)}
	for flag, field := range map[string]*string{"creds": &fields.Creds, "tls-ca": &fields.CA, "tls-cert": &fields.Cert, "tls-key": &fields.Key} {
		file, _ := flags[flag].(string)
		if servers != "" && (flag != "creds" || natsio.IsCredentials(file) && !strings.Contains(file, "$")) { // the tool expands variables
			*field = file
			delete(flags, flag)
		}
	}
	content, err := yaml.Marshal(flags)
	if err = errors.Join(err, os.MkdirAll(filepath.Dir(more), 0o700), os.MkdirAll(filepath.Dir(tool), 0o700)); err != nil {
		return err
	}
	if err := regular.Replace(more, content); err != nil || servers == "" { // the next file makes it a context
		return err
	}
	if content, err = json.MarshalIndent(fields, "", "  "); err != nil { //nolint:gosec // a password is only in the URL, as the person gave it
		return err
	}
	return regular.Create(tool, content)
}

// contextKey is the file of the key that a context got with a join token.
func contextKey(name string) (string, error) {
	_, more, err := contextFiles(name)
	return strings.TrimSuffix(more, ".yaml") + ".key", err
}

// StoreContextKey stores the key that signs calls for a context that is added next, and returns its
// file. It is removed with the context.
func StoreContextKey(name string, key []byte) (string, error) {
	file, err := contextKey(name)
	if err != nil {
		return "", err
	}
	if context, _, err := readContext(name); context != nil || err != nil {
		return "", cmp.Or(err, error(Usagef("context %s exists: remove it first, with coordinator context rm %s", name, name)))
	}
	return file, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), regular.Replace(file, key))
}

// contextLabel begins the label of a context's settings.
const contextLabel = "context "

// reach is [Contexts.Reach].
func (s *sources) reach(kctx *kong.Context) string {
	var flags strings.Builder
	add := func(flag, value string) { fmt.Fprintf(&flags, " --%s %s", flag, ShellWord(value)) }
	always := []string{"(user)"} // what any command takes from there
	for _, from := range s.list {
		if name, is := strings.CutPrefix(from.label, contextLabel); is {
			add(flagContext, name)
			always = append(always, from.label)
		}
	}
	if name, _ := given(kctx, flagContext); name == noContext && find(kctx, flagNats).Target.IsZero() {
		add(flagContext, noContext) // another one may be in use
	}
	names := append(ConnectionFlags(), flagBodies, "fleet")
	if find(kctx, flagNats).Target.IsZero() { // else it has no effect
		names = append(names, "data")
	}
	for _, name := range names {
		flag := find(kctx, name)
		if flag == nil || flag.Target.IsZero() {
			continue
		}
		origin := s.origin(kctx, flag)
		value := shown(name, flag.Target.Interface())
		switch {
		case origin == "", slices.ContainsFunc(always, func(from string) bool { return strings.HasSuffix(origin, from) }):
		case strings.HasPrefix(origin, ofVariable) && value != asText(flag.Target.Interface(), strings.Clone): // a secret, which other commands have, too
		default:
			add(name, value)
		}
	}
	return flags.String()
}

// ConnectionFlags are the flags that say how a fleet is reached, in the order in which hints have
// them.
func ConnectionFlags() []string {
	return []string{flagNats, "pool-nats", "pool-creds", "creds", "tls-ca", "tls-cert", "tls-key", "tls-authority", "sign-key"}
}

// flagBodies is the flag of a URL without secrets: its credentials are in variables.
const flagBodies = "bodies"

// ShellWord quotes a word for a shell.
func ShellWord(word string) string {
	if quoted, err := syntax.Quote(word, syntax.LangPOSIX); err == nil {
		return quoted
	}
	return word // no shell accepts it
}

// contextNamed reads a context, with paths as flags name them.
func contextNamed(name string, flags map[string]*kong.Flag) (*settings, error) {
	context, _, err := readContext(name)
	if err != nil {
		return nil, err
	}
	if context == nil {
		all, _ := ListContexts() // only to say which there are
		var names []string
		for _, c := range all {
			names = append(names, c.Name)
		}
		if len(names) == 0 {
			return nil, Usagef("there is no context %s, and no other: coordinator context add %s --nats URL adds it", name, name)
		}
		return nil, Usagef("there is no context %s: must be %s, or %s for no context", name, strings.Join(names, ", "), noContext)
	}
	context.rebase(flags)
	return context, nil
}

// ListContexts returns the stored contexts by name.
func ListContexts() ([]Context, error) {
	tool, more, err := contextFiles("x")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, file := range []string{tool, more} {
		entries, err := os.ReadDir(filepath.Dir(file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			if name, is := strings.CutSuffix(entry.Name(), filepath.Ext(file)); is {
				names[name] = true
			}
		}
	}
	all, inUse := []Context{}, ContextInUse()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s, servers, err := readContext(name)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		c := Context{Name: name, InUse: name == inUse, Values: map[string]string{}}
		for key, value := range s.values {
			c.Values[key] = shown(key, value.value)
		}
		if servers != "" {
			c.Values[flagNats] = shown(flagNats, servers)
		}
		all = append(all, c)
	}
	return all, nil
}

// shown is the value of a connection flag, as one gives it, without the secrets of URLs.
func shown(flag string, value any) string {
	return asText(value, func(text string) string {
		if flag == flagBodies {
			return text
		}
		return withoutSecrets(flag, text)
	})
}

// asText is a value as one gives it for a flag, with each text of it changed.
func asText(value any, change func(string) string) string {
	entries := reflect.ValueOf(value)
	if entries.Kind() != reflect.Map {
		return change(fmt.Sprint(value))
	}
	var texts []string
	for key, entry := range entries.Seq2() {
		texts = append(texts, key.String()+"="+change(fmt.Sprint(entry)))
	}
	slices.Sort(texts)
	return strings.Join(texts, ";")
}

// inUseFile has the name of the context in use.
func inUseFile() (string, error) { return ConfigDir("context") }

// ContextInUse is the context that commands use without --context; "" for none.
func ContextInUse() string {
	path, err := inUseFile()
	if err != nil {
		return ""
	}
	content, _ := regular.Read(path, maxSettings) // there may be none
	return strings.TrimSpace(string(content))
}

// UseContext has commands use a context, or none.
func UseContext(name string) error {
	path, err := inUseFile()
	if err != nil {
		return err
	}
	if name == noContext {
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if context, _, err := readContext(name); context == nil {
		return cmp.Or(err, errNoContext(name))
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), regular.Replace(path, []byte(name+"\n")))
}

func errNoContext(name string) error {
	return fmt.Errorf("there is no context %s: coordinator context ls lists them", name)
}

// RemoveContext removes a context, also of the nats tool; if it was in use, none is.
func RemoveContext(name string) error {
	nats, more, err := contextFiles(name)
	if err != nil {
		return err
	}
	if !exists(nats) && !exists(more) {
		return errNoContext(name)
	}
	key, err := contextKey(name)
	if err != nil {
		return err
	}
	for _, path := range []string{nats, more, key} { // alone the others are no context
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if ContextInUse() == name {
		return UseContext(noContext)
	}
	return nil
}

// StateDir returns the directory of a user's lasting files, below
// $XDG_STATE_HOME (ignored unless it is absolute) or ~/.local/state; it is not made.
func StateDir(name string) (string, error) {
	return userDir("XDG_STATE_HOME", filepath.Join(".local", "state"), name)
}

// ConfigDir returns a path among a user's settings, below $XDG_CONFIG_HOME or ~/.config; it is not
// made.
func ConfigDir(name string) (string, error) { return userDir("XDG_CONFIG_HOME", ".config", name) }

func userDir(variable, inHome, name string) (string, error) {
	base := os.Getenv(variable)
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for lasting files: %w; set it, or %s", err, variable)
		}
		if !filepath.IsAbs(home) { // each command would have another one, by where it is started
			return "", fmt.Errorf("no directory for lasting files: the home directory (HOME) is %q, must be an absolute path; set it, or %s", home, variable)
		}
		base = filepath.Join(home, inHome)
	}
	return filepath.Join(base, "toolfleet", name), nil
}
