package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionRestore struct {
	ID string `arg:"" help:"Id of the session, in which nothing runs."`
	At string `required:"" placeholder:"CALL" help:"Call whose state is restored; session diff ID lists the calls that changed something."`
}

type sessionFork struct {
	ID string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	At string `placeholder:"CALL" help:"Last call that the new session shares. Default: all calls."`
}

// parseAt reads the id of a call; "" is none.
func parseAt(at string) (protocol.CallID, error) {
	if at == "" {
		return "", nil
	}
	call, err := protocol.ParseCallID(at)
	if err != nil {
		return "", cli.Usagef("--at: %v", err)
	}
	return call, nil
}

// restore makes a session's workspace what it was.
func (c *sessionCommand) restore(ctx context.Context, p program, desk sessionDesk) error {
	at, err := parseAt(c.Restore.At)
	if err != nil {
		return err
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: workspaces of sessions that ran without a fleet have no checkpoints")
	}
	fl, err := c.connect(ctx, p, natsio.LaneRights(desk.fleet, desk.pool), natsio.CallRights(desk.fleet, desk.pool))
	if err != nil {
		return err
	}
	defer fl.Close()
	restored, err := session.Restore(ctx, fl, desk.id, desk.pool, at)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(p, restored)
	}
	_, err = fmt.Fprintf(p.Stdout, "the workspace of session %s is as it was after call %s: %s written, %d removed\n",
		desk.id, at, terminal.Plural(restored.Written, "file"), restored.Removed)
	return err
}

// forked is what a fork prints with --json.
type forked struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turns     int                `json:"turns"`
}

// fork begins a session with the workspace and the conversation of another one.
func (c *sessionCommand) fork(ctx context.Context, p program, desk sessionDesk) error {
	at, err := parseAt(c.Fork.At)
	if err != nil {
		return err
	}
	if c.Nats == "" {
		return cli.Usagef("--nats is missing: workspaces of sessions that ran without a fleet have no checkpoints")
	}
	fl, err := c.connect(ctx, p, append(natsio.SessionRights(desk.fleet), natsio.WorkspaceRights(desk.fleet))...)
	if err != nil {
		return err
	}
	defer fl.Close()
	store, err := workspace.Open(ctx, fl.Conn(desk.pool), desk.fleet)
	if err != nil {
		return err
	}
	made := forked{SessionID: protocol.NewSessionID()}
	to := sessionDesk{id: made.SessionID}.lane()
	if err := store.Fork(ctx, desk.lane(), at, to, func(path string) bool { return path != "processes.json" }); err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	if made.Turns, err = session.Fork(ctx, fl.Journal, desk.id, at, made.SessionID); err != nil {
		return errors.Join(err, store.Remove(context.WithoutCancel(ctx), to))
	}
	if c.JSON {
		return printJSON(p, made)
	}
	if made.Turns == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "coordinator: the workspace alone is forked: the call is none of the session's conversation")
	}
	_, err = fmt.Fprintln(p.Stdout, made.SessionID)
	return err
}
