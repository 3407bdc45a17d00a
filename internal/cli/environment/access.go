package environment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
