package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Templates are the templates of a fleet. A name has 1 to 63 lower case letters, digits, '-' and
// '_', and begins with a letter or digit.
type Templates struct{ client *Client }

// Templates returns the templates of the fleet.
func (c *Client) Templates() Templates { return Templates{c} }

// List returns the templates, sorted by name.
func (t Templates) List(ctx context.Context) (list []report.Template, err error) {
	err = t.with(ctx, natsio.TemplateListRights(t.client.inner.Name), func(ctx context.Context, store *workspace.Store) error {
		list, err = store.Templates(ctx)
		return err
	})
	return list, err
}

// Create stores a directory of this machine as a template, without what [Sessions.Push] leaves out.
// The error wraps [ErrExists] if there is a template of that name.
func (t Templates) Create(ctx context.Context, name, dir string, options Copy) (err error) {
	if err := checkTemplate(name); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return invalid(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error {
		ignore, err := transfer.Ignoring(ctx, root, options.IncludeIgnored)
		if err != nil {
			return err
		}
		if err := store.TemplateFrom(ctx, name, root, ignore.Skip); err != nil {
			return err
		}
		if left := ignore.LeftOut(); left != "" && options.Warn != nil {
			options.Warn(transfer.LeftOut("not copied", left))
		}
		return nil
	})
}

// CreateFromSession stores the workspace of a session as a template, with errors as Create. The
// error wraps [ErrNotFound] if the session has no stored workspace.
func (t Templates) CreateFromSession(ctx context.Context, name string, session protocol.SessionID) error {
	_, err := protocol.ParseSessionID(string(session))
	if err := errors.Join(checkTemplate(name), invalid(err)); err != nil {
		return err
	}
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error {
		return store.TemplateOf(ctx, name, wire.HashLane(protocol.SandboxKey(string(session)).Lane()))
	})
}

// Remove removes a template. Sessions that began with it stay as they are.
func (t Templates) Remove(ctx context.Context, name string) error {
	if err := checkTemplate(name); err != nil {
		return err
	}
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error { return store.RemoveTemplate(ctx, name) })
}

func checkTemplate(name string) error {
	if err := workspace.CheckTemplate(name); err != nil {
		return invalid(fmt.Errorf("name %w", err))
	}
	return nil
}

// change is with for a method that changes templates.
func (t Templates) change(ctx context.Context, method func(context.Context, *workspace.Store) error) error {
	return t.with(ctx, natsio.WorkspaceRights(t.client.inner.Name), method)
}

func (t Templates) with(ctx context.Context, rights natsio.Rights, method func(context.Context, *workspace.Store) error) error {
	f := t.client.inner
	return act(ctx, t.client, []natsio.Rights{rights}, func(ctx context.Context) error {
		store, err := workspace.Open(ctx, f.Conn(protocol.DefaultPool), f.Name, f.Bodies)
		if err == nil {
			err = method(ctx, store)
		}
		return err
	})
}
