package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// detached is what submit --detach prints with --json.
type detached struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	TraceID   string             `json:"trace_id,omitempty"` // when this process exports traces
}

// leave has the turn accepted, and says how to go on.
func (c *submitCommand) leave(ctx context.Context, p program, fl *fleet.Fleet, call protocol.Call, workspace string) error {
	if err := accepted(ctx, fl, call); err != nil {
		return err
	}
	where := at(c.Nats, c.Login, c.Fleet)
	_, _ = fmt.Fprintf(p.Stderr, "coordinator: follow it with: coordinator session attach%s %s\n", where, call.SessionID)
	if workspace != "" {
		_, _ = fmt.Fprintf(p.Stderr, "coordinator: bring what it changes back with: coordinator session pull%s %s %s\n", where, call.SessionID, quoted(workspace))
	}
	if c.JSON {
		return printJSON(p, detached{call.SessionID, call.ID, telemetry.TraceID(ctx)})
	}
	_, err := fmt.Fprintln(p.Stdout, call.SessionID)
	return err
}

// accepted sends a call and returns when the fleet has it. The call goes on by itself.
func accepted(ctx context.Context, fl *fleet.Fleet, call protocol.Call) error {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	var result *protocol.Result
	err := fl.Dispatcher.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
		result = u.Result
		if u.State != loop.StateDone {
			leave(loop.ErrDetached)
		}
	})
	switch {
	case result != nil && result.Error != nil: // refused, or over already
		return fmt.Errorf("the turn was not accepted: %w", result.Error)
	case errors.Is(err, loop.ErrDetached):
		return nil
	default:
		return err
	}
}

// at are the flags by which another command reaches the fleet, with a space in front, to be pasted
// into a shell. A password of the URL is left out.
func at(nats string, login cli.Login, fleet string) string {
	var flags strings.Builder
	add := func(flag, value string) {
		if value != "" {
			fmt.Fprintf(&flags, " %s %s", flag, quoted(value))
		}
	}
	add("--nats", natsio.Redact(nats))
	add("--creds", login.Creds)
	add("--tls-ca", login.TLS.CA)
	add("--tls-cert", login.TLS.Cert)
	add("--tls-key", login.TLS.Key)
	if fleet != string(protocol.DefaultFleet) {
		add("--fleet", fleet)
	}
	return flags.String()
}

// quoted is a word of a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@=+%", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
