package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/hostenv"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// remoteWorkspace is a local directory whose copy a session works on elsewhere.
type remoteWorkspace struct {
	fleet   *fleet.Fleet
	store   *workspace.Store
	session protocol.SessionID
	pool    protocol.Pool
	dir     string
	base    snapshot.Manifest // what the two had when they were last the same; nil when nobody knows
	protect []string          // places of it that stay as they are
	git     *gitSettings      // of which what is harmless comes back; nil is none
	level   string            // the least of a sandbox that may have the copy
	warn    func(string)      // of what has to wait
	copyFlags

	hurry bool // a time limit is over when it is brought back

	busy func(what string) // shows what goes on; "" is nothing
	left string            // what was told last to be left out
}

// author is who commits in a directory; "" is the current one.
func author(ctx context.Context, dir string) protocol.Author {
	name, email := hostenv.Identity(ctx, dir)
	return protocol.Author{Name: name, Email: email}
}

// transferTimeout bounds the packing or unpacking of a workspace by a worker.
const transferTimeout = 10 * time.Minute

// acceptWithin is how long the fleet may take to accept that a workspace is brought back after a
// time limit.
const acceptWithin = 3 * time.Second

var errNotAccepted = errors.New("the fleet does not answer; session pull brings it back later")

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
	if outside := gitguard.FindOutside(ctx, dir); outside != nil {
		show.warn(outside.String())
	}
	var settings *gitSettings
	if protect == nil {
		places, err := gitguard.Protected(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("copy the workspace: %w", err)
		}
		protect, settings = places.Protect, newGitSettings(dir, places.Configs)
	}
	w := &remoteWorkspace{
		fleet: fl, session: session, pool: protocol.DefaultPool, dir: dir, protect: protect, git: settings, level: level,
		warn: show.warn, copyFlags: copies, busy: show.busy,
	}
	defer w.busy("")
	if err := fl.CheckRights(ctx, natsio.UploadRights(fl.Name)); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	if w.store, err = workspace.Open(ctx, w.part().NC, fl.Name); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for range uploads {
		if err = w.upload(ctx, root); err == nil || !isCode(err, protocol.CodeNotFound) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// uploads is how often a directory is uploaded that others upload at the same time.
const uploads = 5

// isCode reports whether an error is that of a call, with this code.
func isCode(err error, code protocol.Code) bool {
	fault, is := errors.AsType[*protocol.Error](err)
	return is && fault.Code == code
}

// part is the part of the fleet that has the session's sandbox.
func (w *remoteWorkspace) part() *fleet.Fleet { return w.fleet.At(w.pool) }

// upload sends what the fleet does not have of the directory, and has a worker fill the sandbox.
func (w *remoteWorkspace) upload(ctx context.Context, root *os.Root) error {
	ignore := w.ignoring(ctx, root)
	upload, err := w.store.Upload(ctx, w.name(), root, ignore.Skip, w.shown("sending the workspace"))
	if err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	encoded, err := json.Marshal(upload)
	if err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	blob := "workspace/" + string(w.session) + "/" + uuid.NewString()
	if err := w.put(ctx, blob, encoded); err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { // it ages out otherwise
		_ = natsio.DeleteObject(context.WithoutCancel(ctx), w.part().JS, wire.BlobsBucket(w.fleet.Name), blob)
	}()
	w.tellLeft("not copied", ignore)
	value, err := w.call(ctx, protocol.WorkspaceImport{Upload: w.name(), Blob: blob}, protocol.Exclusive)
	if err != nil {
		return err
	}
	imported, is := value.(protocol.WorkspaceImportResult)
	if !is || imported.Checkpoint == 0 { // the session has worked in it before, and keeps what it has
		w.base, err = w.loadBase(ctx)
		return err
	}
	if w.base, err = upload.Tree.Manifest(ctx, w.store); err != nil {
		return fmt.Errorf("remember the workspace: %w", err)
	}
	w.git.begin(upload.Tree)
	return w.keepBase(ctx, workspace.UploadRef(w.name(), imported.Checkpoint))
}

func (w *remoteWorkspace) put(ctx context.Context, name string, content []byte) error {
	_, err := natsio.PutObject(ctx, w.part().JS, wire.BlobsBucket(w.fleet.Name), name, bytes.NewReader(content))
	return err
}

// call has a worker do something with the whole workspace.
func (w *remoteWorkspace) call(ctx context.Context, payload protocol.Payload, access protocol.Access) (protocol.Value, error) {
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: w.session, Tool: string(wire.KindOf(payload)), Pool: w.pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(w.session)), Access: access}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(transferTimeout), Payload: payload,
		MinLevel: w.level,
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	accepted := func() {}
	if w.hurry {
		timer := time.AfterFunc(acceptWithin, func() { end(errNotAccepted) })
		accepted = func() { timer.Stop() }
		defer timer.Stop()
	}
	result, err := w.fleet.Dispatcher.Observed(ctx, &call, func(u loop.Update) {
		if accepted(); u.Waits != "" {
			w.warn("copying the workspace waits for: " + u.Waits)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", wire.KindOf(payload), err)
	}
	if result.Error != nil {
		return nil, fmt.Errorf("%s: %w", wire.KindOf(payload), result.Error)
	}
	return result.Value, nil
}

// sync brings what changed in the sandbox back into the directory. What was
// changed on both sides stays as it is here, which is told.
func (w *remoteWorkspace) sync(ctx context.Context, show view) error {
	before := w.base
	changes, err := w.fetch(ctx)
	if errors.Is(err, errNotAccepted) { // the error of the turn would hide it
		show.warn(err.Error())
	}
	if err == nil {
		show.screen.CameBack(cameBack(before, &changes), isIn(w.dir))
		tellChanges(changes, show.warn)
	}
	return err
}

// fetch is sync without telling.
func (w *remoteWorkspace) fetch(ctx context.Context) (changes snapshot.Changes, err error) {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	defer w.busy("")
	value, err := w.call(ctx, protocol.WorkspaceExport{Upload: w.name()}, protocol.Shared)
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	exported, _ := value.(protocol.WorkspaceExportResult)
	return w.take(ctx, workspace.UploadRef(w.name(), exported.Checkpoint))
}

// take brings what a checkpoint changes into the directory, but for what is left out of its copy.
func (w *remoteWorkspace) take(ctx context.Context, at workspace.Ref) (changes snapshot.Changes, err error) {
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	theirs, err := w.store.Files(ctx, at)
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	options := &snapshot.Options{Protect: w.protect}
	if !w.everything {
		ignore := w.ignoring(ctx, root)
		// What the person keeps from a session is not for a session to say.
		options.Skip, options.Protect = ignore.Skip, append(slices.Clip(w.protect), snapshot.OwnIgnoreFile)
		defer func() { w.tellLeft("not brought back", ignore) }()
	}
	err = inOrder(ctx, w.dir, "bringing the workspace back", w.session, w.warn, func() (err error) {
		changes, err = snapshot.Sync(ctx, root, w.base, theirs, w.shown("bringing the workspace back"), options)
		return err
	})
	if err != nil {
		return changes, fmt.Errorf("bring the workspace back: %w", err)
	}
	w.base = changes.Base
	w.git.bring(ctx, w.store, theirs, &changes, w.warn)
	return changes, w.keepBase(ctx, at)
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

// name is that of the directory's uploads: of this host, since another one may have something else
// there.
func (w *remoteWorkspace) name() string {
	host, _ := os.Hostname() // only a name
	sum := sha256.Sum256([]byte(host + "\x00" + w.dir))
	return hex.EncodeToString(sum[:8])
}

// baseName names the object that says what the two had when they were last the same.
func (w *remoteWorkspace) baseName() string {
	return "workspace/" + string(w.session) + "/base-" + w.name()
}

// keepBase stores which checkpoint the base is. Whoever brings changes back later, or again, then
// knows which side changed what.
func (w *remoteWorkspace) keepBase(ctx context.Context, base workspace.Ref) error {
	encoded, err := json.Marshal(base)
	if err == nil {
		err = w.put(ctx, w.baseName(), encoded)
	}
	if err != nil {
		return fmt.Errorf("remember the workspace: %w", err)
	}
	return nil
}

// loadBase returns the base that is stored; nil when there is none, or not any more. Then
// everything that differs counts as changed on both sides, and nothing is lost.
func (w *remoteWorkspace) loadBase(ctx context.Context) (snapshot.Manifest, error) {
	var at workspace.Ref
	err := w.get(ctx, w.baseName(), &at)
	var tree snapshot.Tree
	if err == nil {
		tree, err = w.store.Files(ctx, at)
	}
	if errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, workspace.ErrNone) {
		return nil, nil
	}
	var base snapshot.Manifest
	if err == nil {
		w.git.begin(tree)
		base, err = tree.Manifest(ctx, w.store)
	}
	if err != nil {
		return nil, fmt.Errorf("look for what the workspace was: %w", err)
	}
	return base, nil
}

// get decodes an object.
func (w *remoteWorkspace) get(ctx context.Context, name string, into any) (err error) {
	object, err := natsio.GetObject(ctx, w.part().JS, wire.BlobsBucket(w.fleet.Name), name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	return json.NewDecoder(object).Decode(into)
}
