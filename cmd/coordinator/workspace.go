package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// remoteWorkspace is a local directory whose copy a session works on elsewhere.
type remoteWorkspace struct {
	fleet   *fleet.Fleet
	session protocol.SessionID
	dir     string
	base    snapshot.Manifest // what the directory was when it was copied
	protect []string          // places of it that stay as they are
}

// transferTimeout bounds the packing or unpacking of a workspace by a worker.
const transferTimeout = 10 * time.Minute

// importWorkspace copies a directory into the session's sandbox. The sandbox
// keeps what it has when the session worked in it before. The places of protect stay as they are in
// the directory; nil means those that a sandbox that uses it in place protects.
func importWorkspace(
	ctx context.Context, f *fleet.Fleet, session protocol.SessionID, dir string, protect []string,
) (_ *remoteWorkspace, err error) {
	if protect == nil {
		places, err := gitguard.Protected(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("copy the workspace: %w", err)
		}
		protect = places.Protect
	}
	w := &remoteWorkspace{fleet: f, session: session, dir: dir, protect: protect}
	blobs, err := f.JS.ObjectStore(ctx, f.Name.BlobsBucket())
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		var err error
		w.base, _, err = snapshot.Pack(ctx, root, writer, nil)
		writer.CloseWithError(err)
		packed <- err
	}()
	name := w.blob()
	_, err = blobs.Put(ctx, jetstream.ObjectMeta{Name: name}, reader)
	reader.CloseWithError(err)
	if err := errors.Join(<-packed, err); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { _ = blobs.Delete(context.WithoutCancel(ctx), name) }() // it ages out otherwise
	return w, w.call(ctx, protocol.WorkspaceImport{Blob: name}, protocol.Exclusive)
}

func (w *remoteWorkspace) blob() string {
	return "workspace/" + string(w.session) + "/" + uuid.NewString()
}

// call has a worker do something with the whole workspace.
func (w *remoteWorkspace) call(ctx context.Context, payload protocol.Payload, access protocol.Access) error {
	call := protocol.Call{
		ID: protocol.RandomCallID(), SessionID: w.session, Tool: string(payload.Kind()), Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(w.session)), Access: access}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(transferTimeout), Payload: payload,
	}
	result, err := w.fleet.Dispatcher.One(ctx, &call)
	if err != nil {
		return fmt.Errorf("%s: %w", payload.Kind(), err)
	}
	if result.Error != nil {
		return fmt.Errorf("%s: %w", payload.Kind(), result.Error)
	}
	return nil
}

// sync brings what changed in the sandbox back into the directory. What was
// changed on both sides stays as it is here, and is told to warn.
func (w *remoteWorkspace) sync(ctx context.Context, warn func(string)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	name := w.blob()
	if err := w.call(ctx, protocol.WorkspaceExport{Blob: name}, protocol.Shared); err != nil {
		return fmt.Errorf("bring the workspace back: %w", err)
	}
	blobs, err := w.fleet.JS.ObjectStore(ctx, w.fleet.Name.BlobsBucket())
	if err != nil {
		return fmt.Errorf("bring the workspace back: %w", err)
	}
	archive, err := natsio.GetObject(ctx, blobs, name)
	if err != nil {
		return fmt.Errorf("bring the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, archive.Close(), blobs.Delete(ctx, name)) }()
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return fmt.Errorf("bring the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	changes, err := snapshot.Sync(ctx, root, w.base, archive, &snapshot.Options{Protect: w.protect})
	if err != nil {
		return fmt.Errorf("bring the workspace back: %w", err)
	}
	if len(changes.Conflicts) > 0 {
		warn("changed here and in the session, left as they are here: " + strings.Join(changes.Conflicts, ", "))
	}
	if len(changes.Protected) > 0 {
		warn("protected, left as they are here (--protect says what is): " + strings.Join(changes.Protected, ", "))
	}
	return nil
}
