package workercmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// Login is the command line of a login at an MCP server.
type Login struct {
	Server    string `arg:"" help:"Name of the MCP server, one with a URL."`
	McpConfig string `placeholder:"FILE" help:"File of MCP servers, in the mcp.json format of agents."`
	Tools     string `placeholder:"DIR" help:"Folder of manifests; those of kind mcp are servers too."`
}

// loginFlags is the command line of "worker login".
type loginFlags struct {
	cli.Common
	Login

	Data string `placeholder:"DIR" help:"Data directory of the worker to log in. Default: ~/.local/state/toolfleet/worker."`
}

// logIn is "worker login".
func logIn(p cli.Program) int {
	p.Name, p.Args = p.Name+" login", p.Args[1:]
	p.Description = "Logs you in to an MCP server: prints a page to open in a browser, and stores the login in --data, for the worker with that directory."
	p.Files = cli.Files{} // the section is of workers
	p.Examples = map[string][]string{"": {`worker login --mcp-config mcp.json tickets`}}
	var f loginFlags
	ctx := context.Background() //nolint:forbidigo // the root of a program
	return cli.Run(p, &f, &f.Common, func(cli.Selected) error {
		data, err := (&workspaceFlags{Data: f.Data}).data()
		if err != nil {
			return err
		}
		return f.Run(ctx, p, worker.LoginsIn(data))
	})
}

// Run has the person at the terminal log in, and keeps the login in a store.
func (l *Login) Run(ctx context.Context, p cli.Program, store login.Store) error {
	server, err := l.find()
	if err != nil {
		return err
	}
	spec, person, err := asPerson(server)
	if err != nil {
		return cli.Usagef("%v", err)
	}
	ctx, stop := cli.Signals(ctx, func() { os.Exit(cli.ExitInterrupted) })
	defer stop()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	out := terminal.Writer(p.Stdout)
	person.Transport = transport
	person.Show = func(page, back string) {
		_, _ = fmt.Fprintf(out, "Open this page to log in to %s:\n\n%s\n\nThe browser comes back to %s on this host.\n", spec.Name, page, back)
	}
	at := store.Of(spec.Name, spec.URL)
	count, renewedAt, err := at.LogIn(ctx, person)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("log in to %s: %s", spec.Name, cli.RedactURLs(err.Error()))
	}
	renewal := "cannot be renewed: log in again when it ends"
	if authority, err := url.Parse(renewedAt); err == nil && renewedAt != "" {
		renewal = "is renewed at " + authority.Host + ", which --allow-net must list"
	}
	_, err = fmt.Fprintf(out, "Logged in to %s, which has %d tools. The login is in %s, and %s.\n", spec.Name, count, at.File(), renewal)
	return err
}

// find is the server of the flags.
func (l *Login) find() (*mcp.Server, error) {
	var servers []mcp.Server
	var problems []error
	if l.McpConfig != "" {
		var err error
		if servers, err = ServersOf(l.McpConfig); err != nil {
			return nil, err
		}
	}
	if l.Tools != "" {
		folder, err := manifest.Open(l.Tools)
		if err != nil {
			return nil, cli.Usagef("--tools: %v", err)
		}
		set := folder.Load(mcptools.Prefixes(servers)...)
		servers = append(servers, set.Servers...)
		for _, problem := range set.Problems {
			problems = append(problems, problem)
		}
	}
	var names []string
	for i := range servers {
		switch {
		case servers[i].URL == "":
		case servers[i].Name == l.Server:
			return &servers[i], nil
		default:
			names = append(names, servers[i].Name)
		}
	}
	allowed := "there are none in --mcp-config and --tools"
	if len(names) > 0 {
		slices.Sort(names)
		allowed = "those in --mcp-config and --tools are " + strings.Join(names, ", ")
	}
	return nil, cli.Usagef("%v", errors.Join(append(problems, fmt.Errorf("server %q: must be an MCP server with a url; %s", l.Server, allowed))...))
}

// maxServers bounds a file of MCP servers, in bytes.
const maxServers = 1 << 20

// ServersOf are the servers that a file of agents names.
func ServersOf(file string) ([]mcp.Server, error) {
	content, err := regular.Read(file, maxServers)
	if err != nil {
		return nil, cli.Usagef("--mcp-config %s: %v", file, errors.Unwrap(err))
	}
	servers, faults := mcp.Parse(content)
	if len(faults) > 0 {
		return nil, cli.Usagef("--mcp-config %s: %v", file, errors.Join(faults...))
	}
	return servers, nil
}

// asPerson is how a person logs in to a server, with variables of this process in their places.
func asPerson(server *mcp.Server) (spec protocol.MCPServer, person login.Person, err error) {
	o := server.OAuth
	if o == nil {
		o = &mcp.OAuth{}
	}
	if server.Client != nil {
		return spec, person, fmt.Errorf("server %q: has grantType %s: workers log in by themselves", server.Name, o.GrantType)
	}
	spec = server.MCPServer
	spec.Client = &protocol.MCPClient{ID: o.ClientID, Secret: o.ClientSecret} // to be resolved, too
	spec, err = toolserver.Resolved(spec, func(name string) (string, error) {
		value, found := os.LookupEnv(name)
		if !found {
			return "", fmt.Errorf("${%s} is not set in this environment", name)
		}
		return value, nil
	})
	return spec, login.Person{
		ClientID: spec.Client.ID, ClientSecret: spec.Client.Secret, Scopes: o.Scopes, Port: o.CallbackPort, Headers: spec.Headers,
	}, err
}
