package hostenv

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// Host is where toolchains are looked for.
type Host struct {
	// Path is the user's PATH.
	Path string
	// Home is the user's home directory; "" when there is none.
	Home string
	// Env looks a variable of the user up.
	Env func(string) string
	// Workspace is the directory that is worked on in place; "" when there is none.
	Workspace string
	// View is what sandboxes see without a toolchain.
	View View
}

// Toolchain is an installation that sandboxes see where it is, read-only.
type Toolchain struct {
	Name string `json:"name"`
	Root string `json:"root"`
	// Parts are what of the root is shown, and of another that it needs: absolute paths.
	Parts []string `json:"parts"`
}

// LeftOut is an entry of the PATH that sandboxes do not have.
type LeftOut struct {
	Entry string `json:"entry"`
	Why   string `json:"why"`
}

// Found is what sandboxes have of the user's toolchains.
type Found struct {
	Toolchains []Toolchain `json:"toolchains"`
	// Path is the PATH of sandboxes: what of the user's exists in them.
	Path string `json:"path"`
	// Env are variables that the toolchains need.
	Env     map[string]string `json:"env,omitempty"`
	LeftOut []LeftOut         `json:"left_out,omitempty"`
}

// Mounts are the toolchains as mounts, none in another.
func (f Found) Mounts() []isolation.Mount {
	var parts []string
	for _, t := range f.Toolchains {
		parts = append(parts, t.Parts...)
	}
	slices.Sort(parts)
	var mounts []isolation.Mount
	for _, part := range slices.Compact(parts) {
		if !slices.ContainsFunc(mounts, func(m isolation.Mount) bool { return system.Within(m.Host, part) }) {
			mounts = append(mounts, isolation.Mount{Host: part, Guest: part, AsOwner: true})
		}
	}
	return mounts
}

// maxParts bounds how many parts are shown: each is a mount of every sandbox.
const maxParts = 256

// Find looks for the toolchains of the user's PATH. only are the kinds that are wanted: nil is all,
// and empty is none.
func Find(h Host, only []string) Found {
	f := &finder{host: h, only: only, workspace: resolved(h.Workspace), found: Found{Env: map[string]string{}}}
	var path []string
	for _, entry := range filepath.SplitList(h.Path) {
		inside, err := f.entry(entry)
		switch {
		case err != nil:
			f.found.LeftOut = append(f.found.LeftOut, LeftOut{Entry: entry, Why: err.Error()})
		case inside != "" && !slices.Contains(path, inside):
			path = append(path, inside)
		}
	}
	if f.found.Path = strings.Join(path, ":"); h.View.Host {
		f.found.Path, f.found.LeftOut = h.Path, nil
	}
	return f.found
}

// finder looks for toolchains.
type finder struct {
	host      Host
	found     Found
	only      []string
	workspace string
	parts     int
}

// entry makes an entry of the PATH be there, and returns what it is in a sandbox; "" for one that
// does not exist here either.
func (f *finder) entry(entry string) (string, error) {
	if entry == "" || !filepath.IsAbs(entry) {
		return "", errors.New("is not an absolute path")
	}
	dir := resolved(entry)
	switch {
	case dir == "" || !isDir(dir):
		return "", nil
	case f.workspace != "" && system.Within(f.workspace, dir):
		f.follow(dir, f.base)
		return f.inWorkspace(dir), nil
	case !f.host.View.has(dir):
		if err := f.install(dir); err != nil {
			return "", err
		}
		return dir, nil
	}
	f.follow(dir, f.linkedFile)
	if f.host.View.has(filepath.Clean(entry)) {
		return filepath.Clean(entry), nil
	}
	return dir, nil
}

// inWorkspace is where a sandbox has a path of the workspace.
func (f *finder) inWorkspace(dir string) string {
	if !f.host.View.Root {
		return dir
	}
	return guestWorkspace + strings.TrimPrefix(dir, f.workspace)
}

// follow calls found with where each symbolic link in a directory leads outside of what is there.
func (f *finder) follow(dir string, found func(target string)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // nothing in it can be run either
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSymlink == 0 {
			continue
		}
		target := resolved(filepath.Join(dir, entry.Name()))
		if target == "" || f.host.View.has(target) || f.shown(target) || f.workspace != "" && system.Within(f.workspace, target) {
			continue
		}
		found(target)
	}
}

// shown reports whether a toolchain has a path.
func (f *finder) shown(path string) bool {
	return slices.ContainsFunc(f.found.Toolchains, func(t Toolchain) bool { return isAny(path, t.Parts) })
}

// linkedFile makes a program be there that a link in a directory of the user's names: with the
// installation that it is in, or alone.
func (f *finder) linkedFile(target string) {
	dir := filepath.Dir(target)
	if root, k := f.rootOf(dir); k != nil {
		_ = f.add(root, *k) // the link leads nowhere then
		return
	}
	if name := filepath.Base(dir); (name == "bin" || name == "sbin") && f.private(filepath.Dir(dir)) == "" {
		_ = f.install(dir)
		return
	}
	_ = f.show(Toolchain{Name: Other, Root: target, Parts: []string{target}})
}

// base makes the interpreter be there that an environment in the workspace is of. Commands may have
// made that link: it is followed to installations of Python only.
func (f *finder) base(target string) {
	if root, k := f.rootOf(filepath.Dir(target)); k != nil && (k.name == "python" || k.name == "pyenv") {
		_ = f.add(root, *k) // the link leads nowhere then
	}
}

// install makes a directory of programs be there, with the installation that it is part of.
func (f *finder) install(bin string) error {
	if root, k := f.rootOf(bin); k != nil {
		if err := f.add(root, *k); err != nil || f.shown(bin) {
			return err
		}
	}
	root := filepath.Dir(bin)
	if name := filepath.Base(bin); name != "bin" && name != "sbin" || f.private(root) != "" || f.host.View.hides(root) != "" {
		return f.show(Toolchain{Name: Other, Root: bin, Parts: []string{bin}})
	}
	return f.add(root, kind{name: Other, parts: prefix})
}

// rootOf finds the installation that a directory is in: the outermost known one.
func (f *finder) rootOf(dir string) (string, *kind) {
	var above []string
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		above = append(above, at)
	}
	for _, root := range slices.Backward(above) {
		if f.private(root) != "" || f.host.View.has(root) {
			continue
		}
		for i := range kinds {
			if kinds[i].is(root) {
				return root, &kinds[i]
			}
		}
	}
	return "", nil
}

// add shows an installation of a kind.
func (f *finder) add(root string, k kind) error {
	t := Toolchain{Name: k.name, Root: root}
	for _, part := range k.parts {
		t.Parts = append(t.Parts, f.within(root, part)...)
	}
	env := map[string]string{}
	if b := k.companion; b != nil {
		at := f.host.Env(b.root)
		if at == "" && f.host.Home != "" {
			at = filepath.Join(f.host.Home, b.home)
		}
		if at = resolved(at); at != "" && f.private(at) == "" {
			for _, part := range b.parts {
				t.Parts = append(t.Parts, f.within(at, part)...)
			}
			env[b.root] = at
		}
	}
	if k.root != "" {
		env[k.root] = root
	}
	for _, name := range k.keeps {
		if value := f.host.Env(name); value != "" {
			env[name] = value
		}
	}
	if err := f.show(t); err != nil {
		return err
	}
	for name, value := range env {
		if _, earlier := f.found.Env[name]; !earlier {
			f.found.Env[name] = value
		}
	}
	return nil
}

// within are the paths of a part below a root, but for those that lead to where keys are, or into
// the workspace.
func (f *finder) within(root, part string) []string {
	return slices.DeleteFunc(matches(root, part), func(path string) bool {
		to := resolved(path)
		return to == "" || f.private(to) != "" || f.workspace != "" && system.Within(f.workspace, to)
	})
}

// show adds a toolchain and what links in its directories of programs need.
func (f *finder) show(t Toolchain) error {
	if slices.ContainsFunc(f.found.Toolchains, func(other Toolchain) bool { return other.Root == t.Root && other.Name == t.Name }) {
		return nil // by another entry, or a link in itself
	}
	if f.only != nil && !slices.Contains(f.only, t.Name) {
		return fmt.Errorf("is of kind %s, which --toolchains leaves out", t.Name)
	}
	if place := f.host.View.hides(t.Root); place != "" {
		return fmt.Errorf("is below %s, which sandboxes have of their own", place)
	}
	if why := f.private(t.Root); why != "" {
		return errors.New(why)
	}
	if f.parts += len(t.Parts); f.parts > maxParts {
		return fmt.Errorf("needs more than the %d mounts that a sandbox can have for toolchains", maxParts)
	}
	f.found.Toolchains = append(f.found.Toolchains, t)
	for _, part := range t.Parts {
		if slices.Contains([]string{"bin", "sbin", "shims"}, filepath.Base(part)) || part == t.Root && isDir(part) {
			f.follow(part, f.linkedFile)
		}
	}
	return nil
}

// secret are directories of a home that hold keys, tokens and settings.
var secret = []string{ //nolint:gochecknoglobals // a constant
	".config", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".npmrc", ".pypirc", ".git-credentials",
	".local/share/keyrings", ".mozilla", ".password-store",
}

// private says why a path is not shown whole; "" when it may be.
func (f *finder) private(path string) string {
	home := resolved(f.host.Home)
	switch {
	case path == "/" || home != "" && system.Within(path, home):
		return "is or contains the home directory"
	case home == "":
		return ""
	case slices.Contains([]string{".local", ".local/share", ".local/lib", ".cache", "snap"}, strings.TrimPrefix(path, home+"/")):
		return "has files of all kinds"
	}
	for _, name := range secret {
		if dir := filepath.Join(home, name); system.Within(dir, path) {
			return "is below " + dir + ", where keys and settings are"
		}
	}
	return ""
}

// Environ is Env with the PATH.
func (f Found) Environ() map[string]string {
	env := map[string]string{}
	maps.Copy(env, f.Env)
	env["PATH"] = f.Path
	return env
}
