package environment

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TemplateFlag says what a new workspace begins with.
type TemplateFlag struct {
	Template string `placeholder:"NAME" help:"Template for the workspace of a new session (template create); with --nats. A session that has a workspace keeps it."`
}

// CheckTemplate returns a usage error for a template that the session cannot begin with.
func (f *TemplateFlag) CheckTemplate(nats, dir string) error {
	switch {
	case f.Template == "":
		return nil
	case nats == "":
		return cli.Usagef("--template %s: needs --nats: a fleet stores templates", f.Template)
	case dir != "":
		return cli.Usagef("--template %s: not together with --workspace, which the session's files come from", f.Template)
	}
	if err := workspace.CheckTemplate(f.Template); err != nil {
		return cli.Usagef("--template %v", err)
	}
	return nil
}

// begin creates the workspace of a session from the template, unless it has a workspace.
func (f *TemplateFlag) begin(ctx context.Context, fl *fleet.Fleet, id protocol.SessionID) error {
	if f.Template == "" {
		return nil
	}
	if there, err := session.HasWorkspace(ctx, fl.At(protocol.DefaultPool), id); err != nil || there {
		return err
	}
	store, err := workspace.Open(ctx, fl.Conn(protocol.DefaultPool), fl.Name)
	if err == nil {
		err = store.FromTemplate(ctx, f.Template, wire.HashLane(protocol.SandboxKey(string(id)).Lane()))
	}
	if err != nil && !errors.Is(err, workspace.ErrExists) {
		return fmt.Errorf("--template %s: %w", f.Template, err)
	}
	return nil
}
