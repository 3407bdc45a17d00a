package kinds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkCommand refuses a command that contradicts itself, or that this worker cannot bound.
func checkCommand(e *Env, p protocol.CommandRun) *protocol.Error {
	switch {
	case p.KeepShell && p.Command == "":
		return protocol.Errorf(codes.InvalidPayload, "command_run: keep_shell needs a command, as the shell runs it, not an argv")
	case p.TTY && (!p.Background || len(p.Stdin) > 0):
		return protocol.Errorf(codes.InvalidPayload, "command_run: tty needs background, and no stdin: process_send types")
	case p.TTY && len(p.Command) > maxArgument:
		return protocol.Errorf(codes.InvalidPayload,
			"command_run: the command has %d bytes; with tty it may have at most %d: write a script, and run that", len(p.Command), maxArgument)
	case (p.Command == "") == (len(p.Argv) == 0):
		return protocol.Errorf(codes.InvalidPayload, "command_run: exactly one of command and argv must be given")
	}
	return e.checkLimits(wire.KindOf(p), p.Limits, p.ReadOnly)
}

func checkCode(e *Env, p protocol.CodeRun) *protocol.Error {
	return e.checkLimits(wire.KindOf(p), p.Limits, p.ReadOnly)
}

// checkLimits refuses limits that are invalid, and read_only where the sandbox does not enforce it:
// its caller holds the sandbox shared, so other calls run at the same time.
func (e *Env) checkLimits(kind protocol.Kind, limits protocol.Limits, readOnly bool) *protocol.Error {
	if err := wire.ValidateLimits(limits); err != nil {
		return protocol.Errorf(codes.InvalidPayload, "%s: %v", kind, err)
	}
	if readOnly && !e.Sandbox.Caps.ReadOnly {
		return protocol.Errorf(codes.SandboxUnsupported,
			"read_only: sandbox driver %s cannot keep a command from changing the workspace; call again without read_only", e.Sandbox.Caps.Driver)
	}
	return nil
}

func commandRun(ctx context.Context, a *Attempt, p protocol.CommandRun) (protocol.Value, error) {
	e, argv := a.env, p.Argv
	if p.Command != "" {
		argv = []string{e.languages.shell, "-c", p.Command}
	}
	cmd := sandbox.Cmd{Argv: argv, Dir: p.Cwd, Env: p.Env, Stdin: p.Stdin, ReadOnly: p.ReadOnly, Limits: limitsOf(p.Limits)}
	keep := func(context.Context, *sandbox.Result) {}
	if p.KeepShell {
		keep = a.inShell(p, &cmd)
	}
	if len(p.Command) > maxArgument {
		if !p.KeepShell {
			cmd.Argv = []string{e.languages.shell, "-c", inStateScript, e.languages.shell, p.Command, ""}
		}
		byInput(&cmd, p.Command)
	}
	if p.Background {
		return a.startProcess(ctx, p, cmd)
	}
	c, err := a.exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	keep(ctx, &c.Result)
	c.execution.Notes = append(c.execution.Notes, a.laneSandbox.Notes(ctx, &cmd, &c.Result)...)
	return c.value(protocol.CommandRunResult{Execution: c.execution}), c.fault
}

// maxArgument is the longest argument that Linux gives to a program, in bytes.
const maxArgument = 128<<10 - 1

// longScript gives the script behind it a command that is too long for an argument: the first $1
// bytes of its input. The rest is the input of that command.
const longScript = `__toolfleet=$(mktemp -d) && cat >"$__toolfleet/all" && head -c "$1" "$__toolfleet/all" >"$__toolfleet/command" &&
tail -c "+$(($1 + 1))" "$__toolfleet/all" >"$__toolfleet/input" && exec <"$__toolfleet/input" || exit 126
set -- "$(cat "$__toolfleet/command")" "$2"
rm -rf "$__toolfleet"
`

// byInput has a script that takes a command as its first argument, as [stateScript] does, get it
// from its input.
func byInput(cmd *sandbox.Cmd, command string) {
	cmd.Argv = slices.Clone(cmd.Argv)
	cmd.Argv[2], cmd.Argv[4] = longScript+cmd.Argv[2], strconv.Itoa(len(command))
	cmd.Stdin = slices.Concat([]byte(command), cmd.Stdin)
}

func codeRun(ctx context.Context, a *Attempt, p protocol.CodeRun) (protocol.Value, error) {
	script, err := a.env.languages.script(p.Language)
	if err != nil {
		return nil, err
	}
	cmd := sandbox.Cmd{
		Argv: []string{"sh", "-c", script}, Dir: p.Cwd, Env: p.Env, Stdin: []byte(p.Code), ReadOnly: p.ReadOnly, Limits: limitsOf(p.Limits),
	}
	c, err := a.exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	c.execution.Notes = append(c.execution.Notes, a.laneSandbox.Notes(ctx, &cmd, &c.Result)...)
	return c.value(protocol.CodeRunResult{Execution: c.execution}), c.fault
}

// outputSize is the size of what a command wrote.
func outputSize(v protocol.Value) int {
	e := plain.Execution(v)
	if e == nil {
		return 0
	}
	return max(len(e.Stdout)+len(e.Stderr), len(e.Combined))
}

// limitsOf translates limits from the wire.
func limitsOf(l protocol.Limits) sandbox.Limits {
	return sandbox.Limits{
		Wall: l.Wall.Duration(), CPU: l.CPU.Duration(), Memory: l.Memory, Processes: l.Processes,
		OpenFiles: l.OpenFiles, FileSize: l.FileSize, Disk: l.Disk, Output: l.Output,
	}
}

// limitKinds returns the mechanism that enforces each limit, if the driver named it.
func limitKinds(words map[string]string) map[string]string {
	maps.DeleteFunc(words, func(_, kind string) bool { return kind == "" })
	if len(words) == 0 {
		return nil
	}
	return words
}

// commandEnd is a command that was run to its end.
type commandEnd struct {
	sandbox.Result

	execution protocol.Execution
	written   *spool.Spool // everything that the command wrote; to be closed
	fault     error        // why it did not end by itself
}

// exec runs a command, and shows what it writes while it runs. There is output until then also of a
// command that was stopped.
func (a *Attempt) exec(ctx context.Context, cmd sandbox.Cmd) (*commandEnd, error) {
	written, show := spool.New(a.env.Sandboxes.Spools()), a.Live.Sparingly()
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		written.Write(stream, data)
		show(stream, data)
	}
	r, err := a.sandbox.Exec(ctx, cmd)
	if err != nil {
		_ = written.Close() // it is not read
		return nil, err
	}
	trace.SpanFromContext(ctx).SetAttributes(telemetry.KeyReason.String(string(r.Reason)), telemetry.KeyExitCode.Int(r.ExitCode))
	return &commandEnd{r, a.env.execution(&r), written, endError(&r, isolation.Tighten(a.env.Sandbox.Limits, cmd.Limits))}, nil
}

// value is v, and stored whole if v does not have all of the output.
func (c *commandEnd) value(v protocol.Value) protocol.Value {
	if c.execution.Truncated {
		return results.Partial{Value: v, Whole: results.Output(c.written)}
	}
	_ = c.written.Close() // it was not used
	return v
}

// execution is a result as it travels.
func (e *Env) execution(r *sandbox.Result) protocol.Execution {
	x := protocol.Execution{
		ExitCode: r.ExitCode, Signal: r.Signal, Reason: string(r.Reason),
		Stdout: r.Stdout.Data, Stderr: r.Stderr.Data,
		StdoutBytes: r.Stdout.Total, StderrBytes: r.Stderr.Total,
		StdoutLines: r.Stdout.Lines, StderrLines: r.Stderr.Lines,
		Truncated: r.Stdout.Truncated || r.Stderr.Truncated,
		CPUMS:     float64(r.CPU.Microseconds()) / 1000, MaxRSSBytes: r.MaxRSS,
		LimitKinds: e.limitKinds,
	}
	for _, note := range []string{throttledNote(r), e.networkNote(r)} {
		if note != "" {
			x.Notes = append(x.Notes, note)
		}
	}
	if words := limitKinds(r.LimitKinds); words != nil {
		x.LimitKinds = words
	}
	if r.Stdout.Total > 0 && r.Stderr.Total > 0 {
		x.Combined = r.Combined.Data
		x.Truncated = x.Truncated || r.Combined.Truncated
	}
	return x
}

// minThrottled is how long a command must have been slowed down for anybody to notice.
const minThrottled = 100 * time.Millisecond

// throttledNote says that a command was slow because it wrote too much; "" when it was not.
func throttledNote(r *sandbox.Result) string {
	if r.Combined.Throttled < minThrottled {
		return ""
	}
	return fmt.Sprintf("This command was slowed down for %s: after %d MiB of output it is read at %d MiB a second. Write less, or to a file.",
		r.Combined.Throttled.Round(minThrottled), isolation.OutputBurst>>20, isolation.OutputRate>>20)
}

// unreached matches what programs write that cannot reach a host, or that are set to try nothing by
// the variables of a worker without a network.
var unreached = regexp.MustCompile(`(?i)(could not|couldn't|cannot|unable to|failed to) (resolve|lookup)|name resolution|` +
	`name or service not known|network is unreachable|no such host|ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENOTCACHED|must not be reached|` +
	`GOPROXY=off|offline mode|--offline was specified|network (was|is) disabled`)

// networkNote says what a command could have reached if its output shows that it could not reach
// something; "" otherwise.
func (e *Env) networkNote(r *sandbox.Result) string {
	mode := cmp.Or(e.Network.Sandboxes.Mode, isolation.NetworkNone)
	if mode == isolation.NetworkAll || !e.Sandbox.Caps.Enforces(mode) || !unreached.Match(r.Stderr.Data) && (r.ExitCode == 0 || !unreached.Match(r.Stdout.Data)) {
		return ""
	}
	reached := "This sandbox has no network: commands reach nothing outside of it."
	if mode == isolation.NetworkProxy {
		reached = fmt.Sprintf("This sandbox reaches only %s.", e.Network.Allow)
	}
	return reached + " The operator of the worker can allow more with --allow-net."
}

// endError is the error of a command that did not end by itself; nil when it did. It names the one
// of the command's limits that ended it, so that a model knows how much to do at once.
func endError(r *sandbox.Result, limits sandbox.Limits) error {
	switch r.Reason {
	case sandbox.ReasonExited, sandbox.ReasonSignaled:
		return nil
	case sandbox.ReasonTimeout:
		return protocol.Errorf(protocol.CodeRunTimeout, "the command used up its time (%s, of that %s on the processor) and was killed%s; do less at once",
			r.Wall.Round(timeUnit), r.CPU.Round(timeUnit), timeAllowed(r, limits))
	case sandbox.ReasonOOM:
		return protocol.Errorf(protocol.CodeOOM, "the command used too much memory%s and was killed", atMost(limits.Memory))
	case sandbox.ReasonDiskLimit:
		return diskError(r, limits)
	case sandbox.ReasonLost, sandbox.ReasonCancelled:
		return protocol.Errorf(protocol.CodeSandboxLost, "the sandbox was lost while the command ran")
	default:
		return protocol.Errorf(protocol.CodeInternal, "the sandbox ended the command for a reason that this worker does not know: %s", r.Reason)
	}
}

const timeUnit = 10 * time.Millisecond

// timeAllowed says what a command may have that used up its time. Without a limit it was the time
// of its call.
func timeAllowed(r *sandbox.Result, limits sandbox.Limits) string {
	switch {
	case r.Signal == "SIGXCPU":
		return fmt.Sprintf(": a process may have %s on the processor, whatever timeout is asked for", limits.CPU)
	case limits.Wall > 0:
		return fmt.Sprintf(": it may run for %s, whatever timeout is asked for", limits.Wall)
	default:
		return ""
	}
}

// diskError is the error of a command that wrote too much to files: to one, where the system has
// said so, or in all.
func diskError(r *sandbox.Result, limits sandbox.Limits) error {
	if r.Signal == "SIGXFSZ" {
		limit := limits.FileSize
		if limit == 0 || limits.Disk > 0 && limits.Disk < limit {
			limit = limits.Disk
		}
		return protocol.Errorf(protocol.CodeDiskLimit, "the command wrote too much to one file%s and was killed; write less, or to several files", atMost(limit))
	}
	return protocol.Errorf(protocol.CodeDiskLimit, "the command used up what its sandbox may have on disk%s; remove what is not needed, or write less", atMost(limits.Disk))
}

// atMost writes a limit in bytes behind the name of what it bounds; "" without a limit.
func atMost(limit int64) string {
	if limit <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%d bytes at most)", limit)
}
