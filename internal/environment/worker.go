package environment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/login"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// WorkerFlags set up the embedded worker: the one inside this process.
type WorkerFlags struct {
	Sandbox string            `default:"auto" placeholder:"DRIVER" brief:"Isolation: auto, ns, landlock or process." help:"Sandbox driver of the embedded worker: auto (the best that isolates here), ns (namespaces), landlock (paths only) or process (no isolation)."`
	Env     map[string]string `mapsep:"none" sep:"none" placeholder:"KEY=VALUE" brief:"Environment variable for commands." help:"Environment variable for the embedded worker's sandboxes; may be given several times."`
	McpEnv  []string          `placeholder:"NAME" help:"Variables of this process that MCP servers may be given (\"env\": {\"TOKEN\": \"$${TOKEN}\"}), separated by commas."`
	Slots   int               `default:"8" help:"Concurrent calls of the embedded worker."`
	Limits  cli.Limits        `embed:"" prefix:"limit-"`

	cli.Network
}

// worker is what the embedded worker runs with.
type worker struct {
	flags   *WorkerFlags
	limits  sandbox.Limits
	allow   egress.Allow
	private []netip.Prefix
	tools   string // absolute path of the folder of tools; "" for none
	driver  isolation.Driver
	caps    isolation.Caps
}

// checkWorker checks the flags of the worker; nil with --nats, where the fleet has workers.
func (f *Flags) checkWorker() (*worker, error) {
	if f.Slots < 1 || f.Slots > internal.MaxSlots {
		return nil, cli.Usagef("--slots %d: must be 1 to %d", f.Slots, internal.MaxSlots)
	}
	if err := driver.Valid(f.Sandbox); err != nil {
		return nil, cli.Usagef("--sandbox: %v", err)
	}
	if err := cli.CheckEnv(f.Env); err != nil {
		return nil, err
	}
	w := &worker{flags: &f.WorkerFlags}
	var err error
	if w.limits, err = f.Limits.Sandbox(); err != nil {
		return nil, err
	}
	if w.allow, w.private, err = f.Reachable(); err != nil {
		return nil, err
	}
	if w.tools, err = f.folder(); err != nil {
		return nil, cli.Usagef("--tools: %v", err)
	}
	if f.Nats != "" {
		return nil, nil //nolint:nilnil // see the comment
	}
	return w, nil
}

// open opens the sandbox driver, and checks the flags that only some drivers can enforce.
func (w *worker) open(ctx context.Context, e *Environment) (err error) {
	if err := e.options.Flags.makeData(); err != nil {
		return err
	}
	w.driver, w.caps, err = driver.Open(ctx, w.flags.Sandbox, &driver.Options{Logger: e.options.Logger, Data: e.Data})
	if errors.Is(err, isolation.ErrLevel) {
		return cli.Usagef("--sandbox %s: %v", w.flags.Sandbox, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(cli.Enforced(w.allow, w.caps), cli.Protects(e.protect, w.caps), w.enough(e))
}

// enough refuses a session whose rules demand more of sandboxes than they prove here: each call
// would be rejected.
func (w *worker) enough(e *Environment) error {
	demanded, err := e.options.Session.minLevel()
	if err != nil {
		return err
	}
	if least, _ := isolation.ParseLevel(demanded); w.caps.Level < least { // the policy has checked its name
		rule := "--min-level"
		if e.options.Session.MinLevel != demanded {
			rule = "--policy: min_level"
		}
		return cli.Usagef("%s %s: sandboxes of this machine prove level %s (driver %s); coordinator doctor says what they need", rule, demanded, w.caps.Level, w.caps.Driver)
	}
	return nil
}

// start runs the worker until the fleet is closed.
func (w *worker) start(ctx context.Context, e *Environment) error {
	o := &e.options
	for _, warning := range slices.Concat(e.Host.access.notices(), cli.Warnings(w.limits, w.caps), cli.FewFiles(w.flags.Slots)) {
		o.Warn(warning)
	}
	if e.Host.git != "" {
		o.Warn(e.Host.git)
	}
	var inPlace func(sandbox string) (string, bool)
	if o.Workspace != "" {
		inPlace = func(sandbox string) (string, bool) { return o.Workspace, sandbox == string(o.ID) }
		if err := w.warnUnprotected(ctx, e); err != nil {
			return err
		}
		if err := rememberWorkspace(e.Data, o.ID, o.Workspace); err != nil {
			return err
		}
	}
	env := maps.Clone(e.Host.env)
	maps.Copy(env, w.flags.Env)
	store, _ := Logins() // without a home they are in the data directory
	_, err := e.Fleet.StartWorker(ctx, internal.Options{
		Options: lane.Options{Slots: w.flags.Slots},
		Settings: sandboxes.Settings{
			Driver: w.driver, Caps: w.caps, Env: env, Limits: w.limits, Mounts: e.Host.mounts, Tools: w.tools, Protect: e.protect, KeepGitSettings: o.Session.KeepGitSettings,
			Workspace: inPlace, CacheBytes: math.MaxInt64,
		},
		Capabilities: kinds.Capabilities{Logins: store, MCPEnv: w.flags.McpEnv},
		Data:         e.Data, Alone: true, Allow: w.allow, AllowPrivate: w.private, Publish: e.Host.access.forwards(o.ID, o.Warn),
	})
	return err
}

// warnUnprotected warns if the driver cannot protect files that git or an editor runs.
func (w *worker) warnUnprotected(ctx context.Context, e *Environment) error {
	if e.protect != nil || w.caps.Protect {
		return nil
	}
	places, err := gitguard.Protected(ctx, e.options.Workspace)
	if err == nil && len(places.Protect) > 0 {
		e.options.Warn(fmt.Sprintf("driver %s cannot protect %s from commands: check it before git or an editor runs it",
			w.caps.Driver, strings.Join(places.Protect, ", ")))
	}
	return err
}

// Logins are the logins to MCP servers that workers inside this program use.
func Logins() (login.Store, error) {
	dir, err := cli.StateDir("logins")
	return login.Store{Dir: dir, Advice: func(server string) string {
		return fmt.Sprintf(`run "coordinator login %s --mcp-config FILE"`, server)
	}}, err
}
