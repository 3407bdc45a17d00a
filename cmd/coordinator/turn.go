package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/cli/environment"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/session/hooks"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// turnFlags describe a turn, for run, chat and submit.
type turnFlags struct {
	Prompt  string `arg:"" optional:"" brief:"The prompt; - or none reads stdin." help:"The prompt. Without it, or with -, the prompt is read from stdin if that is a pipe or a file."`
	Session string `placeholder:"ID" brief:"Session to continue, or last. Default: a new one." help:"Session to continue: its id, the beginning of its id (4 characters or more), or last for the most recent one. Any other name starts a session with that id. Default: a new session."`
	workspaceFlags
	Toolset []string `default:"core" brief:"Toolsets of the model." help:"Toolsets of the model, separated by commas."`

	attachFlag   `group:"Model:"`
	AnswerSchema string `group:"Model:" placeholder:"FILE" help:"File with a JSON Schema, of up to 64 KiB: the answer is one JSON value that is valid under it. The model is asked again, up to two times, with what is wrong; then the turn fails with answer_invalid."`
	boundFlags
	promoteFlag `group:"Tools:"`
	viewFlags   `group:"Output:"`
	shareFlags  `group:"Fleet:"`
	modelFlags  `group:"Model:"`
	environment.SessionFlags

	talks   bool // the terminal asks for the prompt
	resumes bool // without a prompt, an unfinished turn continues
}

// workspaceFlags name the workspace of a session.
type workspaceFlags struct {
	Workspace                string `placeholder:"DIR" brief:"Working directory. Default: the current one." help:"Working directory. Without --nats it is used in place. With --nats the session works on a copy, and changes are copied back. Default: the directory where the session worked before; for a new session without --nats the current directory, unless it contains your home directory; else an empty workspace."`
	WholeHome                bool   `group:"Workspace:" help:"Allow the root or home directory as the workspace, where the session could change every file you own. On a terminal, run and chat ask instead."`
	environment.TemplateFlag `group:"Workspace:"`
}

// modelFlags are about what the model reads, and how it replies.
type modelFlags struct {
	replyFlags
	instructionFlags
}

// boundFlags bound a session. The hidden ones bound each turn instead, and cut it off: scripts and
// toolfleet.yaml files have them, people are shown one way to bound a session.
type boundFlags struct {
	MaxSteps  int           `hidden:"" default:"64" help:"Maximum number of model requests of a turn. Use --budget steps=N."`
	MaxTokens int64         `hidden:"" default:"0" help:"Token limit of a turn, input plus output; 0 means unlimited. Use --budget tokens=N."`
	Timeout   time.Duration `default:"0s" brief:"Time limit, such as 10m; 0 means unlimited." help:"Time limit of the session, such as 90s or 10m; 0 means unlimited."`
	Budget    string        `placeholder:"BUDGET" brief:"Bounds of the session, such as steps=200,usd=5." help:"Budget of the session over all of its turns, of any of steps, calls, tokens, time and usd: steps=200,tokens=2000000,time=2h,usd=5. The model is notified at 80%, and asked for an answer without tools at the end. none removes it. Default: that of the session. Without steps a turn has at most 64."`
}

// defaultMaxSteps is the default of --max-steps.
const defaultMaxSteps = 64

// promoteFlag says when a call becomes a job.
type promoteFlag struct {
	PromoteAfter time.Duration `default:"0s" help:"Time after which calls that have not ended continue as jobs in the background: the model continues, and reads their results when they end. 0 means never."`
}

func (f promoteFlag) badPromoteAfter() error {
	if f.PromoteAfter < 0 {
		return cli.Usagef("--promote-after %s: must not be negative", f.PromoteAfter)
	}
	return nil
}

// checked is a turn's flags after every check that needs no fleet.
type checked struct {
	session     protocol.SessionID
	workspace   string
	settings    loop.Settings
	system      string
	budget      *protocol.Spending // nil is that of the session
	attachments []loop.Attachment
	schema      json.RawMessage // of the answer; nil without
}

// check checks the flags of a turn of a session. confirm asks the person at the terminal; nil is
// without one.
func (f *turnFlags) check(session protocol.SessionID, confirm func(question string) bool) (c checked, err error) {
	c.session = session
	if strings.TrimSpace(f.Prompt) == "" && !f.talks && !f.resumes {
		return c, cli.Usagef("PROMPT is empty: say what the agent is to do")
	}
	if f.MaxSteps < 1 {
		return c, cli.Usagef("--max-steps %d: must be at least 1", f.MaxSteps)
	}
	if f.MaxTokens < 0 {
		return c, cli.Usagef("--max-tokens %d: must not be negative", f.MaxTokens)
	}
	if f.Timeout < 0 {
		return c, cli.Usagef("--timeout %s: must not be negative", f.Timeout)
	}
	if err = f.badPromoteAfter(); err != nil {
		return c, err
	}
	if c.budget, err = parseBudget(f.Budget); err != nil {
		return c, err
	}
	if c.budget != nil && f.MaxSteps == defaultMaxSteps {
		f.MaxSteps = max(f.MaxSteps, c.budget.Steps)
	}
	if c.settings, err = f.settings(); err != nil {
		return c, err
	}
	if c.system, err = f.system(); err != nil {
		return c, err
	}
	if c.attachments, err = f.attachments(); err != nil {
		return c, err
	}
	if c.schema, err = f.answerSchema(); err != nil {
		return c, err
	}
	if _, err = f.Places(); err != nil {
		return c, err
	}
	c.workspace, err = environment.UseWorkspace(f.Workspace, f.WholeHome, confirm)
	return c, err
}

// maxSchema bounds the file of --answer-schema, in bytes.
const maxSchema = 64 << 10

// answerSchema reads the schema of the answer; nil without one.
func (f *turnFlags) answerSchema() (json.RawMessage, error) {
	if f.AnswerSchema == "" {
		return nil, nil
	}
	schema, err := regular.Read(f.AnswerSchema, maxSchema)
	if err != nil {
		return nil, cli.Usagef("--answer-schema %s: %v", f.AnswerSchema, errors.Unwrap(err))
	}
	if len(schema) == 0 {
		return nil, cli.Usagef("--answer-schema %s: is empty", f.AnswerSchema)
	}
	if err := (loop.Input{AnswerSchema: schema}).Check(nil); err != nil {
		return nil, cli.Usagef("--answer-schema %s: %v", f.AnswerSchema, strings.TrimPrefix(attachmentError(err).Error(), "answer schema: "))
	}
	return schema, nil
}

// hookFlag names the programs that see, change and refuse what a session does.
type hookFlag struct {
	Hooks string `placeholder:"FILE" narrows:"" help:"JSON file with hooks: programs that see, change or refuse tool calls, results, prompts and requests to models, see docs/hooks.md. They run in this process's environment, as you, without a sandbox."`
}

// hooks reads the file; nil without one.
func (f *hookFlag) hooks(workspace string) ([]loop.Hook, error) {
	if f.Hooks == "" {
		return nil, nil
	}
	list, err := hooks.Load(f.Hooks, workspace)
	if err != nil {
		return nil, cli.Usagef("--hooks %s: %v", f.Hooks, err)
	}
	return list, nil
}

// attachFlag names files that belong to the prompt.
type attachFlag struct {
	Attach []string `sep:"none" placeholder:"FILE" help:"File for the model, in addition to the prompt: a PNG, JPEG, GIF or WebP image or a PDF document of up to 4 MiB, or a text of up to 256 KiB. Repeatable, up to 16 files of 12 MiB together. In chat it belongs to the first message."`
}

// attachments reads the files.
func (f *attachFlag) attachments() (list []loop.Attachment, err error) {
	for _, path := range f.Attach {
		a, err := readAttachment(path)
		if err != nil {
			return nil, cli.Usagef("--attach %s: %v", path, err)
		}
		list = append(list, a)
	}
	if err := (loop.Input{Attachments: list}).Check(nil); err != nil {
		return nil, cli.Usagef("--attach: %v", attachmentError(err))
	}
	return list, nil
}

func readAttachment(path string) (loop.Attachment, error) {
	content, err := regular.Read(path, render.MaxImageBytes)
	if err != nil {
		return loop.Attachment{}, errors.Unwrap(err)
	}
	a, err := loop.NewAttachment(filepath.Base(path), content)
	return a, attachmentError(err)
}

// attachmentError leaves out the code of an error about attachments, which is for programs.
func attachmentError(err error) error {
	if failure, coded := errors.AsType[*protocol.Error](err); coded {
		return errors.New(failure.Message)
	}
	return err
}

// parseBudget reads --budget; nil without one.
func parseBudget(text string) (*protocol.Spending, error) { return parseSpending("--budget", text) }

// parseSpending reads bounds; nil without any.
func parseSpending(flag, text string) (*protocol.Spending, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // the session keeps the budget that it has
	}
	budget, seen := &protocol.Spending{}, map[string]bool{}
	if text == "none" {
		return budget, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		want := "a positive whole number"
		whole, err := strconv.ParseInt(value, 10, 64)
		number := float64(whole)
		switch name {
		case "steps":
			budget.Steps = int(whole)
		case "calls":
			budget.Calls = int(whole)
		case "tokens":
			budget.Tokens = whole
		case "time":
			want = "a positive time, such as 90s or 2h"
			var limit time.Duration
			limit, err = time.ParseDuration(value)
			budget.TimeMS, number = protocol.MillisOf(limit), limit.Seconds()
		case "usd":
			want = "a positive amount of dollars, such as 0.5"
			number, err = strconv.ParseFloat(value, 64)
			budget.USD = number
		default:
			return nil, cli.Usagef("%s %s: %q is none of steps, calls, tokens, time and usd, as in steps=200,time=2h,usd=5; none removes it", flag, text, name)
		}
		if err != nil || !(number > 0) || math.IsInf(number, 1) {
			return nil, cli.Usagef("%s %s: %s %q: must be %s, as in steps=200,time=2h,usd=5", flag, text, name, value, want)
		}
		if seen[name] {
			return nil, cli.Usagef("%s %s: has %s twice", flag, text, name)
		}
		seen[name] = true
	}
	return budget, nil
}

// readPrompt reads the prompt from stdin if the flags say so, or without a prompt if that is a pipe
// or a file.
func (f *turnFlags) readPrompt(p program) error {
	file, isFile := p.Stdin.(*os.File)
	piped := false
	if isFile && f.Prompt == "" {
		info, err := file.Stat()
		piped = err == nil && info.Mode()&os.ModeCharDevice == 0
	}
	if f.Prompt != "-" && !piped {
		return nil
	}
	content, err := io.ReadAll(p.Stdin)
	if err != nil {
		return fmt.Errorf("read the prompt: %w", err)
	}
	f.Prompt = strings.TrimSpace(string(content))
	return nil
}

// checkTimeout returns the fault of --timeout of a command that always has a time limit.
func checkTimeout(limit time.Duration) error {
	if limit <= 0 {
		return cli.Usagef("--timeout %s: must be positive", limit)
	}
	return nil
}

// within returns ctx with a time limit; 0 means none.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, codes.TimeLimit(limit))
}

// overLimit gives an error the exit code for limits if the time limit of ctx is over.
func overLimit(ctx context.Context, err error) error {
	if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return &cli.ExitError{Code: cli.ExitLimit, Message: fmt.Sprintf("%v: %v", context.Cause(ctx), err)}
}

// replyFlags tune a model's replies. In serve they are the defaults of turns, and --max-output is
// also the maximum of turns.
type replyFlags struct {
	Temperature *float64 `placeholder:"T" help:"Sampling temperature, 0 to 2. Default: the server's."`
	Reasoning   string   `placeholder:"EFFORT" brief:"Reasoning effort, such as low, medium or high." help:"Reasoning effort: none, minimal, low, medium, high, xhigh or max; each model supports some of them. Default: the server's."`
	MaxOutput   int64    `default:"0" placeholder:"N" help:"Maximum output tokens of a reply, including reasoning; 0 means the server's default."`
}

// settings checks the flags.
func (f *replyFlags) settings() (loop.Settings, error) {
	if f.MaxOutput < 0 {
		return loop.Settings{}, cli.Usagef("--max-output %d: must not be negative", f.MaxOutput)
	}
	s := loop.Settings{Temperature: f.Temperature, Effort: f.Reasoning, MaxOutput: f.MaxOutput}
	if err := s.Validate(); err != nil {
		return s, cli.Usagef("--%v", err)
	}
	return s, nil
}

// instructionFlags are about the instructions of the model.
type instructionFlags struct {
	System                string `placeholder:"FILE" brief:"File with the system prompt." help:"File with the system prompt, of up to 256 KiB. Default: that of the session, else a general one."`
	NoProjectInstructions bool   `help:"Ignore AGENTS.md and CLAUDE.md of the workspace."`
}

// Bounds of instructions, in bytes.
const (
	maxSystem  = 256 << 10
	maxProject = 32 << 10 // of a file; the rest is left out
)

// system reads the system prompt; "" when there is no file.
func (f *instructionFlags) system() (string, error) {
	if f.System == "" {
		return "", nil
	}
	content, err := regular.Read(f.System, maxSystem)
	switch {
	case err != nil:
		return "", cli.Usagef("--system %s: %v", f.System, errors.Unwrap(err))
	case strings.TrimSpace(string(content)) == "":
		return "", cli.Usagef("--system %s: is empty", f.System)
	}
	return strings.TrimSpace(string(content)), nil
}

// project reads the instruction files of a workspace; nil without one: the session keeps those that
// it has. A file that cannot be read is reported, and left out.
func (f *instructionFlags) project(workspace string, warn func(string)) ([]protocol.InstructionFile, error) {
	if f.NoProjectInstructions {
		return []protocol.InstructionFile{}, nil
	}
	if workspace == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(workspace) // follows no link out of it
	if err != nil {
		return nil, fmt.Errorf("instructions of the workspace: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	files := []protocol.InstructionFile{}
	for _, name := range []string{"AGENTS.md", "CLAUDE.md"} {
		text, err := projectText(root, name)
		same := func(other protocol.InstructionFile) bool { return other.Text == text }
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && text == "", slices.ContainsFunc(files, same): // one is often a link to the other
			continue
		case err != nil:
			warn(fmt.Sprintf("%s of the workspace is left out of the instructions: %v", name, err))
			continue
		case strings.HasSuffix(text, leftOut):
			warn(fmt.Sprintf("%s of the workspace is larger than %d KiB: the rest is left out of the instructions", name, maxProject>>10))
		}
		files = append(files, protocol.InstructionFile{Name: name, Text: text})
	}
	return files, nil
}

// leftOut ends a text that was cut.
const leftOut = "\n[The rest of the file is left out: it is too long. Read it with your tools if you need it.]"

// projectText reads one file of a workspace, up to its bound.
func projectText(root *os.Root, name string) (string, error) {
	file, err := regular.OpenIn(root, name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxProject+1))
	if err != nil {
		return "", err
	}
	if len(content) <= maxProject {
		return strings.TrimSpace(prose.Valid(string(content))), nil
	}
	text := prose.Valid(string(content[:prose.Border(content[:maxProject])]))
	return strings.TrimSpace(text) + leftOut, nil
}

// shareFlags say whose share of a pool's slots calls use, see docs/limits.md.
type shareFlags struct {
	Tenant   string `placeholder:"NAME" help:"Tenant whose share of the workers' slots the calls use: 1 to 32 lower-case letters, digits and -. Tenants with waiting calls get slots by their weights (coordinator limits set --tenant). Default: one tenant for all."`
	Priority string `placeholder:"P" default:"" enum:",interactive,normal,batch" help:"Which calls of a tenant start first when slots are scarce: interactive, normal or batch. Default: normal."`
}

// share returns a context in which all calls have the tenant and the priority.
// Without a fleet there are no others to share with.
func (f *shareFlags) share(ctx context.Context, nats string) (context.Context, error) {
	if nats == "" && f.Tenant+f.Priority != "" {
		return ctx, cli.Usagef("--tenant and --priority: need --nats; without it the slots belong to this process alone")
	}
	if f.Tenant != "" {
		if _, err := protocol.ParseTenant(f.Tenant); err != nil {
			return ctx, cli.Usagef("--tenant: %v", err)
		}
	}
	ctx = judge.With(ctx, judge.Principal{Tenant: protocol.Tenant(f.Tenant)}) // claimed, but where calls are signed
	return wire.WithFlow(ctx, protocol.Tenant(f.Tenant), protocol.Priority(f.Priority)), nil
}
