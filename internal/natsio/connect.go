package natsio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// ConnectOptions say how to reach a server. The zero value is usable but for Name.
type ConnectOptions struct {
	// Name is shown by the server's monitoring, as in "worker host-1a2b3c4d".
	Name string
	// Creds is a NATS credentials file (user JWT and seed), or a file that holds
	// nothing but a token; "" is neither.
	Creds string
	// Logger gets a line when the connection is lost and when it is back; nil discards.
	Logger *slog.Logger
	// Options are added last, for embedded servers and tests.
	Options []nats.Option
}

const (
	connectTimeout = 5 * time.Second
	pingInterval   = 5 * time.Second
	maxPingsOut    = 2
	reconnectWait  = 250 * time.Millisecond
)

// Connect connects to url, which may name several servers separated by commas.
// The error of a first connection that fails names the URL, without its secrets.
func Connect(ctx context.Context, url string, o ConnectOptions) (*nats.Conn, error) {
	logger := o.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	options := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPingsOut),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.ReconnectBufSize(-1),
		nats.SetCustomDialer(dialer{}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logger.WarnContext(ctx, "nats connection lost", slog.Any("error", err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			logger.InfoContext(ctx, "nats connection is back", slog.String("url", nc.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			logger.WarnContext(ctx, "nats error", slog.String("subject", subject), slog.Any("error", err))
		}),
	}
	credentials, err := credentialsOption(o.Creds)
	if err != nil {
		return nil, err
	}
	options = append(options, credentials...)
	if err := checkURLs(url); err != nil {
		return nil, err
	}
	nc, err := nats.Connect(url, append(options, o.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w (is the server running, and are the credentials right?)", Redact(url), err)
	}
	return nc, nil
}

// credentialsOption reads a credentials file of either kind.
func credentialsOption(path string) ([]nats.Option, error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if bytes.Contains(content, []byte("BEGIN NATS USER JWT")) {
		return []nats.Option{nats.UserCredentials(path)}, nil
	}
	token := string(bytes.TrimSpace(content))
	if token == "" || strings.ContainsAny(token, " \t\n") {
		return nil, fmt.Errorf("credentials %s: %w", path, errCredentials)
	}
	return []nats.Option{nats.Token(token)}, nil
}

var errCredentials = errors.New("neither a NATS credentials file nor a single token")

// dialer makes connections that drop what was not sent when they are closed:
// what a lost holder had still in its buffers must not reach the server later.
type dialer struct{}

// Dial implements nats.CustomDialer.
func (dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, connectTimeout) //nolint:noctx // the interface passes no context
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, err
}
