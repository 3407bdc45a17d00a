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

	"github.com/toolfleet/toolfleet/internal/codes"
	"github.com/toolfleet/toolfleet/internal/plain"
	"github.com/toolfleet/toolfleet/internal/sandbox/capture"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkCommand refuses a command that contradicts itself, or that this worker cannot bound.
func checkCommand(h *Host, p protocol.CommandRun) *protocol.Error {
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
	return h.checkLimits(wire.KindOf(p), p.Limits, p.ReadOnly)
}

func checkCode(h *Host, p protocol.CodeRun) *protocol.Error {
	return h.checkLimits(wire.KindOf(p), p.Limits, p.ReadOnly)
}

// checkLimits refuses limits that are invalid, and read_only where the sandbox does not enforce it:
// its caller holds the sandbox shared, so other calls run at the same time.
func (h *Host) checkLimits(kind protocol.Kind, limits protocol.Limits, readOnly bool) *protocol.Error {
	if err := wire.ValidateLimits(limits); err != nil {
		return protocol.Errorf(codes.InvalidPayload, "%s: %v", kind, err)
	}
	if readOnly && !h.Sandbox.Caps.ReadOnly {
		return protocol.Errorf(codes.SandboxUnsupported,
			"read_only: sandbox driver %s cannot keep a command from changing the workspace; call again without read_only", h.Sandbox.Caps.Driver)
	}
	return nil
}

func commandRun(ctx context.Context, a *Attempt, p protocol.CommandRun) (protocol.Value, error) {
	h, s := a.host, a.sandbox
	argv := p.Argv
	if p.Command != "" {
		argv = []string{h.languages.shell, "-c", p.Command}
	}
	cmd := sandbox.Cmd{Argv: argv, Dir: p.Cwd, Env: p.Env, Stdin: p.Stdin, ReadOnly: p.ReadOnly, Limits: limitsOf(p.Limits)}
	if p.KeepShell {
		s = h.inShell(s, a.box.ShellFile(), p, &cmd)
	}
	if len(p.Command) > maxArgument {
		if !p.KeepShell {
			cmd.Argv = []string{h.languages.shell, "-c", startingScript, h.languages.shell, p.Command, ""}
		}
		byInput(&cmd, p.Command)
	}
	if p.Background {
		return a.startProcess(ctx, s, p, cmd)
	}
	return a.exec(ctx, s, cmd, func(e protocol.Execution) protocol.Value { return protocol.CommandRunResult{Execution: e} })
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

// byInput has a script that takes a command as its first argument, as [keepingScript] does, get it
// from its input.
func byInput(cmd *sandbox.Cmd, command string) {
	cmd.Argv = slices.Clone(cmd.Argv)
	cmd.Argv[2], cmd.Argv[4] = longScript+cmd.Argv[2], strconv.Itoa(len(command))
	cmd.Stdin = slices.Concat([]byte(command), cmd.Stdin)
}

func codeRun(ctx context.Context, a *Attempt, p protocol.CodeRun) (protocol.Value, error) {
	script, err := a.host.languages.script(p.Language)
	if err != nil {
		return nil, err
	}
	cmd := sandbox.Cmd{
		Argv: []string{"sh", "-c", script}, Dir: p.Cwd, Env: p.Env, Stdin: []byte(p.Code), ReadOnly: p.ReadOnly, Limits: limitsOf(p.Limits),
	}
	return a.exec(ctx, a.sandbox, cmd, func(e protocol.Execution) protocol.Value { return protocol.CodeRunResult{Execution: e} })
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

// exec runs a command and makes its value. A value returned with an error has the output until the
// command was stopped.
func (a *Attempt) exec(ctx context.Context, s sandbox.Sandbox, cmd sandbox.Cmd, valueOf func(protocol.Execution) protocol.Value) (protocol.Value, error) {
	h := a.host
	r, written, err := h.spooled(ctx, s, cmd, a.Live)
	if err != nil {
		return nil, err
	}
	execution := h.execution(&r)
	execution.Notes = append(execution.Notes, a.box.Notes(ctx, &cmd, &r)...)
	value := valueOf(execution)
	if execution.Truncated {
		value = results.Partial{Value: value, Whole: results.Output(written)}
	} else {
		_ = written.Close() // it was not used
	}
	return value, endFault(&r, isolation.Tighten(h.Sandbox.Limits, cmd.Limits))
}

// spooled runs a command, shows what it writes while it runs, and returns all of it, which is to be
// closed unless there is an error.
func (h *Host) spooled(ctx context.Context, s sandbox.Sandbox, cmd sandbox.Cmd, live *Live) (sandbox.Result, *spool.Spool, error) {
	written, show := spool.New(h.Sandboxes.Spools()), live.Sparingly()
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		written.Write(stream, data)
		show(stream, data)
	}
	r, err := s.Exec(ctx, cmd)
	if err != nil {
		_ = written.Close() // it is not read
	}
	return r, written, err
}

// execution is a result as it travels.
func (h *Host) execution(r *sandbox.Result) protocol.Execution {
	e := protocol.Execution{
		ExitCode: r.ExitCode, Signal: r.Signal, Reason: string(r.Reason),
		Stdout: r.Stdout.Data, Stderr: r.Stderr.Data,
		StdoutBytes: r.Stdout.Total, StderrBytes: r.Stderr.Total,
		StdoutLines: r.Stdout.Lines, StderrLines: r.Stderr.Lines,
		Truncated: r.Stdout.Truncated || r.Stderr.Truncated,
		CPUMS:     float64(r.CPU.Microseconds()) / 1000, MaxRSSBytes: r.MaxRSS,
		LimitKinds: h.limitKinds,
	}
	for _, note := range []string{throttledNote(r), h.networkNote(r)} {
		if note != "" {
			e.Notes = append(e.Notes, note)
		}
	}
	if words := limitKinds(r.LimitKinds); words != nil {
		e.LimitKinds = words
	}
	if r.Stdout.Total > 0 && r.Stderr.Total > 0 {
		e.Combined = r.Combined.Data
		e.Truncated = e.Truncated || r.Combined.Truncated
	}
	return e
}

// minThrottled is how long a command must have been slowed down for anybody to notice.
const minThrottled = 100 * time.Millisecond

// throttledNote says that a command was slow because it wrote too much; "" when it was not.
func throttledNote(r *sandbox.Result) string {
	if r.Combined.Throttled < minThrottled {
		return ""
	}
	return fmt.Sprintf("This command was slowed down for %s: after %d MiB of output it is read at %d MiB a second. Write less, or to a file.",
		r.Combined.Throttled.Round(minThrottled), capture.Burst>>20, capture.Rate>>20)
}

// unreached matches what programs write that cannot reach a host, or that are set to try nothing by
// the variables of a worker without a network.
var unreached = regexp.MustCompile(`(?i)(could not|couldn't|cannot|unable to|failed to) (resolve|lookup)|name resolution|` +
	`name or service not known|network is unreachable|no such host|ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENOTCACHED|must not be reached|` +
	`GOPROXY=off|offline mode|--offline was specified|network (was|is) disabled`)

// networkNote says what a command could have reached if its output shows that it could not reach
// something; "" otherwise.
func (h *Host) networkNote(r *sandbox.Result) string {
	mode := cmp.Or(h.Network.Sandboxes.Mode, isolation.NetworkNone)
	if mode == isolation.NetworkAll || !h.Sandbox.Caps.Enforces(mode) || !unreached.Match(r.Stderr.Data) && (r.ExitCode == 0 || !unreached.Match(r.Stdout.Data)) {
		return ""
	}
	reached := "This sandbox has no network: commands reach nothing outside of it."
	if mode == isolation.NetworkProxy {
		reached = fmt.Sprintf("This sandbox reaches only %s.", h.Network.Allow)
	}
	return reached + " The operator of the worker can allow more with --allow-net."
}

// endFault is the error of a command that did not end by itself; nil when it did. It names the one
// of the command's limits that ended it, so that a model knows how much to do at once.
func endFault(r *sandbox.Result, limits sandbox.Limits) error {
	switch r.Reason {
	case sandbox.ReasonExited, sandbox.ReasonSignaled:
		return nil
	case sandbox.ReasonTimeout:
		return protocol.Errorf(protocol.CodeRunTimeout, "the command used up its time (%s, of that %s on the processor) and was killed%s; do less at once",
			r.Wall.Round(timeUnit), r.CPU.Round(timeUnit), timeAllowed(r, limits))
	case sandbox.ReasonOOM:
		return protocol.Errorf(protocol.CodeOOM, "the command used too much memory%s and was killed", atMost(limits.Memory))
	case sandbox.ReasonDiskLimit:
		return diskFault(r, limits)
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

// diskFault is that of a command which wrote too much to files: to one, where the system has said
// so, or in all.
func diskFault(r *sandbox.Result, limits sandbox.Limits) error {
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
