package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Ref names a checkpoint in the journal of a lane, or of an upload; the zero Ref names none.
type Ref struct {
	Lane       wire.LaneHash `json:"lane"`
	Checkpoint uint64        `json:"checkpoint"`
}

// Upload is the change of a directory, the workspace of a session, since its last upload. Its
// contents are in bodies. The sender writes no journal; a worker does, see [Store.Receive].
type Upload struct {
	// After is the last checkpoint of the upload's journal, 0 when there is none.
	After uint64 `json:"after"`
	// Whole says that the delta is all that the directory has, not what changed since After.
	Whole bool           `json:"whole,omitempty"`
	Delta snapshot.Delta `json:"delta"`

	Tree snapshot.Tree `json:"-"` // all that the directory has
}

// uploads begins what stands for an upload in the place of a lane: no hash of a lane has a dash.
const uploads = "upload-"

// uploadsKept is how long the journal of an upload stays without writes, and how long its older
// checkpoints stay.
const uploadsKept = 30 * 24 * time.Hour

var uploadName = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// Owned refuses to write the upload of an owner; nil refuses none. A write is behind the checkpoint
// that says who the owner is.
type Owned func(owner judge.Owner) error

// own makes an upload that is to be written one of the principal of ctx, unless it has an owner.
func (w *Workspace) own(ctx context.Context, owned Owned) error {
	if w.owner != (judge.Owner{}) && owned != nil {
		return owned(w.owner)
	}
	w.owner = cmp.Or(w.owner, ownerIn(ctx))
	return nil
}

// IsUpload reports whether something can be the name of an upload.
func IsUpload(name string) bool { return uploadName.MatchString(name) }

// UploadRef names a checkpoint of an upload.
func UploadRef(name string, checkpoint uint64) Ref {
	return Ref{Lane: wire.LaneHash(uploads + name), Checkpoint: checkpoint}
}

// Upload stores the files of a directory that the fleet's upload of that name does not have. Paths
// for which skip is true are left out. Files that index knows are not read; it is brought up to
// date. bodies is the store, or forwards to it. whole stores all files: contents that the fleet had
// are missing. The error wraps [ErrMissing] if contents were removed while others were stored.
func (s *Store) Upload(
	ctx context.Context, name string, dir *os.Root, index snapshot.Index, skip func(string, bool) bool, bodies snapshot.Bodies, whole bool,
) (*Upload, error) {
	known, whole, err := s.loadUpload(ctx, name, whole)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	delta, err := snapshot.Save(ctx, dir, known.Tree(), index, bodies, &snapshot.Options{Skip: skip})
	if err == nil {
		err = delta.Outline(ctx, bodies) // sessions need it for longer than the journal is there
	}
	if err == nil {
		err = s.Keep(ctx, delta.Stored) // from now on the upload names them
	}
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	return &Upload{After: known.last, Whole: whole, Delta: *delta, Tree: known.tree.With(delta)}, nil
}

// loadUpload reads the journal of an upload. If it is wanted whole, or its contents are missing or
// damaged, the upload begins again behind its last checkpoint, with a base.
func (s *Store) loadUpload(ctx context.Context, name string, wanted bool) (known *Workspace, whole bool, err error) {
	lane := UploadRef(name, 0).Lane
	if known, err = s.load(ctx, lane); !wanted && !unreadable(err) {
		return known, false, err
	}
	last, err := s.lastReadable(ctx, lane)
	if err != nil || last == nil {
		return s.unbegun(lane), false, err
	}
	known = s.behind(lane, last)
	known.since = maxSince // for a base
	return known, true, nil
}

// unreadable reports whether what a journal needs is missing or damaged, and will be.
func unreadable(err error) bool {
	return errors.Is(err, ErrMissing) || errors.Is(err, ErrInvalid) || errors.Is(err, snapshot.ErrCorrupt)
}

// ReadUpload reads an upload as JSON. What memory that takes is bounded. The error
// wraps [ErrInvalid] when it is none, or larger than a workspace may be.
func ReadUpload(from io.Reader) (*Upload, error) {
	u, r := &Upload{}, snapshot.NewReader(from, snapshot.Limits{})
	err := r.Object(func(field string) (err error) {
		switch field {
		case "after":
			err = r.Value(&u.After)
		case "whole":
			err = r.Value(&u.Whole)
		case "delta":
			u.Delta, err = r.Delta()
		default:
			err = r.Skip()
		}
		return err
	})
	if _, is := errors.AsType[*snapshot.Error](err); is {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return u, err
}

// Check returns an error that wraps [ErrInvalid] unless a tree, with what the upload changes, can
// be a workspace, and has its contents in bodies.
func (u *Upload) Check(tree snapshot.Tree) error {
	err := tree.Validate(snapshot.Limits{})
	if err != nil || len(u.Delta.Inline) > 0 || slices.ContainsFunc(tree.Bodies(), isInline) {
		return errors.Join(ErrInvalid, err)
	}
	return nil
}

// Receive keeps an upload in its journal, so that its bodies stay, and returns what it has and
// where it is kept. The error wraps [ErrLost] when the journal has gone on, or away, since it was
// read, or when it has to be sent whole; [ErrMissing] when contents were removed while it waited;
// [ErrInvalid] when the upload cannot be a workspace; and the error of owned.
func (s *Store) Receive(ctx context.Context, name string, disk string, upload *Upload, owned Owned) (snapshot.Tree, Ref, error) {
	known, whole, err := s.loadUpload(ctx, name, upload.Whole)
	if err == nil {
		err = known.own(ctx, owned)
	}
	if err != nil {
		return nil, Ref{}, fmt.Errorf("upload: %w", err)
	}
	if known.last != upload.After || whole != upload.Whole {
		return nil, Ref{}, fmt.Errorf("upload: %w: there is checkpoint %d, not %d", ErrLost, known.last, upload.After)
	}
	tree := known.tree.With(&upload.Delta)
	if err := upload.Check(tree); err != nil {
		return nil, Ref{}, fmt.Errorf("upload: %w", err)
	}
	known.disk = disk
	if err = s.renew(ctx, upload.Delta.Set.Bodies()); err == nil { // another process has stored them, some time ago
		err = known.follow(ctx, &upload.Delta)
	}
	if err != nil {
		return nil, Ref{}, fmt.Errorf("upload: %w", err)
	}
	return tree, UploadRef(name, known.last), nil
}

// Bring stores what a session made of an upload in its journal, and returns where. The error may
// wrap that of owned.
func (s *Store) Bring(ctx context.Context, name string, disk string, files snapshot.Tree, owned Owned) (Ref, error) {
	for {
		known, _, err := s.loadUpload(ctx, name, false)
		if err == nil {
			err = known.own(ctx, owned)
		}
		if err == nil {
			files.Reuse(known.Tree())
			err = s.outline(ctx, files)
		}
		if err == nil {
			known.disk = disk
			err = known.follow(ctx, known.tree.To(files))
		}
		switch {
		case err == nil:
			return UploadRef(name, known.last), nil
		case !errors.Is(err, ErrLost): // by another upload of the directory
			return Ref{}, fmt.Errorf("upload: %w", err)
		}
	}
}

// Last returns the last state of an upload; nothing when there is none.
func (s *Store) Last(ctx context.Context, name string) (snapshot.Tree, error) {
	known, err := s.load(ctx, UploadRef(name, 0).Lane)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	return known.Tree(), nil
}

// follow commits what changed, if anything. A journal begins even with nothing.
func (w *Workspace) follow(ctx context.Context, delta *snapshot.Delta) error {
	if delta.Empty() && w.last > 0 && w.since < maxSince {
		return nil
	}
	delta.Stored = delta.Set.Bodies()
	return w.Commit(ctx, delta)
}

// Files returns the files of a workspace after a checkpoint. The error wraps [ErrNone] when it is
// not there, or not any more.
func (s *Store) Files(ctx context.Context, at Ref) (snapshot.Tree, error) {
	m, err := s.next(ctx, at.Lane, max(at.Checkpoint, 1))
	if err != nil {
		return nil, err
	}
	if m == nil || m.seq != at.Checkpoint {
		return nil, fmt.Errorf("checkpoint %d: %w", at.Checkpoint, ErrNone)
	}
	tree, _, _, err := s.fold(ctx, at.Lane, m)
	if err != nil || strings.HasPrefix(string(at.Lane), uploads) {
		return tree.Tree, err
	}
	return FilesOf(tree.Tree), nil
}

// FilesOf are the files of a workspace, by their paths in it, in a tree that has more.
func FilesOf(tree snapshot.Tree) snapshot.Tree {
	files := snapshot.Tree{}
	for name, node := range tree {
		if below, is := strings.CutPrefix(name, Dir+"/"); is {
			files[below] = node
		}
	}
	return files
}

// sweepUploads removes what is old of the journals of uploads.
func (s *Store) sweepUploads(ctx context.Context, since time.Time) error {
	names, err := s.journals(ctx, uploads)
	for _, name := range names {
		if err := s.sweepUpload(ctx, UploadRef(name, 0).Lane, since); err != nil {
			return err
		}
	}
	return err
}

// sweepUpload removes checkpoints after which there is an old base, and restarts a journal without
// writes since then: a concurrent reader cannot continue with what is removed.
func (s *Store) sweepUpload(ctx context.Context, lane wire.LaneHash, since time.Time) error {
	last, err := s.last(ctx, lane)
	if err != nil || last == nil {
		return err
	}
	known, err := s.load(ctx, lane)
	switch old := last.at.Before(since); {
	case old && (err != nil || len(known.Tree()) == 0):
		return s.purge(ctx, lane, last.seq+1)
	case err != nil: // the next upload begins it again
		return nil //nolint:nilerr // others are to be swept
	case old:
		known.since = maxSince // for a base
		if err := known.Commit(ctx, known.tree.To(snapshot.Tree{})); err != nil {
			return err
		}
	default:
	}
	base, err := s.next(ctx, lane, max(known.from, 1))
	if err != nil || base == nil || known.from == 0 || base.at.After(since) && known.last == last.seq {
		return err
	}
	return s.purge(ctx, lane, known.from)
}
