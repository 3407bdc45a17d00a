package toolserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/longlived"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// live is a server that was started.
type live struct {
	*longlived.Lifetime

	name    string
	command string              // "" of a server that has a URL
	hide    func(string) string // takes the secrets of the URL out of an error
	session *mcp.ClientSession  // nil until the server has answered the greeting
	changed atomic.Bool         // the server's list of tools has changed
	tokens  atomic.Int64        // of progress

	mu            sync.Mutex
	stderrTail    longlived.Tail // standard error, and lines that are no message
	ending        string         // it ended
	stopRequested bool           // its program was to end
	startErr      error          // why it could not be started
	shown         map[string]*callOutput
}

// responds reports whether it answers a question soon.
func (l *live) responds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return l.session.Ping(ctx, nil) == nil
}

// answerTimeout is how long a server may take to answer when it is asked whether it does.
const answerTimeout = 5 * time.Second

// diagnosis says how it ended, or else what was wrong with it.
func (l *live) diagnosis(err error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := cmp.Or(l.ending, l.hide(err.Error()))
	data, _ := l.stderrTail.Read(0, maxStderr)
	if said := strings.TrimSpace(prose.Valid(string(data))); said != "" {
		text += ": " + said
	}
	return text
}

// connect starts the server and greets it.
func (s *Servers) connect(ctx context.Context, at Surroundings, one *server) (*live, error) {
	spec, err := Resolved(one.spec, at.Variable)
	if err != nil {
		return nil, err
	}
	l := &live{
		Lifetime: longlived.NewLifetime(ctx, 0, nil), name: spec.Name, command: spec.Command, hide: hiding(one.spec.URL, spec.URL),
		stderrTail: longlived.Tail{Keep: maxStderr}, shown: map[string]*callOutput{},
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	transport, err := s.transport(requests, l, at, spec)
	if err == nil {
		greeting, stop := context.WithTimeout(ctx, startTimeout)
		defer stop()
		l.session, err = l.client(at, spec).Connect(greeting, transport, nil)
	}
	if err != nil {
		l.End(nil)
		endRequests()
		if spec.URL == "" {
			<-l.Done()
		}
		return nil, l.notStarted(ctx, err)
	}
	network, version := genaiconv.TransportPipe, ""
	if spec.URL != "" {
		network = genaiconv.TransportTCP
	}
	if initialized := l.session.InitializeResult(); initialized != nil {
		version = initialized.ProtocolVersion
	}
	ended := telemetry.StartMCPSession(ctx, trace.SpanKindClient, version, network)
	if spec.URL != "" {
		s.follow(l, endRequests, ended)
		return l, nil
	}
	endRequests()
	s.join(func() {
		<-l.Done()
		_ = l.session.Close() // the program has ended
		err := l.session.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stopRequested {
			err = nil
		}
		ended(err)
	})
	return l, nil
}

// transport reaches a server, and starts one that is a program.
func (s *Servers) transport(requests context.Context, l *live, at Surroundings, spec protocol.MCPServer) (mcp.Transport, error) {
	switch {
	case spec.URL == "":
		return s.program(l, at, spec), nil
	case at.HTTP == nil:
		return nil, protocol.Errorf(codes.NetworkOff, "MCP server %s is at a URL, and this worker's sandboxes have no network", spec.Name)
	}
	return remote(requests, at, spec)
}

// hiding returns what shows a URL in errors as it was written: without the values of variables, and
// other secrets.
func hiding(written, resolved string) func(string) string {
	if resolved == "" { // of a program
		return func(text string) string { return text }
	}
	values := []string{resolved, written}
	if u, err := url.Parse(resolved); err == nil { // as errors have it
		values = append(values, u.String(), written)
		if u.User != nil {
			values = append(values, strings.Replace(u.String(), u.User.String()+"@", u.User.Username()+":***@", 1), written)
		}
	}
	return func(text string) string { return cli.RedactURLs(strings.NewReplacer(values...).Replace(text)) }
}

// notStarted is why it could not be started.
func (l *live) notStarted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if l.startErr != nil {
		if _, ok := errors.AsType[*protocol.Error](l.startErr); ok || errors.Is(l.startErr, sandbox.ErrClosed) {
			return l.startErr
		}
		err = l.startErr
	}
	if fault, ok := errors.AsType[*protocol.Error](err); ok {
		return fault
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it did not answer within %s", startTimeout)
	}
	why := l.diagnosis(err)
	return protocol.Errorf(protocol.CodeToolFailed, "MCP server %s could not be started: %s%s", l.name, why, networkAdvice(l.command, why))
}

// networkAdvice is what to do about a program that found no host, as package managers do that fetch
// it first; "" for any other failure.
func networkAdvice(command, why string) string {
	found := func(sign string) bool { return strings.Contains(why, sign) }
	if !slices.ContainsFunc([]string{
		"EAI_AGAIN", "ENOTFOUND", "ENETUNREACH", "name resolution", "resolve host", "dns error", "no such host", "Name or service not known", "Network is unreachable",
	}, found) {
		return ""
	}
	hosts := "HOST"
	switch path.Base(command) {
	case "npx", "npm", "pnpm", "yarn", "node", "bunx":
		hosts = "npm"
	case "uvx", "uv", "pip", "pipx", "python", "python3":
		hosts = "pypi"
	case "go":
		hosts = "go"
	}
	return "; sandboxes reach listed hosts only: start the worker (or this command, without --nats) with --allow-net " + hosts
}

// client is what talks to it.
func (l *live) client(at Surroundings, spec protocol.MCPServer) *mcp.Client {
	capabilities := &mcp.ClientCapabilities{}
	if spec.URL == "" {
		capabilities.RootsV2 = &mcp.RootCapabilities{} //nolint:staticcheck // servers of earlier versions ask for them
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "toolfleet", Version: "1"}, &mcp.ClientOptions{
		Capabilities: capabilities, ElicitationHandler: l.elicited,
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { l.changed.Store(true) },
		ProgressNotificationHandler: l.progressed,
		LoggingMessageHandler:       l.logged, //nolint:staticcheck // as below
	})
	if spec.URL == "" {
		client.AddRoots(&mcp.Root{URI: "file://" + at.Root, Name: "workspace"}) //nolint:staticcheck // as above
	}
	return client
}

// program is the transport of a server that is a program of the sandbox.
func (s *Servers) program(l *live, at Surroundings, spec protocol.MCPServer) mcp.Transport {
	output, written := io.Pipe()
	input := &programInput{feed: make(chan []byte), closed: make(chan struct{}), ended: l.Done()}
	messages := &messages{to: written, rest: l.appendStderr}
	cmd := sandbox.Cmd{
		Argv: append([]string{spec.Command}, spec.Args...), Dir: spec.Cwd, Env: spec.Env, Feed: input.feed,
		Limits: sandbox.Limits{Output: wire.MinOutput, Grace: stopGrace},
		Live: func(stream sandbox.Stream, data []byte) {
			if stream == sandbox.Stdout {
				messages.write(data)
			} else {
				l.appendStderr(data)
			}
		},
	}
	s.join(func() {
		l.Run(func(ctx context.Context) {
			result, err := at.Sandbox.Exec(ctx, cmd)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ending, l.stopRequested, l.startErr = ending(result), ctx.Err() != nil, err
		})
		_ = written.Close() // which ends the session
	})
	return &mcp.IOTransport{Reader: output, Writer: input}
}

// join runs what [Servers.Wait] waits for.
func (s *Servers) join(run func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group.Go(run)
}

// ending says how a program ended.
func ending(r sandbox.Result) string {
	switch r.Reason {
	case sandbox.ReasonExited:
		return fmt.Sprintf("it exited with code %d", r.ExitCode)
	case sandbox.ReasonSignaled:
		return "it was killed by " + r.Signal
	default:
		return "it was ended: " + string(r.Reason)
	}
}

// appendStderr stores the end of the output that is no message.
func (l *live) appendStderr(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stderrTail.Write(data)
}

// programInput is the standard input of a program.
type programInput struct {
	feed   chan []byte
	closed chan struct{}   // nothing more is written
	ended  <-chan struct{} // closed when the program has ended
	once   sync.Once
	mu     sync.Mutex // held while something is written
}

// Write implements [io.Writer].
func (f *programInput) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closed:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case f.feed <- bytes.Clone(p):
		return len(p), nil
	case <-f.closed:
	case <-f.ended:
	}
	return 0, io.ErrClosedPipe
}

// Close implements [io.Closer].
func (f *programInput) Close() error {
	f.once.Do(func() {
		close(f.closed)
		f.mu.Lock()
		defer f.mu.Unlock()
		close(f.feed)
	})
	return nil
}

// messages passes on the lines of a program that can be messages: some write other things to
// standard output, too.
type messages struct {
	to   io.Writer
	rest func([]byte)
	line []byte
}

func (m *messages) write(data []byte) {
	m.line = append(m.line, data...)
	for {
		end := bytes.IndexByte(m.line, '\n')
		if end < 0 {
			break
		}
		line := m.line[:end+1]
		if m.line = m.line[end+1:]; bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("{")) {
			_, _ = m.to.Write(append(adapted(bytes.TrimSpace(line)), '\n')) // fails when the session has ended
		} else {
			m.rest(line)
		}
	}
	if len(m.line) > mcp.DefaultMaxLineLength { // the reader refuses it
		_, _ = m.to.Write(m.line)
		m.line = nil
	}
}

// maxStderr is how much of a server's complaints goes into an error, in bytes.
const maxStderr = 2000

// Resolved replaces references to variables by their values. The error of variable says why one
// cannot be used.
func Resolved(spec protocol.MCPServer, variable func(string) (string, error)) (protocol.MCPServer, error) {
	var faults []error
	fill := func(field, text string) string {
		filled, err := expand(text, variable)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", field, err))
		}
		return filled
	}
	env, headers := maps.Clone(spec.Env), maps.Clone(spec.Headers)
	for name, text := range env {
		env[name] = fill("env "+name, text)
	}
	for name, text := range headers {
		headers[name] = fill("headers "+name, text)
	}
	spec.Env, spec.Headers, spec.URL = env, headers, fill("url", spec.URL)
	if spec.Client != nil {
		spec.Client = &protocol.MCPClient{ID: fill("client id", spec.Client.ID), Secret: fill("client secret", spec.Client.Secret), Scopes: spec.Client.Scopes}
	}
	if len(faults) > 0 {
		return spec, protocol.Errorf(codes.InvalidPayload, "MCP server %s: %v", spec.Name, errors.Join(faults...))
	}
	return spec, nil
}

// reference is "${NAME}" or "${NAME:-default}", or one that does not end.
var reference = regexp.MustCompile(`\$\{[^}]*\}?`)

// expand replaces references.
func expand(text string, variable func(string) (string, error)) (filled string, err error) {
	filled = reference.ReplaceAllStringFunc(text, func(found string) string {
		inside, closed := strings.CutSuffix(found[len("${"):], "}")
		name, fallback, hasDefault := strings.Cut(inside, ":-")
		if !closed {
			err = errors.Join(err, errors.New(`"${" without "}"`))
			return ""
		}
		value, missing := variable(name)
		switch {
		case missing != nil && !hasDefault:
			err = errors.Join(err, missing)
		case value == "" || missing != nil:
			return fallback
		}
		return value
	})
	return filled, err
}
