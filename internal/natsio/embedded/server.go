// Package embedded runs a NATS server with JetStream inside the process: one node, file storage
// under a directory of ours.
//
// Without an address it does not listen at all, and only connections made through [Server.Option]
// reach it. With one, it asks for a token that is created once for each data directory and kept in
// a file that only its owner can read, or for a join token ([join.Store]). On a network it speaks
// TLS, with certificates of an authority of its own.
package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

const (
	readyTimeout = 20 * time.Second
	// dialTimeout limits how long this process connects to its own server. The server is there, so
	// only a busy machine takes long.
	dialTimeout = time.Minute
	// authTimeout limits how long a client takes to show the token. NATS's default of 2 s is too
	// short for a busy machine.
	authTimeout = 10 * time.Second
	// maxPayload is above NATS's default of 1 MiB, so that a big file fits in one message.
	maxPayload = 8 << 20
	// maxPending is what a slow reader may fall behind before it is cut off.
	maxPending = 256 << 20
	// TokenFile is the name of the credential's file in the data directory.
	TokenFile = "nats.token"
)

// Options say where the server lives.
type Options struct {
	// Data is the directory of its files; it is made when missing. Required.
	Data string
	// Listen is a host:port; "" does not listen. Port 0 chooses one.
	Listen string
	// Plain speaks no TLS on a network, and TLS speaks it on loopback, too.
	Plain, TLS bool
	// SyncAlways writes through to the disk on every message, for power failures;
	// the default survives the death of the process only.
	SyncAlways bool
	// Logger gets the server's warnings and errors; nil discards.
	Logger *slog.Logger
	// Notify gets a sentence for people when Start waits for a process that drains; nil discards.
	Notify func(sentence string)
}

// Server is a running server.
type Server struct {
	options Options // Listen has the port that was found
	lock    *flock.Flock
	holder  holder // this process
	token   string
	file    string
	tidy    func() // ends what gives memory back, and what watches the stores and the tokens
	server  *server.Server

	joins     *joins          // nil without a listener
	authority *join.Authority // nil without TLS

	failing atomic.Bool     // nothing is stored any more
	broken  chan string     // why a store failed
	failed  context.Context //nolint:containedctx // its cause is why the server is down
	fail    context.CancelCauseFunc
}

// Start starts a server and returns when it is ready. Another process that uses the
// same data directory is an error, unless it drains: then Start waits for its end.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return nil, fmt.Errorf("embedded NATS: data directory (--data): %w", err)
	}
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	s := &Server{options: o, lock: flock.New(filepath.Join(o.Data, lockFile)), broken: make(chan string, 1)}
	if o.Logger != nil {
		s.options.Logger = s.Quiet(o.Logger)
	}
	s.failed, s.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.acquire(ctx); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var tidier sync.WaitGroup
	tidier.Go(func() { keepTidy(ctx) })
	tidier.Go(func() { s.watch(ctx) })
	if s.joins != nil {
		tidier.Go(func() { s.joins.watch(ctx) })
	}
	s.tidy = func() { cancel(); tidier.Wait() }
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	o := s.options
	options, err := s.configure(o)
	if err != nil {
		return err
	}
	made, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("embedded NATS in %s: %w", o.Data, err)
	}
	made.SetLoggerV2(serverLog{ctx: context.WithoutCancel(ctx), logger: o.Logger, dir: s.stores(), broken: s.fails}, false, false, false)
	if s.joins != nil {
		s.joins.server = made
	}
	made.Start()
	if !made.ReadyForConnections(readyTimeout) {
		made.Shutdown()
		return fmt.Errorf("embedded NATS in %s on %q: not ready after %s (is the address in use?)", o.Data, o.Listen, readyTimeout)
	}
	if s.file != "" {
		_, port, _ := net.SplitHostPort(made.Addr().String())
		s.options.Listen = net.JoinHostPort(options.Host, port)
	}
	s.server = made
	if s.joins == nil {
		return nil
	}
	if err := s.joins.store.WriteServer(s.Joinable()); err != nil { // for the tokens that are made for it
		made.Shutdown()
		made.WaitForShutdown()
		return fmt.Errorf("embedded NATS: %w", err)
	}
	return nil
}

func (s *Server) configure(o Options) (*server.Options, error) {
	options := &server.Options{
		ServerName: "toolfleet", JetStream: true, StoreDir: o.Data,
		DontListen: o.Listen == "", NoSigs: true,
		MaxPayload: maxPayload, MaxPending: maxPending,
		SyncAlways: o.SyncAlways, DisableJetStreamBanner: true,
	}
	if o.Listen == "" {
		return options, nil
	}
	host, port, err := ParseListen(o.Listen)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	options.Host, options.Port = host, port
	options.MaxConn = min(system.OpenFiles()/2, server.DEFAULT_MAX_CONNECTIONS) // so that its stores get the files that they need
	if err := probe(host, port); err != nil {
		return nil, err
	}
	s.file = filepath.Join(o.Data, TokenFile)
	if s.token, err = LoadToken(s.file); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	options.AuthTimeout = authTimeout.Seconds()
	return options, s.joinable(options)
}

// ParseListen splits the address of [Options], and says what is wrong with one that cannot be
// listened on.
func ParseListen(address string) (host string, port int, err error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: want host:port, as in 127.0.0.1:4222", address)
	}
	if host == "" {
		return "", 0, fmt.Errorf("listen address %q: the host is missing; 0.0.0.0 is every address of this machine", address)
	}
	port, err = strconv.Atoi(portText)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("listen address %q: port must be 0 to 65535", address)
	}
	return host, port, nil
}

// probe finds out whether the port is free: the server itself only logs when it is not.
func probe(host string, port int) error {
	if port == server.RANDOM_PORT {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))) //nolint:noctx // closed at once
	if err != nil {
		return fmt.Errorf("embedded NATS: %w; choose another --listen, or connect to the server there with --nats", err)
	}
	return listener.Close()
}

// LoadToken reads the token in a file. If the file is missing, it creates it with a new token and
// mode 0600.
func LoadToken(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if token := strings.TrimSpace(string(content)); token != "" {
		return token, os.Chmod(path, 0o600) // also if another program made it
	}
	token, write := rand.Text(), regular.Create // fails if another process was faster
	if err == nil {
		write = regular.Replace // a file without a token
	}
	if err := write(path, []byte(token+"\n")); errors.Is(err, os.ErrExist) {
		return LoadToken(path)
	} else if err != nil {
		return "", err
	}
	return token, nil
}

// URL is where clients in other processes connect; "" when the server does not listen.
func (s *Server) URL() string {
	if s.file == "" {
		return ""
	}
	scheme := "nats"
	if s.authority != nil {
		scheme = "tls"
	}
	return scheme + "://" + s.local()
}

// local is the address by which this machine reaches the server.
func (s *Server) local() string {
	host, port, _ := net.SplitHostPort(s.options.Listen)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}

// Address is the host:port where it listens.
func (s *Server) Address() string { return s.options.Listen }

// Clients is how many connections there are.
func (s *Server) Clients() int { return s.server.NumClients() }

// CredentialFile is the file with the token that they need; "" when the server does not listen.
func (s *Server) CredentialFile() string { return s.file }

// Options make a connection of this process, whatever address is given with them. It needs no
// listener. Where there is one it is used, because a socket takes many messages at once, and the
// pipe inside a process hands each of them over. With many calls under way a quarter more of them
// are made then; where one waits for the other it takes a tenth longer.
func (s *Server) Options() []nats.Option {
	switch {
	case s.file == "":
		return []nats.Option{nats.InProcessServer(s), nats.Timeout(dialTimeout)}
	case s.authority != nil:
		return []nats.Option{nats.InProcessServer(s), nats.Token(s.token), nats.Timeout(dialTimeout)}
	}
	return []nats.Option{nats.SetCustomDialer(listener{s.local()}), nats.Token(s.token), nats.Timeout(dialTimeout)}
}

// InProcessConn implements [nats.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// listener dials one address, whichever is asked for.
type listener struct{ address string }

// Dial implements [nats.CustomDialer].
func (l listener) Dial(network, _ string) (net.Conn, error) {
	return net.DialTimeout(network, l.address, dialTimeout) //nolint:noctx // the interface has no context
}

// Close stops the server and returns when it is down.
func (s *Server) Close() {
	s.tidy()
	s.server.Shutdown()
	s.server.WaitForShutdown()
	_ = s.release() // the lock ends with the process anyway
}

// serverLog passes the server's lines on: its chatter at debug, its troubles at warn and error. It
// sees stores that fail.
type serverLog struct {
	ctx    context.Context //nolint:containedctx // the server's logger interface has none
	logger *slog.Logger    // nil discards
	dir    string          // of the stores
	broken func(reason string)
}

func (l serverLog) Noticef(format string, v ...any) { l.log(slog.LevelDebug, format, v) }
func (l serverLog) Debugf(format string, v ...any)  { l.log(slog.LevelDebug, format, v) }
func (l serverLog) Tracef(format string, v ...any)  { l.log(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any)   { l.trouble(slog.LevelWarn, format, v) }
func (l serverLog) Errorf(format string, v ...any)  { l.trouble(slog.LevelError, format, v) }
func (l serverLog) Fatalf(format string, v ...any)  { l.trouble(slog.LevelError, format, v) }

func (l serverLog) trouble(level slog.Level, format string, v []any) {
	if reason := l.storeFailed(fmt.Sprintf(format, v...)); reason != "" {
		l.broken(reason)
	}
	l.log(level, format, v)
}

func (l serverLog) log(level slog.Level, format string, v []any) {
	if l.logger != nil {
		l.logger.Log(l.ctx, level, "nats server", slog.String("line", fmt.Sprintf(format, v...)))
	}
}

const (
	// tidyEvery is the time between two looks at the memory of this process.
	tidyEvery = 5 * time.Second
	// fineMemory is what a process may keep of its heap without being tidied.
	fineMemory = 96 << 20
	// tidyWorth is how much has to be allocated before it is tidied, tidyTimes times: the server
	// keeps blocks for ten seconds after their last use.
	tidyWorth = 16 << 20
	tidyTimes = 4
)

// keepTidy gives memory back to the system until ctx ends. The server passes workspaces on in
// blocks of 8 MB from pools, which two collections empty; an idle runtime collects every two
// minutes.
func keepTidy(ctx context.Context) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for seen, left := uint64(0), 0; pause.For(ctx, tidyEvery); left-- {
		metrics.Read(samples)
		allocated, held := samples[0].Value.Uint64(), samples[1].Value.Uint64()-samples[2].Value.Uint64()
		if allocated-seen > tidyWorth {
			seen, left = allocated, tidyTimes
		}
		if left > 0 && held > fineMemory {
			runtime.GC()
			debug.FreeOSMemory() // collects once more
		}
	}
}

// FreePorts finds ports of 127.0.0.1 without a listener, below the ephemeral ones. Another process
// may take one before it is used.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	const lowest, highest = 10_000, 32_000
	ports := make([]int, 0, n)
	for range 100 * n {
		port := lowest + mathrand.IntN(highest-lowest) //nolint:gosec // not a secret
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // all are held until all are found
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no ports of 127.0.0.1 are free")
}

const (
	// lockFile is locked by the process that uses a data directory; holderFile names the process.
	lockFile   = "lock"
	holderFile = "holder.json"
	maxHolder  = 4 << 10
	// lockPause is the time between two tries to lock.
	lockPause = 100 * time.Millisecond
	// endGrace is how long a process may take to end after its drain.
	endGrace = 15 * time.Second
)

// ErrInUse is wrapped by the error of [Start] for a data directory that another process uses.
var ErrInUse = errors.New("choose another --data, or connect to that process with --nats")

// holder is a process that uses a data directory.
type holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // it drains, and ends by then
}

func (h holder) String() string {
	text := fmt.Sprintf("process %d, since %s", h.PID, h.Since.Local().Format(time.DateTime))
	if !h.Until.IsZero() {
		text += ", drains until " + h.Until.Local().Format(time.TimeOnly) + " at most"
	}
	return text
}

// holderOf returns the process that uses a data directory; false if it has not said so.
func holderOf(data string) (h holder, known bool) {
	content, err := regular.Read(filepath.Join(data, holderFile), maxHolder)
	return h, err == nil && json.Unmarshal(content, &h) == nil && h.PID > 0
}

// Holder names the process that uses a data directory, in parentheses and with a space in front; ""
// if it is unknown.
func Holder(data string) string {
	if h, known := holderOf(data); known {
		return " (" + h.String() + ")"
	}
	return ""
}

// acquire locks the data directory. It waits for a process that drains, and for no other.
func (s *Server) acquire(ctx context.Context) error {
	data := s.options.Data
	free, err := s.lock.TryLock()
	if h, known := holderOf(data); err == nil && !free && known && time.Now().Before(h.Until) {
		s.options.Notify(fmt.Sprintf("data directory %s is in use (%s): waiting for that process to end", data, h))
		limited, cancel := context.WithDeadline(ctx, h.Until)
		defer cancel()
		if free, err = s.lock.TryLockContext(limited, lockPause); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("embedded NATS: data directory %s cannot be locked: %w", data, err)
	}
	if !free {
		return fmt.Errorf("embedded NATS: data directory %s is in use by another process%s: %w", data, Holder(data), ErrInUse)
	}
	s.holder = holder{PID: os.Getpid(), Since: time.Now()}
	s.writeHolder()
	return nil
}

// Draining notes that the process ends soon after a time, so that one that is started meanwhile
// waits for it.
func (s *Server) Draining(until time.Time) {
	h := s.holder
	h.Until = until.Add(endGrace)
	s.holder = h
	s.writeHolder()
}

// writeHolder names this process to others. Without that they do not wait for it.
func (s *Server) writeHolder() {
	if content, err := json.Marshal(s.holder); err == nil { // it always is
		_ = regular.Replace(filepath.Join(s.options.Data, holderFile), content)
	}
}

// release gives the data directory back.
func (s *Server) release() error {
	_ = os.Remove(filepath.Join(s.options.Data, holderFile)) // the next one overwrites it
	return s.lock.Unlock()
}
