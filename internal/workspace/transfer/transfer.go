// Package transfer copies a directory of this machine into a session's sandbox elsewhere in a
// fleet, and brings back what changed there.
//
//	directory ──Send──► blobs and a manifest in the fleet ──► a worker fills the sandbox
//	directory ◄─Fetch── checkpoint of the sandbox            (also [Pull], for session pull)
//
// The base is what both sides had when they were last the same; the fleet stores which checkpoint
// that is. What changed since on one side is copied to the other. What changed on both sides stays
// as it is in the directory. Protected places stay as they are, too.
package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options say which directory is copied, and where.
type Options struct {
	Fleet   *fleet.Fleet
	Session protocol.SessionID
	// Pool is the pool whose workers have the session's sandbox.
	Pool protocol.Pool
	// Dir is the absolute path of the directory.
	Dir string
	// Protect are paths of Dir that stay as they are; nil means those that a sandbox that uses it
	// in place protects.
	Protect []string
	// MinLevel is the minimum level of the sandbox.
	MinLevel string
	// IncludeIgnored copies also what .gitignore files exclude.
	IncludeIgnored bool
	// Stamps is a directory of this machine that keeps what files of directories were when they
	// were copied, so that unchanged ones are not read again; "" keeps nothing.
	Stamps string
	// Hurry bounds how long a transfer waits to be accepted: the session's time is over.
	Hurry bool
	// Warn reports what a person has to know.
	Warn func(string)
	// Busy shows what is copied now; "" means that it is done.
	Busy func(what string)
}

// Workspace is a directory whose copy a session works on elsewhere.
type Workspace struct {
	Options

	store      *workspace.Store
	base       snapshot.Manifest // nil if unknown
	baseAt     workspace.Ref     // the checkpoint that the base is, once the directory was sent
	settings   []string          // paths in Protect of git's settings
	everything bool              // nothing is left out: the directory was empty
	left       string            // what was reported last as left out
}

// transferTimeout bounds the packing or unpacking of a workspace by a worker.
const transferTimeout = 10 * time.Minute

// acceptWithin is how long the fleet may take to accept that a workspace is brought back after a
// time limit.
const acceptWithin = 3 * time.Second

// ErrNotAccepted says that the fleet did not accept to bring the workspace back in time.
var ErrNotAccepted = errors.New("the fleet does not answer; session pull copies it back later")

// Send copies a directory into the session's sandbox. A sandbox in which the session has worked
// before keeps what it has.
func Send(ctx context.Context, o Options) (_ *Workspace, err error) {
	if outside := gitguard.FindOutside(ctx, o.Dir); outside != nil {
		o.Warn(outside.String())
	}
	w := &Workspace{Options: o}
	if o.Protect == nil {
		if err := w.protect(ctx); err != nil {
			return nil, fmt.Errorf("copy the workspace: %w", err)
		}
	}
	defer w.Busy("")
	if err := w.Fleet.CheckRights(ctx, natsio.UploadRights(w.Fleet.Name)); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	if w.store, err = workspace.Open(ctx, w.part().NC, w.Fleet.Name, w.Fleet.Bodies); err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	root, err := os.OpenRoot(w.Dir)
	if err != nil {
		return nil, fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for try := range uploads {
		err = w.upload(ctx, root, try > 1)
		if !isCode(err, protocol.CodeNotFound) && !errors.Is(err, workspace.ErrMissing) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// protect protects what a sandbox that uses the directory in place would.
func (w *Workspace) protect(ctx context.Context) error {
	places, err := gitguard.Protected(ctx, w.Dir)
	if err == nil {
		w.Protect, w.settings = places.Protect, places.Configs
	}
	return err
}

// uploads is the number of attempts while others upload the same directory, or after contents that
// the fleet had are missing.
const uploads = 5

// isCode reports whether an error is that of a call, with this code.
func isCode(err error, code protocol.Code) bool {
	failed, is := errors.AsType[*protocol.Error](err)
	return is && failed.Code == code
}

// part is the part of the fleet that has the session's sandbox.
func (w *Workspace) part() *fleet.Fleet { return w.Fleet.At(w.Pool) }

// upload sends what the fleet does not have of the directory, or the whole of it, and has a worker
// fill the sandbox.
func (w *Workspace) upload(ctx context.Context, root *os.Root, whole bool) error {
	ignore, err := w.ignoring(ctx, root)
	if err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	index := w.loadStamps()
	before := maps.Clone(index)
	upload, err := w.store.Upload(ctx, w.name(), root, index, ignore.Skip, w.shown("sending the workspace"), whole)
	if err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	if !maps.Equal(index, before) {
		w.storeStamps(index)
	}
	encoded, err := json.Marshal(upload)
	if err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	blob := wire.UploadBlob(w.Session, uuid.NewString())
	if err := w.put(ctx, blob, encoded); err != nil {
		return fmt.Errorf("copy the workspace: %w", err)
	}
	defer func() { // it ages out otherwise
		_ = natsio.DeleteObjects(context.WithoutCancel(ctx), w.part().JS, wire.BlobsBucket(w.Fleet.Name), blob)
	}()
	w.reportLeft("not copied", ignore)
	value, err := w.call(ctx, wire.WorkspaceImport{Upload: w.name(), Blob: blob}, protocol.Exclusive)
	if err != nil {
		return err
	}
	imported, is := value.(wire.WorkspaceImportResult)
	if !is || imported.Checkpoint == 0 { // the session has worked in it before, and keeps what it has
		w.base, err = w.loadBase(ctx, upload)
		return err
	}
	if w.base, err = upload.Tree.Manifest(ctx, w.store); err != nil {
		return fmt.Errorf("record the state of the workspace: %w", err)
	}
	w.baseAt = workspace.UploadRef(w.name(), imported.Checkpoint)
	return w.storeBase(ctx, w.baseAt)
}

func (w *Workspace) put(ctx context.Context, name string, content []byte) error {
	_, err := natsio.PutObject(ctx, w.part().JS, wire.BlobsBucket(w.Fleet.Name), name, bytes.NewReader(content))
	return err
}

// call has a worker do something with the whole workspace.
func (w *Workspace) call(ctx context.Context, payload protocol.Payload, access protocol.Access) (protocol.Value, error) {
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: w.Session, Tool: string(wire.KindOf(payload)), Pool: w.Pool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(w.Session)), Access: access}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(transferTimeout), Payload: payload,
		MinLevel: w.MinLevel,
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	accepted := func() {}
	if w.Hurry {
		timer := time.AfterFunc(acceptWithin, func() { end(ErrNotAccepted) })
		accepted = func() { timer.Stop() }
		defer timer.Stop()
	}
	result, err := w.Fleet.Dispatcher.CallWith(ctx, &call, calls.CallOptions{Observe: func(u loop.Update) {
		if accepted(); u.Waits != "" {
			w.Warn("copying the workspace waits for: " + u.Waits)
		}
	}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", wire.KindOf(payload), err)
	}
	if result.Error != nil {
		return nil, fmt.Errorf("%s: %w", wire.KindOf(payload), result.Error)
	}
	return result.Value, nil
}

// Fetch copies the sandbox's changes back into the directory, and also returns the directory's
// earlier state. What changed on both sides stays as it is here.
func (w *Workspace) Fetch(ctx context.Context) (changes snapshot.Changes, before snapshot.Manifest, err error) {
	before = w.base
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	defer w.Busy("")
	value, err := w.call(ctx, wire.WorkspaceExport{Upload: w.name()}, protocol.Shared)
	if err != nil {
		return changes, before, fmt.Errorf("copy the workspace back: %w", err)
	}
	exported, _ := value.(wire.WorkspaceExportResult)
	at := workspace.UploadRef(w.name(), exported.Checkpoint)
	if at == w.baseAt { // the session has changed nothing since
		return snapshot.Changes{Base: w.base}, before, nil
	}
	changes, err = w.take(ctx, at)
	if w.baseAt != (workspace.Ref{}) && err == nil {
		w.baseAt = at
	}
	return changes, before, err
}

// take applies a checkpoint to the directory, without what is left out of the copy.
func (w *Workspace) take(ctx context.Context, at workspace.Ref) (changes snapshot.Changes, err error) {
	root, err := os.OpenRoot(w.Dir)
	if err != nil {
		return changes, fmt.Errorf("copy the workspace back: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	theirs, err := w.store.Files(ctx, at)
	if err != nil {
		return changes, fmt.Errorf("copy the workspace back: %w", err)
	}
	options := &snapshot.Options{Protect: w.Protect}
	if !w.everything {
		ignore, err := w.ignoring(ctx, root)
		if err != nil {
			return changes, fmt.Errorf("copy the workspace back: %w", err)
		}
		// Which files a session gets is not for a session to decide.
		options.Skip, options.Protect = ignore.Skip, append(slices.Clip(w.Protect), snapshot.OwnIgnoreFile)
		defer func() { w.reportLeft("not brought back", ignore) }()
	}
	err = inplace.Change(ctx, w.Dir, "copying the workspace back", w.Session, w.Warn, func() (err error) {
		changes, err = snapshot.Sync(ctx, root, w.base, theirs, w.shown("copying the workspace back"), options)
		return err
	})
	if err != nil {
		return changes, fmt.Errorf("copy the workspace back: %w", err)
	}
	w.base = changes.Base
	w.nameSettings(ctx, root, theirs, &changes)
	return changes, w.storeBase(ctx, at)
}

// nameSettings names the settings of git that are others in the session than here, instead of their
// whole file.
func (w *Workspace) nameSettings(ctx context.Context, root *os.Root, theirs snapshot.Tree, changes *snapshot.Changes) {
	var named []string
	for _, name := range changes.Protected {
		keys := w.settingsOf(ctx, root, name, theirs[name])
		if len(keys) == 0 {
			keys = []string{name}
		}
		named = append(named, keys...)
	}
	changes.Protected = named
}

// settingsOf are the settings in a file that are others in the session; none if the file has no
// settings of git, or cannot be compared.
func (w *Workspace) settingsOf(ctx context.Context, root *os.Root, name string, theirs snapshot.Node) []string {
	if !slices.Contains(w.settings, name) || theirs.Type != protocol.TypeFile {
		return nil
	}
	content, err := snapshot.LoadBytes(ctx, w.store, theirs.Parts, gitguard.MaxSettings)
	if err != nil {
		return nil
	}
	keys, _ := gitguard.Differences(ctx, root, name, content) // without git the file is named
	return keys
}

// ReportSkipped reports what was left as it is.
func ReportSkipped(changes snapshot.Changes, warn func(string)) {
	if len(changes.Conflicts) > 0 {
		saved := ""
		if len(changes.Theirs) > 0 {
			saved = "; the version of the session is in " + strings.Join(changes.Theirs, ", ")
		}
		warn("changed here and in the session, and left unchanged here: " + strings.Join(changes.Conflicts, ", ") + saved)
	}
	if len(changes.Protected) > 0 {
		warn("protected, and left unchanged here (see --protect): " + strings.Join(changes.Protected, ", "))
	}
}
