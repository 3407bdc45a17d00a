package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// HostFlags say what the embedded worker's sandboxes see of the host.
type HostFlags struct {
	Toolchains string   `default:"auto" placeholder:"auto|none|NAME,..." help:"Toolchains of your PATH to mount read-only into the embedded worker's sandboxes: auto mounts all that are found (coordinator doctor lists them)."`
	Mount      []string `sep:"none" placeholder:"HOST[:INSIDE][:ro|rw]" brief:"Mount another directory or file." help:"Further directory or file to mount into the embedded worker's sandboxes, at the same path unless INSIDE is given, read-only unless rw is given. May be given several times."`
	Cache      string   `default:"auto" placeholder:"auto|none|NAME" help:"Cache of modules and builds that sandboxes of the embedded worker keep between sessions: auto is a cache for this workspace, NAME a cache that workspaces share."`
	CacheSize  cli.Size `default:"10G" placeholder:"SIZE" help:"Maximum size of all caches; the least recently used cache is removed first. 0 means unlimited."`

	AccessFlags
}

// Words of the flags.
const (
	flagAuto = "auto"
	flagNone = "none"
)

// kinds returns the requested toolchains; nil means all.
func (f *HostFlags) kinds() ([]string, error) {
	switch f.Toolchains {
	case flagAuto:
		return nil, nil
	case flagNone:
		return []string{}, nil
	}
	names := strings.Split(f.Toolchains, ",")
	for i, text := range names {
		if names[i] = strings.TrimSpace(text); !slices.Contains(hostenv.Kinds(), names[i]) {
			return nil, cli.Usagef("--toolchains: %q is not a toolchain: must be auto, none, or some of %s", names[i], strings.Join(hostenv.Kinds(), ", "))
		}
	}
	return names, nil
}

// checkHost returns a usage error for flags that are wrong on every host; elsewhere says that the
// workers are.
func (f *HostFlags) checkHost(elsewhere bool) error {
	if _, err := f.kinds(); err != nil {
		return err
	}
	if f.Cache != flagAuto && f.Cache != flagNone {
		if err := hostenv.CheckCacheName(f.Cache); err != nil {
			return cli.Usagef("--cache %s: must be auto, none, or a name: %v", f.Cache, err)
		}
	}
	if err := f.checkAccess(elsewhere); err != nil {
		return err
	}
	if elsewhere && len(f.Mount) > 0 {
		return cli.Usagef("--mount %s: works only without --nats, for the worker inside this process", f.Mount[0])
	}
	for _, text := range f.Mount {
		if _, err := hostenv.ParseMount(text); err != nil {
			return cli.Usagef("--mount %s: %v", text, err)
		}
	}
	return nil
}

// Host is what sandboxes see of the host.
type Host struct {
	found  hostenv.Found
	mounts []isolation.Mount // all of them
	env    map[string]string
	cache  *hostenv.Cache    // nil for none
	asked  []isolation.Mount // of --mount
	access *access
	git    string       // why git does not work in the workspace; "" where it does
	free   func() error // releases the repository of the workspace; nil for nothing
}

// open decides what sandboxes of a worker see of the host. The session uses the directory workspace
// in place, unless it is "", and data has sessions.
func (f *HostFlags) open(ctx context.Context, w *worker, workspace, data string) (*Host, error) {
	view := hostenv.ViewOf(w.Caps)
	home, _ := os.UserHomeDir() // "" is none
	state, _ := cli.StateDir("")
	limits := hostenv.Limits{View: view, Home: home, Workspace: workspace, Data: []string{data, state}}
	asked, err := limits.CheckAll(f.Mount)
	if err != nil {
		return nil, cli.Usagef("--mount %v", err)
	}
	only, err := f.kinds()
	if err != nil {
		return nil, err
	}
	found := hostenv.Find(hostenv.Host{
		Path: os.Getenv("PATH"), Home: home, Env: os.Getenv, Workspace: workspace, View: view,
	}, only)
	h := &Host{found: found, asked: asked, mounts: slices.Concat(found.Mounts(), asked), env: found.Environ()}
	if workspace != "" {
		maps.Copy(h.env, wire.AuthorEnv(Author(ctx, workspace)))
	}
	if err := h.openCache(ctx, f, view, workspace); err != nil {
		return nil, err
	}
	if outside := gitguard.FindOutside(ctx, workspace); workspace != "" && outside != nil && !view.Host {
		h.addRepository(ctx, limits, outside)
	}
	if h.access, err = f.openAccess(ctx, w.Caps.Driver, view, w.Allow, workspace); err != nil {
		return nil, errors.Join(err, h.close())
	}
	if doors := h.access.doors; doors != nil {
		h.mounts = append(h.mounts, doors.Mount())
		maps.Copy(h.env, doors.Env)
	}
	return h, nil
}

// Author is who commits in a directory; "" is the current one.
func Author(ctx context.Context, dir string) protocol.Author {
	name, email := hostenv.Identity(ctx, dir)
	return protocol.Author{Name: name, Email: email}
}

// addRepository mounts the repository of a linked worktree or a submodule. If it cannot, a notice
// says why git does not work there.
func (h *Host) addRepository(ctx context.Context, limits hostenv.Limits, outside *gitguard.Outside) {
	if slices.ContainsFunc(h.asked, func(m isolation.Mount) bool { return m.Host == outside.Common || m.Host == outside.Dir }) {
		return // --mount decides
	}
	h.git = outside.String()
	if !outside.NamesBack {
		return
	}
	mounts, free, err := limits.Repository(ctx, outside)
	if err != nil {
		h.git += fmt.Sprintf(" (%v)", err)
		return
	}
	h.git, h.free, h.mounts = "", free, slices.Concat(h.mounts, mounts)
}

func (h *Host) openCache(ctx context.Context, f *HostFlags, view hostenv.View, workspace string) (err error) {
	name := f.Cache
	if name == flagNone || name == flagAuto && workspace == "" {
		return nil
	}
	if name == flagAuto {
		if name, err = hostenv.ProjectCache(workspace); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
	}
	dir, err := cli.StateDir("caches")
	if err != nil {
		return err
	}
	if h.cache, err = (hostenv.Caches{Dir: dir, Bytes: int64(f.CacheSize)}).Open(ctx, name, workspace); err != nil {
		return err
	}
	h.mounts = append(h.mounts, h.cache.Mount(view))
	maps.Copy(h.env, h.cache.Env(view))
	return nil
}

// close closes what is open, and releases the cache.
func (h *Host) close() error {
	if h == nil {
		return nil
	}
	if h.access != nil {
		h.access.close()
	}
	var err error
	if h.free != nil {
		err = h.free()
	}
	if h.cache == nil {
		return err
	}
	return errors.Join(err, h.cache.Close())
}

// hostEvent is the line of run --json that says what sandboxes see of the host.
type hostEvent struct {
	Type       string             `json:"type"`
	SessionID  protocol.SessionID `json:"session_id"`
	Time       time.Time          `json:"time"`
	Toolchains []hostToolchain    `json:"toolchains"`
	Path       string             `json:"path"`
	LeftOut    []hostenv.LeftOut  `json:"left_out,omitempty"`
	Mounts     []hostMount        `json:"mounts"`
	Cache      string             `json:"cache,omitempty"`
	Published  []published        `json:"published,omitempty"`
	SSHAgent   []string           `json:"ssh_agent,omitempty"`
	Git        []string           `json:"git_credentials,omitempty"`
}

// hostToolchain is a toolchain that was found.
type hostToolchain struct {
	Name string `json:"name"`
	Root string `json:"root"`
}

// hostMount is a mount of --mount.
type hostMount struct {
	Host   string `json:"host"`
	Inside string `json:"inside"`
	Mode   string `json:"mode"`
}

// WriteEvent prints the event "environment" of run --json.
func (h *Host) WriteEvent(w io.Writer, session protocol.SessionID) error {
	e := hostEvent{
		Type: "environment", SessionID: session, Time: time.Now().UTC(), Toolchains: []hostToolchain{}, Path: h.found.Path,
		LeftOut: h.found.LeftOut, Mounts: []hostMount{},
		Published: h.access.published, SSHAgent: h.access.logins, Git: h.access.git,
	}
	for _, t := range h.found.Toolchains {
		e.Toolchains = append(e.Toolchains, hostToolchain{Name: t.Name, Root: t.Root})
	}
	for _, m := range h.asked {
		e.Mounts = append(e.Mounts, hostMount{Host: m.Host, Inside: m.Guest, Mode: mode(m)})
	}
	if h.cache != nil {
		e.Cache = h.cache.Name
	}
	return json.NewEncoder(w).Encode(e)
}

func mode(m isolation.Mount) string {
	if m.Write {
		return "rw"
	}
	return "ro"
}

// AccessFlags connect the embedded worker's sandboxes with their user.
type AccessFlags struct {
	Publish        []string `sep:"none" placeholder:"[[HOST:]HOSTPORT:]PORT" brief:"Publish a port of the sandbox on this host." help:"Port of the sandbox to publish on this host. HOST defaults to 127.0.0.1, HOSTPORT to the same port; 0 picks a free port. May be given several times."`
	SSHAgent       bool     `name:"ssh-agent" brief:"Let commands use your SSH agent." help:"Let commands use your SSH agent, for hosts that are in --allow-net and in your known_hosts."`
	GitCredentials []string `sep:"none" placeholder:"HOST" brief:"Let commands log in to HOST as your git does." help:"Let commands get the credentials for HOST from your git's credential helper. --allow-net must list HOST. May be given several times."`
}

// checkAccess returns a usage error for flags that are wrong on every host.
func (f *AccessFlags) checkAccess(elsewhere bool) error {
	for flag, given := range map[string]bool{
		"--publish": len(f.Publish) > 0, "--ssh-agent": f.SSHAgent, "--git-credentials": len(f.GitCredentials) > 0,
	} {
		if elsewhere && given {
			return cli.Usagef("%s: works only without --nats, for the worker inside this process", flag)
		}
	}
	for _, text := range f.Publish {
		if _, err := hostenv.ParsePublication(text); err != nil {
			return cli.Usagef("--publish %s: %v", text, err)
		}
	}
	return nil
}

// access is what the flags have opened.
type access struct {
	doors     *hostenv.Doors // nil for none
	published []published
	logins    []string // hosts of --ssh-agent
	git       []string // hosts of --git-credentials
}

// published is a port of the sandbox that this host reaches.
type published struct {
	URL  string `json:"url"`
	Port uint16 `json:"port"`

	listener net.Listener
	open     bool // to other machines
}

// openAccess opens what the flags say, for sandboxes of a driver that show view of the host and
// reach the hosts of allow. Commands write to the workspace; "" is none of the user's.
func (f *AccessFlags) openAccess(ctx context.Context, driver string, view hostenv.View, allow egress.Allow, workspace string) (*access, error) {
	a, shared := &access{}, ""
	switch {
	case !view.Root:
		shared = "driver " + driver + " does not give it one: use --sandbox ns"
	case allow.All():
		shared = "--allow-net all does not give it one: list hosts"
	}
	err := a.publish(ctx, f.Publish, shared)
	if err == nil && (f.SSHAgent || len(f.GitCredentials) > 0) {
		if a.doors, err = hostenv.OpenDoors(view); err == nil {
			a.doors.Workspace = workspace
			err = errors.Join(a.openAgent(ctx, f.SSHAgent, allow), a.openGit(ctx, f.GitCredentials, allow))
		}
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// publish listens on the ports of the host; shared says why sandboxes have no network of their own,
// "" that they have.
func (a *access) publish(ctx context.Context, texts []string, shared string) error {
	for _, text := range texts {
		p, err := hostenv.ParsePublication(text)
		if err == nil && shared != "" {
			err = errors.New("needs a sandbox with its own network; " + shared)
		}
		var l net.Listener
		if err == nil {
			l, err = p.Listen(ctx)
		}
		if err != nil {
			return cli.Usagef("--publish %s: %v", text, err)
		}
		a.published = append(a.published, published{URL: hostenv.URL(l), Port: p.Port, listener: l, open: !p.Host.IsLoopback()})
	}
	return nil
}

func (a *access) openAgent(ctx context.Context, wanted bool, allow egress.Allow) (err error) {
	if !wanted {
		return nil
	}
	home, _ := os.UserHomeDir() // "" has no known_hosts
	if a.logins, err = a.doors.SSHAgent(ctx, os.Getenv("SSH_AUTH_SOCK"), home, allow); err != nil {
		return cli.Usagef("--ssh-agent: %v", err)
	}
	return nil
}

func (a *access) openGit(ctx context.Context, hosts []string, allow egress.Allow) error {
	for _, text := range hosts {
		host, err := hostenv.ParseCredentialHost(text, allow)
		if err != nil {
			return cli.Usagef("--git-credentials %s: %v", text, err)
		}
		a.git = append(a.git, host)
	}
	if len(hosts) == 0 {
		return nil
	}
	return a.doors.GitCredentials(ctx, a.git)
}

// notices returns what is open, in sentences.
func (a *access) notices() (lines []string) {
	if len(a.logins) > 0 {
		lines = append(lines, "commands log in with your SSH agent at "+strings.Join(a.logins, ", "))
	}
	if len(a.git) > 0 {
		lines = append(lines, "commands get your git credentials for "+strings.Join(a.git, ", "))
	}
	return lines
}

// forwards returns the published ports of a session's sandbox. report gets a sentence when
// something first listens on one.
func (a *access) forwards(session protocol.SessionID, report func(string)) (all []internal.Published) {
	for _, p := range a.published {
		all = append(all, internal.Published{
			Listener: p.listener, Sandbox: string(session), Port: p.Port, Listens: sync.OnceFunc(func() { report(p.listens()) }),
		})
	}
	return all
}

// listens says that a port has become reachable.
func (p published) listens() string {
	line := fmt.Sprintf("%s is port %d of the sandbox, where something listens now", p.URL, p.Port)
	if p.open {
		line += "; other machines reach it, too"
	}
	return line
}

// close closes everything.
func (a *access) close() {
	for _, p := range a.published {
		_ = p.listener.Close() // the worker may have
	}
	if a.doors != nil {
		_ = a.doors.Close()
	}
}
