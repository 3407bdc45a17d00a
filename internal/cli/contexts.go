package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Contexts choose stored connection flags, as flags. A context has a name, and is a file that only
// its user can read.
type Contexts struct {
	Context     string `placeholder:"NAME" brief:"Connection flags under a name, see coordinator context." help:"Context whose connection flags apply where neither a flag nor a variable says otherwise (coordinator context add); none for no context. Default: the one in use (coordinator context use), unless --nats is given."`
	NatsContext string `placeholder:"NAME" help:"Context of the nats tool with the servers and credentials; instead of --nats."`
}

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
	context, err := r.read(path, "context "+name, false)
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
	content, _ := os.ReadFile(path) // there may be none
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
	return os.WriteFile(path, []byte(name+"\n"), 0o600)
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
