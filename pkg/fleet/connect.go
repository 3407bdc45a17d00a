package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/index"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options say where the fleet is. The zero value starts one inside this process.
type Options struct {
	// URL is the NATS server, or several separated by commas; "" starts one inside this process,
	// which no other process can reach.
	URL string
	// Creds is a NATS credentials file, or a file with a token; "" means none.
	Creds string
	// TLSCA is a file of authorities (PEM) that the servers' certificates are checked against; ""
	// means the system's. TLSCert and TLSKey are the files of the certificate that this process
	// presents; both or neither.
	TLSCA, TLSCert, TLSKey string
	// Conn is a connection to use instead of URL, Creds and the TLS files. Close leaves it open.
	Conn *nats.Conn
	// Pools has the servers of pools whose workers have a NATS account of their own. Pools needs a
	// URL or Conn, and must not name [protocol.SessionPool].
	Pools map[protocol.Pool]Server
	// SignKey is a file with the private key (PEM, Ed25519) that signs calls, for workers that run
	// signed calls only. "" means calls.key in the directory of Creds, if it exists.
	SignKey string
	// Fleet is the name of the fleet; "" means [protocol.DefaultFleet].
	Fleet protocol.Fleet
	// Existing makes a fleet that does not exist an error, which wraps [ErrNoFleet], instead of
	// creating it. It needs a URL or Conn.
	Existing bool
	// Data is the directory of the embedded server and of workers; "" means a temporary one, which
	// Close removes with all sessions and workspaces.
	Data string
	// Storage bounds what the fleet stores.
	Storage Storage
	// Bodies is the S3 store of the fleet's workspaces, as --bodies of a worker; "" means none. A
	// fleet whose workspaces are in another store is an error where this program needs them: the
	// credentials of the environment are sent to this store alone.
	Bodies string
	// Index is the directory of the index that [Sessions.Search] makes. "" means one in Data, or
	// for a fleet elsewhere one in the user's cache directory.
	Index string
	// IndexAge is how long the index has texts and calls, at least an hour, and IndexBytes its
	// size, at least 16 MiB, beyond which the oldest leave it. 0 means what the index has from the
	// last process that set it, or else for ever and 2 GiB.
	IndexAge   time.Duration
	IndexBytes int64
	// TracerProvider and MeterProvider make spans and metrics; nil means the global ones of
	// OpenTelemetry.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Logger gets warnings; nil discards them.
	Logger *slog.Logger

	command
}

// command are options of this module's commands: no other module can name the type of Opened.
type command = fleet.Command

// Server is the server of a pool, with URL and Creds as in [Options].
type Server struct{ URL, Creds string }

// Storage bounds what a fleet stores; 0 means the documented default.
type Storage struct {
	// Replicas is the number of replicas of streams that Connect creates: 1, 3 or 5; 0 means 1.
	Replicas int
	// KeepAge is how long outputs that models saw shortened are stored, and KeepBytes their total
	// size; when it is reached, no more are stored. 0 means no bound, until their session is
	// deleted. Both apply only when Connect creates the fleet.
	KeepAge   time.Duration
	KeepBytes int64
	// StreamBytes is the total size of the streams that workers fill, at least 1 GiB. It applies
	// only when Connect creates the fleet. 0 means 47 GiB on a server at URL.
	StreamBytes int64
	// ResultAge is how long results of calls are stored, 10 minutes to 365 days, also in an
	// existing fleet, whose older results are deleted at once. 0 means the fleet's setting, or 7
	// days. A call that is sent again when its result has been deleted runs again.
	ResultAge time.Duration
	// ResultBytes is the total size of stored results, at least 64 MiB, also in an existing fleet;
	// beyond it the oldest are deleted. 0 means the fleet's setting, or no bound.
	ResultBytes int64
}

// validate reports every invalid option but the name.
func (o *Options) validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.Conn != nil && o.URL+o.Creds+o.TLSCA+o.TLSCert+o.TLSKey != "", "conn: must not be combined with a URL, credentials or TLS files")
	for pool, server := range o.Pools {
		if _, err := protocol.ParsePool(string(pool)); err != nil {
			faults = append(faults, err)
			continue
		}
		fault(pool == protocol.SessionPool, "pools: %q is that of the coordinators, at the URL of the fleet", pool)
		fault(o.URL == "" && o.Conn == nil || server.URL == "", "pools: %s needs the URL of its servers, and that of the fleet", pool)
	}
	fault(o.Existing && o.URL == "" && o.Conn == nil, "existing: needs a URL or a connection; a fleet inside this process is created")
	if err := workspace.CheckURL(o.Bodies); err != nil {
		fault(true, "%v", err)
	}
	fault(o.IndexAge != 0 && o.IndexAge < time.Hour, "index age %s: must be 0, or at least 1h", o.IndexAge)
	fault(o.IndexBytes != 0 && o.IndexBytes < 16<<20, "index size %d: must be 0, or at least 16 MiB", o.IndexBytes)
	storage := natsio.Storage(o.Storage)
	return errors.Join(append(faults, storage.Validate())...)
}

// Errors of [Connect], and of methods that need rights of their own.
var (
	// ErrNoFleet means that there is no fleet of that name.
	ErrNoFleet = natsio.ErrNoFleet
	// ErrVersion means that the fleet's streams are those of another version, or were edited. The
	// error names each difference, and nothing was changed. A single result that this version
	// cannot read is [ErrUnknownOutcome].
	ErrVersion = natsio.ErrTopology
	// ErrRights means that the user of the connection may not do this. The error names the
	// subjects that are missing.
	ErrRights = natsio.ErrRights
)

// Connect connects to a fleet, or starts one inside this process, and creates its streams if they
// are missing. ctx bounds only the connecting, and each server is tried for at most 5 s: the error
// wraps [ErrUnreachable] if none answers. Invalid options are reported together, before anything is
// connected; the error wraps [ErrInvalid].
func Connect(ctx context.Context, options Options) (*Client, error) {
	name, err := protocol.ParseFleet(string(cmp.Or(options.Fleet, protocol.DefaultFleet)))
	if err = errors.Join(err, options.validate()); err != nil {
		return nil, invalid(err)
	}
	c := &Client{
		data: options.Data, cleanup: func() error { return nil }, logger: options.Logger, known: session.NewKnown(),
		session: protocol.NewSessionID(), elsewhere: options.URL != "" || options.Conn != nil,
	}
	c.tails = sync.OnceValue(func() *session.Tails { return session.NewTails(c.inner) })
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	if c.data == "" && options.Opened == nil {
		if c.data, err = os.MkdirTemp("", "toolfleet-"); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		c.cleanup = func() error { return system.RemoveTree(c.data) }
	}
	if c.data != "" {
		if c.data, err = filepath.Abs(c.data); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	options.Fleet, options.Data, options.Logger = name, c.data, c.logger
	if c.inner, err = options.open(ctx); err != nil {
		if isInterruption(err) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return nil, errors.Join(err, c.cleanup())
	}
	c.logger, c.ledger = c.inner.Logger, loop.NewLedger(c.inner.Journal)
	c.open, c.close = context.WithCancelCause(context.WithoutCancel(ctx))
	c.index = &searchIndex{inner: c.inner, dir: options.Index, options: index.Options{MaxAge: options.IndexAge, MaxBytes: options.IndexBytes}}
	switch {
	case c.index.dir != "":
	case options.Shared != nil:
		c.index.dir = filepath.Join(options.Shared.Dir, indexDir)
	case !c.elsewhere:
		c.index.dir = filepath.Join(c.data, indexDir)
	}
	c.inner.Removed = c.index.forget
	c.inner.Dispatcher.SearchWith(c.index.ofOwner)
	if options.Opened != nil {
		options.Opened(c.inner)
	}
	return c, nil
}

// open connects to the fleet and to the servers of its pools. The options are complete.
func (o *Options) open(ctx context.Context) (_ *fleet.Fleet, err error) {
	f := o.part(nil)
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if len(o.Pools) > 0 { // what workers fill has bounds there alone
		if f.Signer, err = o.signer(o.Creds); err != nil {
			return nil, err
		}
	}
	tls := natsio.TLS{CA: o.TLSCA, Cert: o.TLSCert, Key: o.TLSKey, Authority: o.Authority}
	same := map[Server]*fleet.Fleet{}
	for pool, server := range o.Pools {
		if same[server] == nil {
			part := o.part(f.Signer)
			f.OnClose(part.Close)
			if err := o.connect(ctx, part, natsio.Server{URL: server.URL, Creds: server.Creds, TLS: tls}, false); err != nil {
				return nil, fmt.Errorf("servers of pool %s: %w", pool, err)
			}
			same[server] = part
		}
		f.Pools[pool] = same[server]
	}
	f.NC = o.Conn // stays open
	if err := o.connect(ctx, f, natsio.Server{URL: o.URL, Creds: o.Creds, TLS: tls}, true); err != nil {
		return nil, err
	}
	if f.Server != nil {
		if err := o.openOwnPools(ctx, f); err != nil {
			return nil, err
		}
	}
	for pool, part := range f.Pools {
		f.Dispatcher.RoutePool(pool, part.Dispatcher)
	}
	if o.Existing {
		return f, nil
	}
	return f, f.CheckRights(ctx, append(natsio.SessionRights(f.Name), natsio.CallRights(f.Name, protocol.DefaultPool))...)
}

// openOwnPools opens the parts of pools that have accounts of their own in the embedded server.
func (o *Options) openOwnPools(ctx context.Context, f *fleet.Fleet) error {
	pools, err := f.Server.OwnPools(f.Name)
	if err != nil {
		return err
	}
	for _, pool := range pools {
		part := o.part(f.Signer)
		f.OnClose(part.Close)
		options := natsio.ConnectOptions{Name: cmp.Or(o.Client, filepath.Base(os.Args[0])), Logger: f.Logger}
		if options.Options, err = f.Server.PoolOptions(f.Name, pool); err != nil {
			return err
		}
		if part.NC, err = natsio.Connect(ctx, "", options); err != nil {
			return fmt.Errorf("account of pool %s: %w", pool, err)
		}
		part.OnClose(part.NC.Close)
		if err := o.connect(ctx, part, natsio.Server{}, false); err != nil {
			return fmt.Errorf("account of pool %s: %w", pool, err)
		}
		f.Pools[pool] = part
	}
	return nil
}

// part is a part of the fleet that is not connected yet.
func (o *Options) part(signer *signing.Signer) *fleet.Fleet {
	f := &fleet.Fleet{
		Name: o.Fleet, Bodies: o.Bodies, Logger: o.Logger, Signer: signer, Pools: map[protocol.Pool]*fleet.Fleet{},
	}
	if o.TracerProvider != nil {
		f.Tracer = o.TracerProvider.Tracer(telemetry.Scope)
	}
	if o.MeterProvider != nil {
		f.Meter = o.MeterProvider.Meter(telemetry.Scope)
	}
	return f
}

// signer reads the key that signs calls: that of the options, that in the directory of credentials,
// or that of an embedded server that listens; nil without one.
func (o *Options) signer(creds string) (*signing.Signer, error) {
	switch file := cmp.Or(o.SignKey, signing.Beside(creds)); {
	case file != "":
		return signing.Load(file)
	case o.URL == "" && o.Listen != "":
		return signing.Make(filepath.Join(o.Data, fleet.ServerDir))
	}
	return nil, nil //nolint:nilnil // calls are not signed
}

// connect connects a part to a server, unless it has a connection; without either it starts a
// server. It sees that the streams of the fleet exist.
func (o *Options) connect(ctx context.Context, f *fleet.Fleet, server natsio.Server, journaled bool) (err error) {
	options := natsio.ConnectOptions{Name: cmp.Or(o.Client, filepath.Base(os.Args[0])), Creds: server.Creds, TLS: server.TLS}
	f.Origin = o.Origin
	switch {
	case o.Shared != nil:
		if err := o.Shared.Reach(ctx); err != nil {
			return err
		}
		server.URL, options.Creds, options.TLS, options.Dial = shared.URL, o.Shared.TokenFile(), natsio.TLS{}, o.Shared.Dial
	case server.URL == "" && f.NC == nil:
		f.Server, err = embedded.Start(ctx, embedded.Options{
			Data: filepath.Join(o.Data, fleet.ServerDir), Listen: o.Listen, Plain: o.Plain, TLS: o.TLS, Logger: f.Logger, Notify: o.Notify,
		})
		if err != nil {
			return err
		}
		f.Logger = f.Server.Quiet(f.Logger)
		f.OnClose(f.Server.Close)
		f.Origin = "embedded#" + uuid.NewString()
		options.Creds, options.TLS, options.Options = "", natsio.TLS{}, f.Server.Options()
	}
	options.Logger = f.Logger
	if f.NC == nil {
		if f.NC, err = natsio.Connect(ctx, server.URL, options); err != nil {
			return err
		}
		f.OnClose(f.NC.Close)
	}
	js, err := jetstream.New(f.NC)
	if err != nil {
		return err
	}
	topology := natsio.Topology{Fleet: f.Name, Storage: natsio.Storage(o.Storage), Bounded: (o.URL != "" || o.Conn != nil) && len(f.Pools) == 0, Logger: f.Logger}
	ensure := natsio.Ensure
	if o.Existing {
		ensure = natsio.Check
	}
	if err := ensure(ctx, js, topology); err != nil {
		if f.Server != nil {
			err = fmt.Errorf("embedded NATS in %s (--data): %w", o.Data, err)
		}
		return err
	}
	if f.Signer == nil {
		if f.Signer, err = o.signer(server.Creds); err != nil {
			return err
		}
	}
	return f.Open(ctx, journaled)
}
