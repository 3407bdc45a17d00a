package environment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	internal "github.com/toolfleet/toolfleet/internal/worker"
)

// WorkerFlags set up the embedded worker: the one inside this process.
type WorkerFlags struct {
	workercmd.SandboxFlags
	Slots int `default:"8" help:"Concurrent calls of the embedded worker."`
}

// worker is what the embedded worker runs with.
type worker struct {
	internal.Options
	sandbox string // the flag
}

// checkWorker checks the flags of the worker; nil with --nats, where the fleet has workers.
func (f *Flags) checkWorker() (w *worker, err error) {
	w = &worker{sandbox: f.Sandbox}
	if w.Options, err = f.Options(f.Slots); err != nil {
		return nil, err
	}
	if w.Tools, err = f.folder(); err != nil {
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
	w.Driver, w.Caps, err = drivers.Open(ctx, w.sandbox, &drivers.Options{Logger: e.options.Logger, Data: e.Data})
	if errors.Is(err, isolation.ErrLevel) {
		return cli.Usagef("--sandbox %s: %v", w.sandbox, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(cli.Enforced(w.Allow, w.Caps), cli.Protects(e.protect, w.Caps), w.enough(e))
}

// enough refuses a session whose rules demand more of sandboxes than they prove here: each call
// would be rejected.
func (w *worker) enough(e *Environment) error {
	demanded, err := e.options.Session.minLevel()
	if err != nil {
		return err
	}
	if least, _ := isolation.ParseLevel(demanded); w.Caps.Level < least { // the policy has checked its name
		rule := "--min-level"
		if e.options.Session.MinLevel != demanded {
			rule = "--policy: min_level"
		}
		return cli.Usagef("%s %s: sandboxes of this machine prove level %s (driver %s); coordinator doctor says what they need", rule, demanded, w.Caps.Level, w.Caps.Driver)
	}
	return nil
}

// start runs the worker until the fleet is closed.
func (w *worker) start(ctx context.Context, e *Environment) error {
	o := &e.options
	for _, warning := range slices.Concat(e.Host.access.notices(), cli.Warnings(w.Limits, w.Caps), cli.FewFiles(w.Slots)) {
		o.Warn(warning)
	}
	if e.Host.git != "" {
		o.Warn(e.Host.git)
	}
	if o.Workspace != "" {
		w.Workspace = func(sandbox string) (string, bool) { return o.Workspace, sandbox == string(o.ID) }
		if err := w.warnUnprotected(ctx, e); err != nil {
			return err
		}
		if err := rememberWorkspace(e.Data, o.ID, o.Workspace); err != nil {
			return err
		}
	}
	given := w.Env
	w.Env = maps.Clone(e.Host.env)
	maps.Copy(w.Env, given)
	w.Logins, _ = Logins() // without a home they are in the data directory
	w.Mounts, w.Protect, w.KeepGitSettings, w.CacheBytes = e.Host.mounts, e.protect, o.Session.KeepGitSettings, math.MaxInt64
	w.Data, w.Alone, w.Publish = e.Data, true, e.Host.access.forwards(o.ID, o.Warn)
	if w.Pool = e.Pool(); e.shared() {
		e.Fleet.EndPool(ctx, w.Pool)
	}
	_, err := e.Fleet.StartWorker(ctx, w.Options)
	return err
}

// warnUnprotected warns if the driver cannot protect files that git or an editor runs.
func (w *worker) warnUnprotected(ctx context.Context, e *Environment) error {
	if e.protect != nil || w.Caps.Protect {
		return nil
	}
	places, err := gitguard.Protected(ctx, e.options.Workspace)
	if err == nil && len(places.Protect) > 0 {
		e.options.Warn(fmt.Sprintf("driver %s cannot protect %s from commands: check it before git or an editor runs it",
			w.Caps.Driver, strings.Join(places.Protect, ", ")))
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
