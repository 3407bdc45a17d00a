package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/regular"
)

// Contexts choose stored connection flags, as flags. A context has a name, and is a file that only
// its user can read.
type Contexts struct {
	Context     string `placeholder:"NAME" brief:"Connection flags under a name, see coordinator context." help:"Context whose connection flags apply where neither a flag nor a variable says otherwise (coordinator context add); none for no context. Default: the one in use (coordinator context use), unless --nats is given."`
	NatsContext string `placeholder:"NAME" help:"Context of the nats tool with the servers and credentials; instead of --nats."`

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

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// contextFile is the file of a context.
func contextFile(name string) (string, error) {
	if !contextName.MatchString(name) || name == noContext {
		return "", Usagef("context %q: a name is 1 to 64 letters, digits, '.', '-' or '_', and not %s", name, noContext)
	}
	return ConfigDir(filepath.Join("contexts", name+".yaml"))
}

// AddContext stores a new context with the values of flags; empty ones are left out.
func AddContext(name string, values map[string]any) error {
	path, err := contextFile(name)
	if err != nil {
		return err
	}
	content, err := yaml.Marshal(values)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return Usagef("context %s exists: remove it first, with coordinator context rm %s", name, name)
	}
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
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
			always = append(always, "("+from.label+")")
		}
	}
	if name, _ := given(kctx, flagContext); name == noContext && find(kctx, flagNats).Target.IsZero() {
		add(flagContext, noContext) // another one may be in use
	}
	for _, name := range []string{flagNats, "pool-nats", "pool-creds", "creds", "tls-ca", "tls-cert", "tls-key", "sign-key", flagBodies, "fleet"} {
		flag := find(kctx, name)
		if flag == nil || flag.Target.IsZero() {
			continue
		}
		origin := s.origin(kctx, flag)
		value, secret := flagText(flag)
		switch {
		case origin == "", slices.ContainsFunc(always, func(from string) bool { return strings.HasSuffix(origin, from) }):
		case strings.HasPrefix(value, natsio.ContextScheme):
			add(flagNatsContext, strings.TrimPrefix(value, natsio.ContextScheme))
		case secret && strings.HasPrefix(origin, ofVariable): // which other commands have, too
		default:
			add(name, value)
		}
	}
	return flags.String()
}

// flagBodies is the flag of a URL without secrets: its credentials are in variables.
const flagBodies = "bodies"

// flagText is the value of a connection flag, as one gives it, without the secrets of URLs, and
// whether it has some.
func flagText(flag *kong.Flag) (text string, secret bool) {
	entries, is := reflect.TypeAssert[map[string]string](flag.Target)
	if !is {
		value := flag.Target.String()
		if text = value; flag.Name != flagBodies {
			text = withoutSecrets(flag.Name, value)
		}
		return text, text != value
	}
	texts := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		value := withoutSecrets(flag.Name, entries[key])
		texts, secret = append(texts, key+"="+value), secret || value != entries[key]
	}
	return strings.Join(texts, ";"), secret
}

// ShellWord quotes a word for a shell.
func ShellWord(word string) string {
	if quoted, err := syntax.Quote(word, syntax.LangPOSIX); err == nil {
		return quoted
	}
	return word // no shell accepts it
}

// contextNamed reads a context.
func (r *reader) contextNamed(name string) (*settings, error) {
	path, err := contextFile(name)
	if err != nil {
		return nil, err
	}
	if !exists(path) {
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
	context, err := r.read(path, contextLabel+name, false)
	if err != nil {
		return nil, err
	}
	context.rebase(r.flags())
	return context, nil
}

// ListContexts returns the stored contexts by name.
func ListContexts() ([]Context, error) {
	dir, err := ConfigDir("contexts")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all, inUse := []Context{}, ContextInUse()
	for _, entry := range entries {
		name, is := strings.CutSuffix(entry.Name(), ".yaml")
		if !is || !contextName.MatchString(name) {
			continue
		}
		root, _, err := parseYAML(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		c := Context{Name: name, InUse: name == inUse, Values: map[string]string{}}
		if root != nil {
			for key, node := range pairs(root) {
				c.Values[key.Value] = shown(key.Value, node)
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// shown is the value of a flag as contexts are listed.
func shown(flag string, node *yaml.Node) string {
	if node.Kind == yaml.ScalarNode {
		return withoutSecrets(flag, node.Value)
	}
	var entries []string
	for key, value := range pairs(node) {
		entries = append(entries, key.Value+"="+withoutSecrets(flag, value.Value))
	}
	slices.Sort(entries)
	return strings.Join(entries, ";")
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
	if name != noContext {
		path, err := contextFile(name)
		if err != nil {
			return err
		}
		if !exists(path) {
			return fmt.Errorf("there is no context %s: coordinator context ls lists them", name)
		}
	}
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
	return regular.Replace(path, []byte(name+"\n"))
}

// RemoveContext removes a context; if it was in use, none is.
func RemoveContext(name string) error {
	path, err := contextFile(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no context %s: coordinator context ls lists them", name)
	} else if err != nil {
		return err
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
		base = filepath.Join(home, inHome)
	}
	return filepath.Join(base, "toolfleet", name), nil
}
