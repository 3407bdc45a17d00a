// Package cli has the conventions of all commands: flags that are also environment variables,
// errors that name what is allowed, exit codes, and signals.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/memory"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// EnvPrefix begins the environment variable of every flag: --timeout is TOOLFLEET_TIMEOUT.
const EnvPrefix = "TOOLFLEET"

// Exit codes of the commands.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitLimit       = 3
	ExitInterrupted = 130
)

// ExitError is an error that asks for an exit code of its own. An empty message
// prints nothing.
type ExitError struct {
	Code    int
	Message string
}

// Error implements the error interface.
func (e *ExitError) Error() string { return e.Message }

// Usagef makes the error of a command line that makes no sense.
func Usagef(format string, args ...any) *ExitError {
	return &ExitError{Code: ExitUsage, Message: fmt.Sprintf(format, args...)}
}

// Program is the surroundings of a command; main takes them from the process.
type Program struct {
	Name        string
	Description string
	Version     string
	Args        []string
	Examples    map[string][]string // command lines that --help shows, by the name of the command; "" is the program
	Files       Files               // settings beside flags and variables
	Defaults    map[string]string   // of flags, by the name that their tags have for it
	Stdin       io.Reader
	Stdout      *os.File
	Stderr      *os.File
	Getenv      func(string) string
}

// gcPercent lets the heap grow to four times its live size before a collection: heaps of these
// programs are small, and most of their objects short-lived. GOGC wins.
const gcPercent = 300

// MinLease is the shortest lease that --lease takes.
const MinLease = 500 * time.Millisecond

// Common is the flags that every command has.
type Common struct {
	LogLevel    string           `group:"Every command:" default:"warn" enum:"debug,info,warn,error" help:"Minimum level of log lines on stderr: debug, info, warn or error."`
	LogFormat   string           `group:"Every command:" default:"text" enum:"text,json" help:"Format of log lines: text, or json with one object per line."`
	PrintConfig bool             `group:"Every command:" help:"Print the effective settings as JSON, secrets redacted, and exit."`
	HelpAll     helpAll          `group:"Every command:" env:"-" help:"Show every flag, with its variable, and exit."`
	Version     kong.VersionFlag `group:"Every command:" env:"-" help:"Print the version and exit."` // images and scripts set TOOLFLEET_VERSION for their own ends
}

// Logger returns the logger of a command, which writes to stderr.
func (c Common) Logger(p Program) *slog.Logger { return c.LoggerTo(p.Stderr) }

// LoggerTo returns the logger of a command that writes each record to w at once. What
// [Program.Telemetry] exports passes through it, too.
func (c Common) LoggerTo(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // the flag's enum allows nothing else
	options := &slog.HandlerOptions{Level: level}
	var local slog.Handler = slog.NewTextHandler(w, options)
	if c.LogFormat == "json" {
		local = slog.NewJSONHandler(w, options)
	}
	return slog.New(telemetry.NewLogHandler(local, withoutUsers))
}

// withoutUsers is a text without the passwords and tokens in front of the hosts of its URLs.
func withoutUsers(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return users.ReplaceAllString(text, "${1}xxxxx@")
}

// Tracing is where a command writes spans to, as flags.
type Tracing struct {
	TraceFile string `placeholder:"FILE" help:"File to which the spans of this process are appended, in the OTLP file format (JSON Lines), up to 256 MB: Jaeger opens it (Upload), and any OpenTelemetry collector reads it. It has what OpenTelemetry's traces have: no contents of calls, unless OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is true."`
}

// Selected is the command of a command line.
type Selected struct {
	Name          string // as "ls"; "" for a program without commands
	Target, Group any    // pointers to its struct, and to that of the command above it
}

func selected(kctx *kong.Context) Selected {
	node := kctx.Selected()
	if node == nil {
		return Selected{}
	}
	return Selected{node.Name, node.Target.Addr().Interface(), node.Parent.Target.Addr().Interface()}
}

// Run parses arguments into grammar, a pointer to a struct for kong, and calls run. It returns the
// exit code, having printed any error. common points to the flags inside grammar.
func Run(p Program, grammar any, common *Common, run func(Selected) error) int {
	if p.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	memory.Bound()
	emptyEnv := dropEmptyEnv()
	exit := -1
	from := &sources{p: p}
	kctx, err := newParser(p, grammar, from, kong.Exit(func(code int) { exit = code })).Parse(p.Args)
	if exit >= 0 { // --help, --version
		return exit
	}
	if err != nil {
		return report(p, called(p, err), from.usageError(err))
	}
	command := cmp.Or(kctx.Selected(), kctx.Model.Node).FullPath()
	if err := checkEmpty(kctx, emptyEnv); err != nil {
		return report(p, command, from.explain(kctx, err))
	}
	if common.PrintConfig {
		return report(p, command, from.printConfig(p.Stdout, kctx))
	}
	err = run(selected(kctx))
	if exit, _ := errors.AsType[*ExitError](err); exit == nil || exit.Code != ExitLimit { // which comes first
		if reason := ended.Load(); reason != nil {
			err = *reason
		}
	}
	return report(p, command, from.explain(kctx, err))
}

// Parse parses the arguments of a command that another command stores, such as a scheduled one,
// into grammar. Its flags have the same variables and files as any other.
func Parse(p Program, grammar any, args []string) error {
	exit := -1
	p.Files = Files{}
	from := &sources{p: p}
	_, err := newParser(p, grammar, from, kong.Exit(func(code int) { exit = code })).Parse(args)
	if exit >= 0 { // --help
		return &ExitError{Code: exit}
	}
	if err != nil {
		return from.usageError(err)
	}
	return nil
}

// newParser makes the parser of a command line.
func newParser(p Program, grammar any, from *sources, more ...kong.Option) *kong.Kong {
	return kong.Must(grammar, append(append([]kong.Option{kong.Resolvers(from), kong.WithBeforeResolve(from.load), kong.Bind(from)},
		kong.Name(p.Name), kong.Description(p.Description), kong.Writers(p.Stdout, p.Stderr),
		kong.DefaultEnvars(EnvPrefix), kong.Vars{"version": p.Name + " " + p.Version}, kong.Vars(p.Defaults),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: helpWidth}), kong.Help(p.help),
		kong.TypeMapper(reflect.TypeFor[[]string](), kong.MapperFunc(list)),
	), more...)...)
}

// errInterrupted is the error of a command that a signal has ended.
var errInterrupted = errors.New("interrupted")

// listed ends the error about an unknown flag, which is one line.
const listed = " --help-all lists the flags"

// report prints an error of a command, as it is called, and returns the exit code that the error
// asks for.
func report(p Program, command string, err error) int {
	if err == nil {
		return ExitOK
	}
	code := ExitFailed
	if exit, ok := errors.AsType[*ExitError](err); ok {
		code = exit.Code
	} else if errors.Is(err, natsio.ErrURL) {
		err, code = fmt.Errorf("--nats: %w", err), ExitUsage
	} else if errors.Is(err, context.Canceled) { // nothing but a signal cancels a command
		err, code = errInterrupted, ExitInterrupted
	}
	if message := withoutUsers(err.Error()); message != "" {
		_, _ = fmt.Fprintf(p.Stderr, "%s: %s\n", p.Name, prose.Visible(message))
		if code == ExitUsage && !strings.HasSuffix(message, listed) {
			_, _ = fmt.Fprintf(p.Stderr, "Run \"%s --help\" for usage.\n", command)
		}
	}
	return code
}

// printConfig prints every flag of the selected command with its value.
func (s *sources) printConfig(w io.Writer, kctx *kong.Context) error {
	config := map[string]any{}
	for _, setting := range s.settings(kctx) {
		config[setting.Name] = setting.Value
	}
	if limit := memory.Limit(); limit < math.MaxInt64 {
		config["GOMEMLIMIT"] = limit
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(config)
}

// printable is the value of a flag, or of its setting in a file, without secrets.
func printable(name string, value any) any {
	switch v := value.(type) {
	case fmt.Stringer:
		return v.String()
	case map[string]string: // --env may carry secrets
		names := make(map[string]string, len(v))
		for key := range v {
			names[key] = "(set)"
		}
		return names
	case map[string]any: // of a file
		return slices.Sorted(maps.Keys(v))
	case string:
		return withoutSecrets(name, v)
	case []string:
		texts := slices.Clone(v)
		for i := range texts {
			texts[i] = withoutSecrets(name, texts[i])
		}
		return texts
	default:
		return v
	}
}

// withoutSecrets is the value of a flag without the secrets that URLs in it have.
func withoutSecrets(flag, text string) string {
	if flag == "join" && text != "" {
		return "(set)"
	}
	if flag == "nats" || flag == "pool-nats" { // lists of URLs, which may be without a scheme
		return natsio.Redact(text)
	}
	return RedactURL(text)
}

// RedactURL is a text without the secrets that a URL in it has: who comes, and what is asked for.
// Any other text is returned as it is.
func RedactURL(text string) string {
	scheme, rest, is := strings.Cut(text, "://")
	if !is {
		return text
	}
	query := ""
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest, query = rest[:i], rest[i:]
	}
	host, path, hasPath := strings.Cut(rest, "/")
	if i := strings.LastIndex(host, "@"); i >= 0 {
		host = "xxxxx" + host[i:]
	}
	if hasPath {
		host += "/" + path
	}
	if len(query) > 1 {
		host += query[:1] + "xxxxx"
	}
	return scheme + "://" + host
}

var urls = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"<>]+`)

// users is who comes, with a password or a token, in the URLs of a text.
var users = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s"<>/]*@`)

// RedactURLs is a text, such as an error, with each URL in it as [RedactURL] has it.
func RedactURLs(text string) string { return urls.ReplaceAllStringFunc(text, RedactURL) }

// Signals returns a context that the first SIGINT, SIGTERM or SIGHUP (the terminal is closed) ends,
// with a cause that names it, and calls second at the next one. Until stop gives the signals back,
// a reader of this process's output that goes away makes writing fail, and does not end the
// process.
func Signals(ctx context.Context, second func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as by nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	broken := make(chan os.Signal, 1) // nobody has to read it; commands in sandboxes do not inherit what is caught
	signal.Notify(broken, syscall.SIGPIPE)
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for n := 0; ; n++ {
			select {
			case got := <-signals:
				if n == 0 {
					cancel(signalError{got})
				} else {
					second()
				}
			case reason := <-ending:
				cancel(reason)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		signal.Stop(broken)
		close(done)
		<-finished
		cancel(nil)
	}
}

// Drains has say print what a process waits for when ctx ends, and calls abort when the time of the
// drain is over. said waits for say, because what has nothing to do ends before it.
func Drains(ctx context.Context, limit time.Duration, abort, say func()) (said func()) {
	done := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(done)
		say()
		time.AfterFunc(limit, abort)
	})
	return func() {
		if ctx.Err() != nil {
			<-done
		}
	}
}

// Draining prints, after the first signal, what the process waits for, how long at most, what
// happens to the rest, and what a second signal does.
func (p Program) Draining(limit time.Duration, running int, what, rest string) {
	waits := "nothing runs"
	if running > 0 {
		waits = fmt.Sprintf("still running: %s; %s", prose.Plural(running, what), rest)
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s: draining, for %s at most (--drain); %s; a second signal exits at once\n", p.Name, limit, waits)
}

var (
	ended  atomic.Pointer[error] //nolint:gochecknoglobals // a process ends once
	ending = make(chan error, 1) //nolint:gochecknoglobals // as signals come
)

// endWithin is how long a command may take to end after [End].
const endWithin = 15 * time.Second

// End ends the process as a signal does, because it cannot work any more: [Run] prints the reason
// and returns [ExitFailed]. A command that does not end in time is ended by force.
func (p Program) End(reason error) {
	if !ended.CompareAndSwap(nil, &reason) {
		return
	}
	ending <- reason
	time.AfterFunc(endWithin, func() { os.Exit(report(p, p.Name, reason)) })
}

// signalError is why a signal has ended a context; it is a [context.Canceled].
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "signal " + e.String() }
func (signalError) Unwrap() error   { return context.Canceled }

// Telemetry sets up the traces, metrics and exported logs of a service by its environment variables
// and flags; a bad value is a usage error. end sends the rest, also when ctx has ended.
func (p Program) Telemetry(ctx context.Context, service string, o telemetry.Options) (end func(), err error) {
	o.Getenv = p.Getenv
	shutdown, err := telemetry.Setup(ctx, service, p.Version, &o)
	if err != nil {
		return nil, Usagef("%v", err)
	}
	return func() {
		ctx := context.WithoutCancel(ctx)
		if err := shutdown(ctx); err != nil && o.Logger != nil {
			o.Logger.WarnContext(ctx, "the last traces, metrics or logs could not be exported, and are lost; check that a collector answers at OTEL_EXPORTER_OTLP_ENDPOINT",
				slog.Any("error", err))
		}
	}, nil
}
