// Package hostenv decides what sandboxes of a directory used in place get from the user's host:
// toolchains of the PATH, mounts, caches of package managers and compilers, the author of commits,
// published ports, the SSH agent, and credentials of git.
//
//	PATH of the user ──► Find ──► toolchains: read-only parts, variables, a PATH of what is there
//	--mount          ──► ParseMount, Check ──► mounts, or a refusal that says what is allowed
//	--cache          ──► OpenCache ──► a directory of the project, locked while it is in use
//	git config       ──► Identity ──► GIT_AUTHOR_NAME, ...
//	--publish        ──► ParsePublication, Listen ──► connections, which the worker forwards
//	--ssh-agent, --git-credentials ──► Doors ──► sockets in the sandbox; each request is looked at here
//
// A toolchain is never a whole directory of the user: of each kind only the parts that programs
// need are mounted, so that other files, such as tokens and settings, stay out. Links in the
// workspace, which commands may have written, are never followed outside.
package hostenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// View is what the sandboxes of a driver show of the host by themselves.
type View struct {
	// Root says that sandboxes have a root of their own: workspace, home and temporary files have
	// places there that are not those of the host.
	Root bool
	// Host says that sandboxes are no sandboxes: they see the host as it is.
	Host bool
	// sees are directories of the host that are there, and own those that hide the host's.
	sees, own []string
}

// guestWorkspace is where sandboxes with a root of their own have their workspace.
const guestWorkspace = "/workspace"

// guestTemp is where they have temporary files. What the host has below /tmp can be shown there.
const guestTemp = "/tmp"

// ViewOf is the view of a driver with these capabilities.
func ViewOf(caps isolation.Caps) View {
	system := []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr"}
	switch {
	case caps.Level == isolation.LevelNone:
		return View{Host: true, sees: append(system, "/opt")}
	case caps.Driver == "landlock":
		return View{sees: append(system, "/opt")}
	default:
		return View{
			Root: true, sees: system,
			own: []string{"/proc", "/dev", "/sys", "/etc", guestWorkspace, guestTemp, "/tmp.host", "/home/sandbox"},
		}
	}
}

// has reports whether sandboxes see a path of the host where it is.
func (v View) has(path string) bool { return isAny(path, v.sees) }

// hides is the place of the sandbox's own that a path is in; "" when there is none.
func (v View) hides(path string) string {
	if i := slices.IndexFunc(v.own, func(dir string) bool { return hides(dir, path) }); i >= 0 {
		return v.own[i]
	}
	return ""
}

// hides reports whether a directory of the sandbox's own hides a path of the host.
func hides(own, path string) bool {
	return path == own || own != guestTemp && system.Within(own, path)
}

func isAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return system.Within(dir, path) })
}

// resolved is a path without symbolic links; "" when nothing is there.
func resolved(path string) string {
	if path == "" {
		return ""
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return target
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// kind is a kind of installation: how its root is known, and what programs need of it.
type kind struct {
	name string
	// base is the name of the root; "" is any.
	base string
	// marks are all in the root. They are patterns, as parts.
	marks []string
	// parts are what is shown, as far as it is there.
	parts []string
	// root is the variable that names the root in a sandbox, and keeps are variables that are taken
	// over as they are.
	root  string
	keeps []string
	// companion is another installation that this one needs. A variable names its directory;
	// without the variable it is below the home directory.
	companion *companion
}

type companion struct {
	root  string // the variable
	home  string // relative to the home directory
	parts []string
}

// Other is the name of a toolchain of no kind: a directory of programs, with the libraries next to
// it.
const Other = "other"

// prefix are the parts of an installation that is laid out as most are.
var prefix = []string{"bin", "sbin", "lib", "lib64", "libexec", "include", "share"} //nolint:gochecknoglobals // a constant

// kinds are what is known, in the order in which it is looked for.
var kinds = []kind{ //nolint:gochecknoglobals // a constant table
	{name: "nix", base: "nix", marks: []string{"store"}, parts: []string{"store"}},
	versions("pyenv", "PYENV"), versions("rbenv", "RBENV"), versions("nodenv", "NODENV"), versions("goenv", "GOENV"),
	{name: "mise", base: "mise", marks: []string{"installs"}, parts: []string{"shims", "installs", "plugins"}, root: "MISE_DATA_DIR"},
	{name: "asdf", base: ".asdf", parts: []string{"bin", "lib", "libexec", "shims", "installs", "plugins", "asdf.sh"}, root: "ASDF_DATA_DIR"},
	{name: "volta", base: ".volta", parts: []string{"bin", "tools"}, root: "VOLTA_HOME"},
	{
		name: "homebrew", marks: []string{"bin/brew", "Cellar"},
		parts: append([]string{"Cellar", "opt", "Frameworks", "etc/openssl*", "etc/ca-certificates"}, prefix...),
	},
	{
		name: "conda", marks: []string{"conda-meta"},
		parts: append([]string{"condabin", "conda-meta", "ssl", "envs/*/conda-meta", "envs/*/bin", "envs/*/lib", "envs/*/include", "envs/*/share"}, prefix...),
	},
	{
		name: "rust", marks: []string{"bin/cargo"}, parts: []string{"bin", "lib", "libexec"}, keeps: []string{"RUSTUP_TOOLCHAIN"},
		companion: &companion{root: "RUSTUP_HOME", home: ".rustup", parts: []string{"toolchains", "settings.toml", "update-hashes"}},
	},
	{name: "go", marks: []string{"VERSION", "pkg/tool"}, parts: []string{"bin", "pkg", "src", "lib", "misc", "api", "go.env", "VERSION"}},
	{name: "maven", marks: []string{"bin/mvn", "boot"}, parts: []string{"bin", "boot", "lib", "conf/logging"}},
	{name: "gradle", marks: []string{"bin/gradle", "lib"}, parts: []string{"bin", "lib"}},
	{
		name: "java", marks: []string{"release", "lib"},
		parts: []string{"bin", "conf", "include", "jmods", "jre", "legal", "lib", "release"}, root: "JAVA_HOME",
	},
	{
		name: "dotnet", marks: []string{"dotnet", "host/fxr"},
		parts: []string{"dotnet", "host", "packs", "sdk", "sdk-manifests", "shared", "templates"}, root: "DOTNET_ROOT",
	},
	{name: "python", marks: []string{"pyvenv.cfg"}, parts: append([]string{"pyvenv.cfg"}, prefix...)},
	{name: "python", marks: []string{"bin/python3", "lib/python3*"}, parts: prefix},
	{name: "node", marks: []string{"bin/node"}, parts: prefix},
}

// versions is the kind of pyenv and of those that are made like it. Settings of a version that may
// hold tokens, such as pip.conf, are not among its parts.
func versions(name, variable string) kind {
	// Not its hooks: that of exec would renew the shims, which are read-only, and fail.
	parts := []string{"bin", "libexec", "plugins", "shims", "version"}
	for _, at := range []string{"versions/*/", "versions/*/envs/*/"} {
		for _, part := range append([]string{"pyvenv.cfg"}, prefix...) {
			parts = append(parts, at+part)
		}
	}
	return kind{
		name: name, marks: []string{"libexec/" + name}, parts: parts,
		root: variable + "_ROOT", keeps: []string{variable + "_VERSION"},
	}
}

// Kinds are the names of toolchains, sorted.
func Kinds() []string {
	names := []string{Other}
	for _, k := range kinds {
		names = append(names, k.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// is reports whether a directory is the root of an installation of this kind.
func (k kind) is(root string) bool {
	if k.base != "" && filepath.Base(root) != k.base {
		return false
	}
	return !slices.ContainsFunc(k.marks, func(mark string) bool { return len(matches(root, mark)) == 0 })
}

// matches are the paths that a pattern below a root names.
func matches(root, pattern string) []string {
	if !strings.Contains(pattern, "*") {
		path := filepath.Join(root, pattern)
		if _, err := os.Stat(path); err != nil {
			return nil
		}
		return []string{path}
	}
	found, _ := filepath.Glob(filepath.Join(literal(root), pattern)) // patterns here are valid
	return found
}

// literal quotes what means something in a pattern.
func literal(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// ParseMount reads HOST[:INSIDE][:ro|rw]. HOST becomes absolute; INSIDE is the same path where it
// is left out, and ro is what is meant without a word.
func ParseMount(text string) (isolation.Mount, error) {
	parts := strings.Split(text, ":")
	m := isolation.Mount{AsOwner: true}
	if last := parts[len(parts)-1]; len(parts) > 1 && (last == "ro" || last == "rw") {
		m.Write, parts = last == "rw", parts[:len(parts)-1]
	}
	if len(parts) > 2 || parts[0] == "" {
		return m, errors.New("want HOST[:INSIDE][:ro|rw], as in ~/data, ~/data:/data or ~/data:/data:rw")
	}
	host, err := filepath.Abs(parts[0])
	if err != nil {
		return m, err
	}
	m.Host, m.Guest = host, host
	if len(parts) == 2 {
		if !filepath.IsAbs(parts[1]) {
			return m, fmt.Errorf("INSIDE is %q: must be an absolute path, or one of the words ro and rw", parts[1])
		}
		m.Guest = filepath.Clean(parts[1])
	}
	return m, nil
}

// Limits of the host's paths that sandboxes get.
type Limits struct {
	View View
	// Home is the user's home directory, Workspace the directory that is worked on in place, and
	// Data are directories of toolfleet's own; "" is none.
	Home, Workspace string
	Data            []string
}

// ofTheHost are paths where the host's processes and devices can be reached.
var ofTheHost = []string{"/proc", "/sys", "/dev", "/run", "/var/run"} //nolint:gochecknoglobals // a constant

// Check refuses a mount that would let commands out of their sandbox, or that a sandbox cannot
// have.
func (l Limits) Check(m isolation.Mount) error {
	host := resolved(m.Host)
	if host == "" {
		return fmt.Errorf("%s does not exist", m.Host)
	}
	if err := l.checkHost(host, m.Write); err != nil {
		return err
	}
	if err := l.checkGuest(m); err != nil {
		return err
	}
	return checkKinds(host)
}

func (l Limits) checkHost(host string, write bool) error {
	for _, dir := range ofTheHost {
		if system.Within(dir, host) {
			return fmt.Errorf("%s has devices, processes and sockets of the host; directories and files elsewhere can be mounted", dir)
		}
	}
	home, workspace := resolved(l.Home), resolved(l.Workspace)
	if host == "/" || home != "" && system.Within(host, home) {
		return fmt.Errorf("%s is or contains your home directory, with keys and tokens; mount the part that is needed, such as %s",
			host, filepath.Join(l.Home, "data"))
	}
	for _, data := range l.Data {
		if data = resolved(data); data != "" && (system.Within(data, host) || system.Within(host, data)) {
			return fmt.Errorf("%s is, contains or is in %s, where toolfleet stores sessions and caches; mount another directory", host, data)
		}
	}
	if write && workspace != "" && (system.Within(workspace, host) || system.Within(host, workspace)) {
		return fmt.Errorf("%s is, contains or is in the workspace, which is writable already, except protected paths (--protect); omit rw", host)
	}
	return nil
}

func (l Limits) checkGuest(m isolation.Mount) error {
	switch {
	case !l.View.Root && m.Guest != m.Host:
		return fmt.Errorf("INSIDE is %s: with this driver, files have the same path inside as on the host; omit INSIDE, or use --sandbox ns", m.Guest)
	case !l.View.Root:
		return nil
	case m.Guest == "/":
		return errors.New("INSIDE is /: must be a directory below it, such as /data")
	}
	for _, own := range slices.Concat(l.View.own, l.View.sees) {
		if hides(own, m.Guest) || system.Within(m.Guest, own) {
			return fmt.Errorf("the path inside would be %s, but %s belongs to the sandbox; choose another path, as in --mount %s:/data", m.Guest, own, m.Host)
		}
	}
	return nil
}

// mostEntries bounds the look for sockets in what is mounted.
const mostEntries = 50_000

var errEnough = errors.New("enough was looked at")

// checkKinds refuses sockets, devices and FIFOs: behind them are processes of the host, also when
// the mount is read-only.
func checkKinds(host string) error {
	const special = fs.ModeSocket | fs.ModeDevice | fs.ModeCharDevice | fs.ModeNamedPipe | fs.ModeIrregular
	seen := 0
	err := filepath.WalkDir(host, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > mostEntries {
			return errEnough
		}
		switch {
		case err != nil && path == host:
			return err
		case err != nil:
			return nil //nolint:nilerr // commands cannot read it either
		case d.Type()&special == 0:
			return nil
		case path == host:
			return fmt.Errorf("%s is a socket, a device or a FIFO; only directories and files can be mounted", path)
		}
		return fmt.Errorf("%s is a socket, a device or a FIFO, which would let commands reach the host; mount a directory without one", path)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// CheckAll parses and checks mounts, and refuses two at one path.
func (l Limits) CheckAll(texts []string) ([]isolation.Mount, error) {
	var mounts []isolation.Mount
	for _, text := range texts {
		m, err := ParseMount(text)
		if err == nil {
			err = l.Check(m)
		}
		if err == nil && slices.ContainsFunc(mounts, func(other isolation.Mount) bool { return other.Guest == m.Guest }) {
			err = fmt.Errorf("two mounts have the path %s", m.Guest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}
