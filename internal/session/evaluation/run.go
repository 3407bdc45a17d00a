package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options say where cases run. All fields are required.
type Options struct {
	Client *fleet.Client
	Pool   protocol.Pool // whose workers run the commands
	// Parallel is how many cases run at once.
	Parallel int
	// Project returns what a workspace says to agents.
	Project func(dir string) ([]protocol.InstructionFile, error)
	// Ended is called with each result, one at a time.
	Ended func(Result)
	// Warn reports what a person has to know; it is safe for concurrent use.
	Warn func(string)
}

// State is what came of a case.
type State string

// The states.
const (
	Passed State = "passed"
	Failed State = "failed"
	Error  State = "error"
)

// Result is what came of a case.
type Result struct {
	Name      string             `json:"name"`
	State     State              `json:"state"`
	Why       string             `json:"why,omitempty"` // of a case that has not passed
	SessionID protocol.SessionID `json:"session_id"`
	Outcome   loop.Outcome       `json:"outcome,omitempty"` // of the turn
	Text      string             `json:"text,omitempty"`    // of the answer
	Steps     int                `json:"steps"`
	Usage     protocol.Usage     `json:"usage"`
	CostUSD   *float64           `json:"cost_usd,omitempty"`
	Seconds   float64            `json:"seconds"`
}

// Run runs cases, and returns their results in the order of the cases. After the end of ctx the
// cases that have not ended have errors.
func Run(ctx context.Context, o Options, cases []Case) []Result {
	results, ended := make([]Result, len(cases)), make(chan int)
	var group errgroup.Group
	group.SetLimit(o.Parallel)
	go func() {
		for i := range cases {
			group.Go(func() error {
				results[i] = o.run(ctx, &cases[i])
				ended <- i
				return nil
			})
		}
		_ = group.Wait() // no case returns an error
		close(ended)
	}()
	for i := range ended {
		o.Ended(results[i])
	}
	return results
}

func (o *Options) run(ctx context.Context, c *Case) Result {
	begun := time.Now()
	r := Result{Name: c.Name, SessionID: protocol.NewSessionID()}
	why, err := o.try(ctx, c, &r)
	switch {
	case err != nil:
		r.State, r.Why = Error, err.Error()
	case why != "":
		r.State, r.Why = Failed, why
	default:
		r.State = Passed
	}
	r.Seconds = time.Since(begun).Seconds()
	return r
}

// turnEnd is the time in which a turn ends that has reached its own time limit.
const turnEnd = 10 * time.Second

// try runs a case. It returns why the case fails, "" when it passes.
func (o *Options) try(ctx context.Context, c *Case, r *Result) (why string, err error) {
	turn := fleet.Turn{
		Session: r.SessionID, Prompt: c.Prompt, Model: c.Model, Toolsets: c.Toolsets, System: c.System, Budget: c.Budget, Timeout: c.Timeout,
	}
	all := o.Client.Sessions(o.Pool)
	if err := all.CheckModel(ctx, c.Model); err != nil {
		return "", err
	}
	if c.Workspace != "" {
		if turn.Project, err = o.Project(c.Workspace); err != nil {
			return "", err
		}
		if err := all.Push(ctx, r.SessionID, c.Workspace, fleet.Copy{MinLevel: noLevel, Warn: o.Warn}); err != nil {
			return "", err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, c.Timeout+turnEnd)
	defer cancel()
	result, err := all.Run(waiting, turn, nil)
	if waiting.Err() != nil && ctx.Err() == nil {
		return "", fmt.Errorf("the turn did not end within %s: no coordinator serves or is free, or it was lost", c.Timeout)
	}
	if err != nil {
		return "", err
	}
	r.Outcome, r.Text, r.Steps, r.Usage = result.Outcome, result.Text, result.Steps, result.Usage
	r.CostUSD = o.cost(ctx, r.SessionID)
	if _, err := all.Log(ctx, r.SessionID); errors.Is(err, fleet.ErrNotFound) && result.Error != nil { // it never began
		return "", result.Error
	}
	if r.Outcome != loop.OutcomeAnswered {
		why = fmt.Sprintf("the turn ended as %s", r.Outcome)
		if failure := result.Error; failure != nil {
			why += ": " + failure.Message
		}
		return why, nil
	}
	var reasons []string
	for i := range c.Checks {
		reason, err := o.check(ctx, c, r, &c.Checks[i])
		if err != nil {
			return "", fmt.Errorf("check %d: %w", i+1, err)
		}
		if reason != "" {
			reasons = append(reasons, fmt.Sprintf("check %d: %s", i+1, reason))
		}
	}
	return strings.Join(reasons, "\n"), nil
}

// cost is what a session cost; nil is unknown.
func (o *Options) cost(ctx context.Context, id protocol.SessionID) *float64 {
	history, err := o.Client.Sessions(o.Pool).Log(ctx, id)
	if err != nil {
		return nil
	}
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventTurnEnded {
			return e.CostUSD
		}
	}
	return nil
}

// noLevel is the minimum sandbox level of checks: that of the workers that run the turn is enough.
const noLevel = "none"

// maxOutput bounds what is repeated of the output of a check, in characters, from its end.
const maxOutput = 2000

// check returns why a check fails, "" when it passes.
func (o *Options) check(ctx context.Context, c *Case, r *Result, check *Check) (string, error) {
	if check.Text != "" {
		if strings.Contains(r.Text, check.Text) {
			return "", nil
		}
		return fmt.Sprintf("the answer does not contain %q", check.Text), nil
	}
	result, err := o.Client.Call(ctx, fleet.Call{
		Session: r.SessionID, Pool: o.Pool, MinLevel: noLevel, Timeout: c.Timeout, Payload: protocol.CommandRun{Command: check.Command},
	})
	if err != nil {
		return "", err
	}
	ran, is := result.Value.(protocol.CommandRunResult)
	switch {
	case !is && result.Error != nil:
		return "", result.Error
	case !is:
		return "", errors.New("the command has no result")
	case ran.Reason != "exited":
		return fmt.Sprintf("%s: ended by %s", check.Command, ran.Reason), nil
	case ran.ExitCode == 0:
		return "", nil
	}
	output := ran.Combined
	if len(output) == 0 {
		output = slices.Concat(ran.Stdout, ran.Stderr)
	}
	text := []rune(strings.TrimSpace(prose.Valid(string(output))))
	return fmt.Sprintf("%s: exit code %d\n%s", check.Command, ran.ExitCode, string(text[max(0, len(text)-maxOutput):])), nil
}
