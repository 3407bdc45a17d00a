package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	pool    protocol.Pool
	dir     string
	base    snapshot.Manifest // what the two had when they were last the same; nil when nobody knows
	protect []string          // places of it that stay as they are
	level   string            // the least of a sandbox that may have the copy
	warn    func(string)      // of what has to wait
	copyFlags

	busy func(what string) // shows what goes on; "" is nothing
	left string            // what was told last to be left out
}

// transferTimeout bounds the packing or unpacking of a workspace by a worker.
const transferTimeout = 10 * time.Minute

// importWorkspace copies a directory into the session's sandbox. The sandbox
// keeps what it has when the session worked in it before. The places of protect stay as they are in
// the directory; nil means those that a sandbox that uses it in place protects.
func (f *policyFlags) importWorkspace(
	ctx context.Context, fl *fleet.Fleet, session protocol.SessionID, dir string, protect []string, copies copyFlags, show view,
) (_ *remoteWorkspace, err error) {
	level, err := f.level()
	if err != nil {
		return nil, err
	}
	if protect == nil {
		places, err := gitguard.Protected(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("copy the workspace: %w", err)
		}
		protect = places.Protect
	}
	w := &remoteWorkspace{
		fleet: fl, session: session, pool: protocol.DefaultPool, dir: dir, protect: protect, level: level,
		warn: show.warn, copyFlags: copies, busy: show.busy,
	}
	defer w.busy("")
	blobs, err := fl.JS.ObjectStore(ctx, fl.Name.BlobsBucket())
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name, ignore := w.blob(), w.ignoring(ctx, root)
	if w.base, _, err = snapshot.Packed(ctx, root, &snapshot.Options{Skip: ignore.Skip}, func(archive io.Reader) error {
		_, err := blobs.Put(ctx, jetstream.ObjectMeta{Name: name}, w.shown("sending the workspace", archive))
		return err
	}); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { _ = blobs.Delete(context.WithoutCancel(ctx), name) }() // it ages out otherwise
	w.tellLeft("not copied", ignore)
	value, err := w.call(ctx, protocol.WorkspaceImport{Blob: name}, protocol.Exclusive)
	if err != nil {
		return nil, err
	}
	if imported, is := value.(protocol.WorkspaceImportResult); is && imported.Files == 0 && len(w.base) > 0 {
		w.base, err = w.loadBase(ctx) // the session has worked in it before, and keeps what it has
		return w, err
	}
	return w, w.keepBase(ctx)
}

func (w *remoteWorkspace) blob() string {
	return "workspace/" + string(w.session) + "/" + uuid.NewString()
}

// call has a worker do something with the whole workspace.
func (w *remoteWorkspace) call(ctx context.Context, payload protocol.Payload, access protocol.Access) (protocol.Value, error) {
	call := protocol.Call{
		ID: protocol.RandomCallID(), SessionID: w.session, Tool: string(payload.Kind()), Pool: w.pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(w.session)), Access: access}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(transferTimeout), Payload: payload,
		MinLevel: w.level,
	}
	result, err := w.fleet.Dispatcher.Told(ctx, &call, func(waits string) { w.warn("copying the workspace waits for: " + waits) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", payload.Kind(), err)
	}
	if result.Error != nil {
		return nil, fmt.Errorf("%s: %w", payload.Kind(), result.Error)
	}
	return result.Value, nil
}

// sync brings what changed in the sandbox back into the directory. What was
// changed on both sides stays as it is here, which is told.
func (w *remoteWorkspace) sync(ctx context.Context, show view) error {
	changes, err := w.fetch(ctx)
	if err == nil {
		show.screen.CameBack()
		tellChanges(changes, show.warn)
	}
	return err
}

// fetch is sync without telling.
func (w *remoteWorkspace) fetch(ctx context.Context) (changes snapshot.Changes, err error) {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	defer w.busy("")
	name := w.blob()
	if _, err := w.call(ctx, protocol.WorkspaceExport{Blob: name}, protocol.Shared); err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	blobs, err := w.fleet.JS.ObjectStore(ctx, w.fleet.Name.BlobsBucket())
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	archive, err := natsio.GetObject(ctx, w.fleet.JS, w.fleet.Name.BlobsBucket(), name)
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, archive.Close(), blobs.Delete(ctx, name)) }()
	if changes, err = w.take(ctx, w.shown("bringing the workspace back", archive)); err != nil {
		return changes, err
	}
	w.base = changes.Archive
	return changes, w.keepBase(ctx)
}

// syncInto brings what changed in an archive since base into a directory.
func syncInto(ctx context.Context, dir string, base snapshot.Manifest, archive io.Reader, options *snapshot.Options) (changes snapshot.Changes, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if changes, err = snapshot.Sync(ctx, root, base, archive, options); err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	return changes, nil
}

// tellChanges tells what was left as it is.
func tellChanges(changes snapshot.Changes, warn func(string)) {
	if len(changes.Conflicts) > 0 {
		saved := ""
		if len(changes.Theirs) > 0 {
			saved = "; what the session has of it is in " + strings.Join(changes.Theirs, ", ")
		}
		warn("changed here and in the session, left as they are here: " + strings.Join(changes.Conflicts, ", ") + saved)
	}
	if len(changes.Protected) > 0 {
		warn("protected, left as they are here (--protect says what is): " + strings.Join(changes.Protected, ", "))
	}
}

// baseName names the object that says what the two had when they were last the same: of this
// directory on this host, since another one may have something else.
func (w *remoteWorkspace) baseName() string {
	host, _ := os.Hostname() // only a name
	sum := sha256.Sum256([]byte(host + "\x00" + w.dir))
	return "workspace/" + string(w.session) + "/base-" + hex.EncodeToString(sum[:8])
}

// keepBase stores the base. Whoever brings changes back later, or again, then knows which side
// changed what.
func (w *remoteWorkspace) keepBase(ctx context.Context) error {
	encoded, err := json.Marshal(w.base)
	if err != nil {
		return fmt.Errorf("remember the workspace: %w", err)
	}
	if _, err := natsio.PutObject(ctx, w.fleet.JS, w.fleet.Name.BlobsBucket(), w.baseName(), bytes.NewReader(encoded)); err != nil {
		return fmt.Errorf("remember the workspace: %w", err)
	}
	return nil
}

// loadBase returns the base that is stored; nil when there is none, or not any more. Then
// everything that differs counts as changed on both sides, and nothing is lost.
func (w *remoteWorkspace) loadBase(ctx context.Context) (base snapshot.Manifest, err error) {
	object, err := natsio.GetObject(ctx, w.fleet.JS, w.fleet.Name.BlobsBucket(), w.baseName())
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for what the workspace was: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	if err := json.NewDecoder(object).Decode(&base); err != nil {
		return nil, fmt.Errorf("look for what the workspace was: %w", err)
	}
	return base, nil
}
