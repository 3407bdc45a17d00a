package prompt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Answers passes the questions of coordinators elsewhere, and of running calls, to the person at
// this terminal, and sends the answers. Without a terminal it reports how to answer.
type Answers struct {
	// Alone says that no other client can answer: without a terminal every question is declined.
	Alone bool
	// Fill asks the person for what a question wants to know; nil if no person is here.
	Fill func(ctx context.Context, tool string, asked *protocol.Question) (protocol.Answer, error)

	client *fleet.Client
	prompt *Prompt // nil without a terminal
	flags  string  // by which other commands reach the fleet
	report func(string)

	mu       sync.Mutex // events come from another goroutine, also after Close
	closed   bool
	open     map[protocol.CallID]context.CancelFunc // questions that are shown
	approval protocol.CallID                        // the last call for which an approval was asked
	running  sync.WaitGroup
}

// NewAnswers answers questions of a fleet, which other commands reach by some flags.
func NewAnswers(prompt *Prompt, client *fleet.Client, flags string, report func(string)) *Answers {
	a := &Answers{client: client, prompt: prompt, flags: flags, report: report, open: map[protocol.CallID]context.CancelFunc{}}
	if prompt != nil {
		a.Fill = prompt.Fill
	}
	return a
}

// Observe asks the question of an event, and withdraws a question that an event answers.
func (a *Answers) Observe(ctx context.Context, e loop.Event) {
	switch e.Type {
	case loop.EventApprovalAsked:
		a.approve(ctx, e)
	case loop.EventQuestionAsked:
		a.Question(ctx, &report.Question{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Question: e.Question, Lane: e.Lane})
	case loop.EventToolResult, loop.EventJobEnded, loop.EventAnswered:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.withdraw(e.CallID)
	default:
	}
}

// approve shows the question whether a call may be made. A session asks one at a time, so an
// earlier one was answered elsewhere, or is asked again. What running calls ask stays.
func (a *Answers) approve(ctx context.Context, e loop.Event) {
	request := loop.ApprovalRequest{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prompt == nil && !a.closed {
		a.report(WaitsForApproval(request, a.flags))
		return
	}
	a.withdraw(a.approval)
	a.approval = request.CallID
	a.show(ctx, request.CallID, func(ctx context.Context) error {
		answer, err := a.prompt.Approve(ctx, request)
		for errors.Is(err, loop.ErrAskAgain) && ctx.Err() == nil {
			answer, err = a.prompt.Approve(ctx, request)
		}
		if err != nil {
			return nil //nolint:nilerr // no caller waits for the answer any more, or no person can give one
		}
		return a.client.Sessions("").Approve(ctx, request.SessionID, request.CallID,
			protocol.Approval{Granted: answer.Granted, By: answer.By, Note: answer.Note})
	})
}

// Question shows what a running call asks, until the call ends. Without a Question it asks nothing.
func (a *Answers) Question(ctx context.Context, q *report.Question) {
	if q.Question == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.show(ctx, q.CallID, func(ctx context.Context) error {
		if a.Fill == nil && a.Alone {
			return a.reply(ctx, q, protocol.ActionDecline)
		}
		switch err := a.reply(ctx, q, protocol.ActionWait); {
		case errors.Is(err, fleet.ErrNotFound): // it was answered elsewhere
			return nil
		case err != nil:
			return err
		case a.Fill == nil:
			a.report(WaitsForAnswer(q, a.flags))
			return nil
		}
		for {
			answer, err := a.Fill(ctx, q.Tool, q.Question)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // no caller waits for the answer any more
			}
			if err != nil {
				return a.reply(ctx, q, protocol.ActionCancel)
			}
			if err = a.answer(ctx, q, answer); !errors.Is(err, fleet.ErrInvalid) {
				return err
			}
			a.report(err.Error())
		}
	})
}

func (a *Answers) reply(ctx context.Context, q *report.Question, action protocol.Action) error {
	return a.answer(ctx, q, protocol.Answer{Question: q.Question.ID, Action: action})
}

func (a *Answers) answer(ctx context.Context, q *report.Question, answer protocol.Answer) error {
	return a.client.Sessions(q.Pool()).Answer(ctx, q.SessionID, q.CallID, answer)
}

// WaitsForAnswer says that a running call waits for an answer, with a command line that answers it.
func WaitsForAnswer(q *report.Question, flags string) string {
	return fmt.Sprintf("%s asks: %s; accept its defaults with: coordinator approve%s%s %s %s; --deny declines, and --content JSON answers (it must fit the schema %s)",
		q.Tool, Shorten(q.Question.Message), flags, PoolFlag(q.Pool()), q.SessionID, q.CallID, q.Question.Schema)
}

// PoolFlag is the flag that names a pool, with a space in front; "" for the default pool.
func PoolFlag(pool protocol.Pool) string {
	if pool == protocol.DefaultPool {
		return ""
	}
	return " --pool " + string(pool)
}

// show has a question answered in a goroutine; after Close it shows none. The lock is held.
func (a *Answers) show(ctx context.Context, call protocol.CallID, answer func(context.Context) error) {
	if a.closed {
		return
	}
	a.withdraw(call)
	ctx, cancel := context.WithCancel(ctx)
	a.open[call] = cancel
	a.running.Go(func() {
		defer cancel()
		if err := answer(ctx); err != nil && ctx.Err() == nil {
			a.report(fmt.Sprintf("the answer did not arrive: %v", err))
		}
	})
}

// withdraw ends the question about a call, if one is shown. The lock is held.
func (a *Answers) withdraw(call protocol.CallID) {
	if cancel := a.open[call]; cancel != nil {
		cancel()
		delete(a.open, call)
	}
}

// Close withdraws all questions, and shows none any more.
func (a *Answers) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for call := range a.open {
		a.withdraw(call)
	}
	a.running.Wait()
}

// WaitsForApproval says that a call waits for approval, with a command line that answers it.
func WaitsForApproval(request loop.ApprovalRequest, flags string) string {
	return fmt.Sprintf("%s: %s %s; approve it (or refuse it with --deny): coordinator approve%s %s %s",
		request.Reason, request.Tool, Shorten(request.Arguments), flags, request.SessionID, request.CallID)
}

// Shorten cuts a text to a few lines of a terminal.
func Shorten(text string) string { return prose.Head(text, 1000) }

// Fill asks the person for what a running tool asks: first yes or no, then each field. What the
// model asks is one line.
func (q *Prompt) Fill(ctx context.Context, tool string, asked *protocol.Question) (protocol.Answer, error) {
	end, err := q.begin(ctx)
	if err != nil {
		return protocol.Answer{}, err
	}
	defer end()
	answer := protocol.Answer{Question: asked.ID, Action: protocol.ActionDecline, By: UserName()}
	var schema jsonschema.Schema
	if len(asked.Schema) > 0 {
		if err := json.Unmarshal(asked.Schema, &schema); err != nil {
			return answer, fmt.Errorf("what %s asks: %w", tool, err)
		}
	}
	if tool == wire.AskUserTool && schema.Properties["answer"] != nil {
		return q.answer(ctx, asked, schema.Properties["answer"], answer)
	}
	line, err := q.ask(ctx, terminal.Question{
		Reason: "the tool asks you", Tool: tool, Arguments: asked.Message, Answers: "Answer it? y: yes; anything else is no:",
	})
	if err != nil {
		return answer, err
	}
	if answered, _ := parseAnswer(line); !answered.Granted {
		return answer, nil
	}
	content := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, err := q.field(ctx, name, schema.Properties[name], slices.Contains(schema.Required, name))
		if err != nil {
			return answer, err
		}
		if value != nil {
			content[name] = value
		}
	}
	answer.Action = protocol.ActionAccept
	answer.Content, err = json.Marshal(content)
	return answer, err
}

// answer asks the person for the one field of a question of the model.
func (q *Prompt) answer(ctx context.Context, asked *protocol.Question, schema *jsonschema.Schema, answer protocol.Answer) (protocol.Answer, error) {
	names := choices(schema)
	for {
		line, err := q.ask(ctx, terminal.Question{
			Reason: "the model asks you", Tool: wire.AskUserTool, Arguments: asked.Message, Answers: "Answer, " + hintOf(schema) + "; an empty line declines:",
		})
		line = strings.TrimSpace(line)
		switch {
		case err != nil || line == "":
			return answer, err
		case len(names) > 0 && !slices.Contains(names, line):
			q.screen.Notice("answer: must be one of %s", strings.Join(names, ", "))
			continue
		}
		answer.Action = protocol.ActionAccept
		answer.Content, err = json.Marshal(map[string]string{"answer": line})
		return answer, err
	}
}

// field asks for a field until the answer is valid; nil means the default, or no value.
func (q *Prompt) field(ctx context.Context, name string, schema *jsonschema.Schema, required bool) (any, error) {
	title := name
	if schema.Title != "" && schema.Title != name {
		title += " (" + schema.Title + ")"
	}
	hint := hintOf(schema)
	switch {
	case schema.Default != nil:
		hint += "; an empty line is " + string(schema.Default)
	case !required:
		hint += "; optional"
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("field %s: %w", name, err)
	}
	for {
		line, err := q.ask(ctx, terminal.Question{Reason: "field", Tool: title, Arguments: schema.Description, Answers: hint + ":"})
		if err != nil {
			return nil, err
		}
		line = strings.TrimSpace(line)
		if line == "" && (schema.Default != nil || !required) {
			return nil, nil //nolint:nilnil // as the comment says
		}
		value, err := valueOf(schema, line)
		if err == nil {
			err = resolved.Validate(value)
		}
		if err == nil {
			return value, nil
		}
		q.screen.Notice("%s: %v", name, err)
	}
}

// hintOf says what may be typed.
func hintOf(schema *jsonschema.Schema) string {
	if names := choices(schema); len(names) > 0 {
		return "one of " + strings.Join(names, ", ")
	}
	switch schema.Type {
	case "boolean":
		return "y or n"
	case "array":
		if schema.Items != nil {
			return "any of " + strings.Join(choices(schema.Items), ", ") + ", with commas between them"
		}
		return "a list, with commas between"
	case "number", "integer":
		return "a " + map[string]string{"number": "number", "integer": "whole number"}[schema.Type]
	default:
		return "a text"
	}
}

// choices are the allowed values of a field, if its schema lists them.
func choices(schema *jsonschema.Schema) (names []string) {
	for _, value := range schema.Enum {
		names = append(names, fmt.Sprint(value))
	}
	for _, one := range slices.Concat(schema.OneOf, schema.AnyOf) {
		if one.Const != nil {
			names = append(names, fmt.Sprint(*one.Const))
		}
	}
	return names
}

// valueOf parses a line as the value of a field.
func valueOf(schema *jsonschema.Schema, line string) (any, error) {
	switch schema.Type {
	case "boolean":
		switch strings.ToLower(line) {
		case "y", "yes", "true":
			return true, nil
		case "n", "no", "false":
			return false, nil
		}
		return nil, errors.New("must be y or n")
	case "number", "integer":
		value, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return nil, errors.New("must be a number")
		}
		return value, nil
	case "array":
		list := []any{}
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one != "" {
				list = append(list, one)
			}
		}
		return list, nil
	default:
		return line, nil
	}
}
