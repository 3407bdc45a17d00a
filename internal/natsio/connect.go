// Package natsio is how a process meets NATS: connections that never give up,
// and the streams that every fleet has.
//
// [Connect] fails fast and clearly when the first connection cannot be made, and
// reconnects for ever afterwards. While there is no connection, publishing
// fails at once instead of filling a buffer: a delayed message of a worker that
// has lost its lease must never arrive later.
//
// [Ensure] makes the streams and buckets of a fleet, or checks existing ones.
// A stream with another configuration than the laws need is an error that names
// the difference; nothing is ever changed silently.
//
// [CheckRights] finds out at the start what the server would later refuse without an answer:
// it reports a refused publish to the connection, not to the goroutine that waits for the reply.
//
// The embedded server lives in a package of its own, so that workers do not link it.
package natsio

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Server is a NATS server or servers, and who a process is there.
type Server struct {
	URL   string // several are separated by commas
	Creds string // a credentials file, or a file with a token; "" for none
	TLS   TLS
}

// ConnectOptions say how to reach a server. The zero value is usable but for Name.
type ConnectOptions struct {
	// Name is shown by the server's monitoring, as in "worker host-1a2b3c4d".
	Name string
	// Creds is a NATS credentials file (user JWT and seed), or a file that holds
	// nothing but a token; "" is neither.
	Creds string
	// TLS is for servers whose certificates the system does not know, and for servers that require
	// client certificates.
	TLS TLS
	// Logger gets a warning when the connection is lost, and one when it is back; nil discards.
	Logger *slog.Logger
	// Dial makes each connection; nil means [Dial].
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Options are added last, for embedded servers and tests.
	Options []nats.Option
}

// TLS names PEM files. They are read again for each connection, so they may be renewed. The zero
// value trusts whom the system trusts, and speaks TLS with servers that want it.
type TLS struct {
	// CA is the certificates that the servers' are checked against; "" is the system's.
	CA string
	// Cert and Key are what this process shows; both or neither.
	Cert, Key string
	// Authority is the fingerprint of the only authority that is trusted ([join.Trust]); "" means
	// CA. With it CA is empty.
	Authority string
}

// outdated reports whether Cert has expired, or is not valid yet.
func (t TLS) outdated(now time.Time) bool {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	return err == nil && pair.Leaf != nil && (now.Before(pair.Leaf.NotBefore) || now.After(pair.Leaf.NotAfter))
}

// options make every connection a TLS one as soon as a file is named.
func (t TLS) options() []nats.Option {
	var options []nats.Option
	if t.Authority != "" {
		options = append(options, nats.Secure(join.Trust(t.Authority)), nats.DontRandomize())
	}
	if t.CA != "" {
		options = append(options, nats.RootCAs(t.CA))
	}
	if t.Cert != "" || t.Key != "" {
		options = append(options, nats.ClientCert(t.Cert, t.Key))
	}
	return options
}

const (
	connectTimeout = 5 * time.Second
	pingInterval   = 5 * time.Second
	maxPingsOut    = 2
	reconnectWait  = 250 * time.Millisecond
)

// ContextScheme begins the URL that stands for a context of the nats tool, with its servers,
// credentials and certificates.
// The name, or the absolute path of its file, follows.
const ContextScheme = "nats-context://"

// Connect connects to servers, which may be several URLs separated by commas, or the URL of a
// context (see [ContextScheme]). It gives up when ctx
// ends; the end of ctx does nothing to a connection that was returned. The error of a first
// connection that fails names the URL, without its secrets.
func Connect(ctx context.Context, servers string, o ConnectOptions) (*nats.Conn, error) {
	logger := o.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	connect := o.Dial
	if connect == nil {
		connect = Dial
	}
	dial, release := dialing(ctx, connect)
	defer release()
	options := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // credentials may be renewed; a process without a connection would look as if it worked
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logger.WarnContext(ctx, "nats connection lost", slog.Any("error", err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			logger.WarnContext(ctx, "nats connection is back", slog.String("url", nc.ConnectedUrlRedacted()))
		}),
		(&connectionErrors{logger: logger, now: time.Now}).option(ctx),
	}
	credentials, err := credentialsOption(o.Creds)
	if err != nil {
		return nil, err
	}
	options = append(append(options, credentials...), o.TLS.options()...)
	if prefix := InboxPrefix(servers); prefix != "" {
		options = append(options, nats.CustomInboxPrefix(prefix))
	}
	if servers != "" || len(o.Options) == 0 { // an embedded server has none
		if err := CheckURLs(servers); err != nil {
			return nil, err
		}
	}
	var nc *nats.Conn
	options = append(options, func(o *nats.Options) error {
		if o.CustomDialer == nil { // a context may have a proxy
			o.CustomDialer = dial
		}
		return nil
	})
	if name, is := strings.CutPrefix(servers, ContextScheme); is {
		nc, _, err = natscontext.Connect(name, append(options, o.Options...)...)
	} else {
		nc, err = nats.Connect(servers, append(options, o.Options...)...)
	}
	if err != nil {
		err = cmp.Or(ctx.Err(), err)
		return nil, fmt.Errorf("connect to NATS at %s: %w%s", Redact(servers), err, o.TLS.advice(err))
	}
	return nc, nil
}

// InboxPrefix begins the inboxes of the user that a URL names, _INBOX_<user>.>, so that one user
// need not be able to read what another is answered. Others, with "", have the client's, _INBOX.>.
func InboxPrefix(list string) string {
	first, _, _ := strings.Cut(list, ",")
	u, err := url.Parse(strings.TrimSpace(first))
	if err != nil || u.User == nil || !plainUser.MatchString(u.User.Username()) {
		return ""
	}
	if _, secret := u.User.Password(); !secret { // a token
		return ""
	}
	return "_INBOX_" + u.User.Username()
}

var plainUser = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// advice says what to look at when a first connection fails.
func (t TLS) advice(err error) string {
	text := strings.ToLower(err.Error())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return " (does the server run there, and do firewalls let the connection through?)"
	case errors.Is(err, nats.ErrNoServers):
		return " (is the server running there?)"
	case strings.Contains(text, "authorization"), strings.Contains(text, "authentication"): // as the server words it
		return " (are the credentials right? --creds names a file; a user and password stand in the URL; a join token may have expired or been removed)"
	case errors.Is(err, join.ErrAuthority):
		return " (is the token of another fleet, or has its server a new data directory? coordinator join-token add makes a new one)"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return " (the server speaks no TLS: nats:// without --tls-...)"
	case t.outdated(time.Now()): // whether or not the other side could say so
		return " (the certificate of --tls-cert has expired, or is not valid yet: renew it, and check the clocks)"
	case strings.Contains(text, "has expired or is not yet valid"):
		return " (the server's certificate has expired, or is not valid yet: renew it there, and check the clocks)"
	case strings.Contains(text, "x509:"), strings.Contains(text, "tls:"), strings.Contains(text, "tls error:"):
		return " (--tls-ca names the trusted authorities, and --tls-cert and --tls-key the certificate of this process)"
	}
	return ""
}

// maxCredentials bounds a credentials file, in bytes.
const maxCredentials = 64 << 10

// credentialsOption reads a credentials file of either kind.
func credentialsOption(path string) ([]nats.Option, error) {
	if path == "" {
		return nil, nil
	}
	content, err := regular.Read(path, maxCredentials)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if IsCredentials(path) {
		return []nats.Option{nats.UserCredentials(path)}, nil
	}
	token := string(bytes.TrimSpace(content))
	if token == "" || strings.ContainsAny(token, " \t\n") {
		return nil, fmt.Errorf("credentials %s: %w", path, errCredentials)
	}
	return []nats.Option{nats.TokenHandler(func() string {
		if content, err := regular.Read(path, maxCredentials); err == nil { // it may have been renewed, as may the other kind
			return string(bytes.TrimSpace(content))
		}
		return token
	})}, nil
}

// IsCredentials reports whether a file has NATS credentials, and not a token.
func IsCredentials(path string) bool {
	content, err := regular.Read(path, maxCredentials)
	return err == nil && bytes.Contains(content, []byte("BEGIN NATS USER JWT"))
}

var errCredentials = errors.New("neither a NATS credentials file nor a single token")

// dialFunc makes a connection.
type dialFunc func(network, address string) (net.Conn, error)

// Dial implements nats.CustomDialer.
func (d dialFunc) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// dialing returns what makes connections. Until release is called they end with ctx.
func dialing(ctx context.Context, connect func(ctx context.Context, network, address string) (net.Conn, error)) (dial dialFunc, release func()) {
	first, done := context.WithCancel(ctx)
	var released atomic.Bool
	dial = func(network, address string) (net.Conn, error) {
		if released.Load() {
			return connect(context.WithoutCancel(ctx), network, address)
		}
		conn, err := connect(first, network, address)
		if err == nil {
			context.AfterFunc(first, func() {
				if !released.Load() {
					_ = conn.Close() // which ends the wait for what the server says
				}
			})
		}
		return conn, err
	}
	return dial, func() {
		released.Store(true)
		done()
	}
}

// Dial makes a connection whose unsent data is dropped when it is closed: buffered messages of a
// lost holder must not reach the server later.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, address)
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, err
}

// Flush waits until the server has taken what was sent, for a time at most, also when ctx has
// ended: it is for the last words of a process. A connection that is lost keeps nothing to send
// later, so there it returns at once.
func Flush(ctx context.Context, nc *nats.Conn, most time.Duration) error {
	if !nc.IsConnected() {
		return nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

// The oldest servers with what the laws rest on. One before 2.11 takes a call as its lane's ready
// message although others wait before it, because it does not know that condition.
const oldestMajor, oldestMinor = 2, 12

// ErrServer is wrapped by errors about a server that a fleet cannot use.
var ErrServer = errors.New("the NATS server cannot serve a fleet")

// checkServer refuses servers that are too old. One that does not say its version as usual is
// taken.
func checkServer(nc *nats.Conn) error {
	var major, minor int
	if n, _ := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &major, &minor); n < 2 {
		return nil
	}
	if major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("%w: it is version %s, must be %d.%d or later", ErrServer, nc.ConnectedServerVersion(), oldestMajor, oldestMinor)
}

const (
	// openTry bounds one question for a stream or a bucket, and openPatience all of them.
	openTry      = 5 * time.Second
	openPatience = 30 * time.Second
)

// Open requests a stream or a bucket, and again while no server answers, for up to 30 s or until
// ctx ends: servers that choose a leader are silent, and a question put to them then is lost. The
// question is a method of [jetstream.JetStream].
func Open[T any](ctx context.Context, ask func(ctx context.Context, name string) (T, error), name string) (T, error) {
	for began := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, openTry)
		found, err := ask(try, name)
		cancel()
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
		if !silent || ctx.Err() != nil || time.Since(began) >= openPatience {
			return found, err
		}
	}
}

// redacted stands for whatever may be a secret.
const redacted = "xxxxx"

// ErrURL is wrapped by the error of [Connect] for what is no list of server URLs.
var ErrURL = errors.New("not a server URL, which is nats://host:port or tls://host:port (or ws://, wss://), several separated by commas")

// knownScheme reports whether the client knows the scheme of a URL; it takes any other for nats.
func knownScheme(part string) bool {
	scheme, _, found := strings.Cut(part, "://")
	return !found || slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme)
}

// Redact returns the URL list without user names, passwords and tokens. Of an invalid URL it shows
// only the text after the last "@".
func Redact(list string) string {
	if strings.HasPrefix(list, ContextScheme) {
		return list
	}
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		out = append(out, redact(strings.TrimSpace(part)))
	}
	return strings.Join(out, ",")
}

func redact(part string) string {
	scheme, rest, found := strings.Cut(part, "://")
	if !found {
		scheme, rest = "", part
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		return scheme + redacted + rest[at:]
	}
	if part != "" && parse(part) != nil {
		return redacted // half a URL, perhaps, with half a password
	}
	return part
}

// CheckURLs finds invalid URLs before the client does, whose error would quote a password. Errors
// wrap [ErrURL].
func CheckURLs(list string) error {
	if strings.HasPrefix(list, ContextScheme) {
		return nil // the library says what is wrong
	}
	fault := ErrURL
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if fault = parse(part); fault == nil && !knownScheme(part) {
			fault = ErrURL
		}
		if fault != nil {
			break
		}
	}
	if fault != nil {
		return fmt.Errorf("connect to NATS at %q: %w", Redact(list), fault)
	}
	return nil
}

// parse checks one URL as the client reads it: without a scheme it is nats://. The
// error says nothing, because what [url.Parse] says quotes its input.
func parse(part string) error {
	if !strings.Contains(part, "://") {
		part = "nats://" + part
	}
	u, err := url.Parse(part)
	if err != nil || u.Hostname() == "" {
		return ErrURL
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return ErrURL
		}
	}
	return nil
}

const (
	// repeatEvery is the least time between two log lines of one fault: a server that refuses a
	// process does so several times a second, for as long as its credentials are wrong.
	repeatEvery = time.Minute
	// maxRemembered bounds how many faults are remembered; beyond it all of them are logged again.
	maxRemembered = 64
)

// connectionErrors logs errors of a connection, each at once and then once a minute.
// It is safe for concurrent use.
type connectionErrors struct {
	logger *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	next map[string]time.Time // when a fault may be logged again
}

// option makes the client report its errors, also errors of servers that refuse it.
func (f *connectionErrors) option(ctx context.Context) nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "."+probed) {
			return // [CheckRights] reports it
		}
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		if f.isDue(subject + " " + err.Error()) {
			f.logger.WarnContext(ctx, "nats error", slog.String("subject", subject), slog.Any("error", err))
		}
	})
}

// isDue reports whether a fault is to be logged.
func (f *connectionErrors) isDue(fault string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Before(f.next[fault]) {
		return false
	}
	if f.next == nil || len(f.next) >= maxRemembered {
		f.next = map[string]time.Time{}
	}
	f.next[fault] = now.Add(repeatEvery)
	return true
}
