package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// copyFlags say what of a directory is copied to a fleet and back.
type copyFlags struct {
	IncludeIgnored bool `help:"With --nats, copy also what .gitignore files exclude. Files that look like secrets (.env, *.pem, id_rsa, ...) are copied only when .toolfleetignore says so, as in !.env."`

	everything bool // nothing is left out
}

// ignoring says what of the directory is left out.
func (w *remoteWorkspace) ignoring(ctx context.Context, root *os.Root) *snapshot.Ignore {
	return snapshot.NewIgnore(root, gitguard.Tracked(ctx, w.dir), w.IncludeIgnored)
}

// tellLeft tells what was left out, unless that was told.
func (w *remoteWorkspace) tellLeft(how string, ignore *snapshot.Ignore) {
	if left := ignore.LeftOut(); left != "" && left != w.left {
		w.left = left
		w.warn(fmt.Sprintf("%s: %s; %s and --include-ignored say what is", how, left, snapshot.OwnIgnoreFile))
	}
}

// take brings what an archive changes into the directory, but for what is left out of its copy.
func (w *remoteWorkspace) take(ctx context.Context, archive io.Reader) (snapshot.Changes, error) {
	options := &snapshot.Options{Protect: w.protect}
	if w.everything {
		return syncInto(ctx, w.dir, w.base, archive, options)
	}
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return snapshot.Changes{}, fmt.Errorf("bring the workspace back: %w", err)
	}
	defer root.Close()
	ignore := w.ignoring(ctx, root)
	// What the person keeps from a session is not for a session to say.
	options.Skip, options.Protect = ignore.Skip, append(slices.Clip(w.protect), snapshot.OwnIgnoreFile)
	changes, err := syncInto(ctx, w.dir, w.base, archive, options)
	w.tellLeft("not brought back", ignore)
	return changes, err
}

// progressEvery is how often the size of what was read is shown.
const progressEvery = 200 * time.Millisecond

// progress is an archive whose size is shown as it is read.
type progress struct {
	io.Reader

	what  string
	show  func(string)
	bytes int64
	next  time.Time
}

// shown shows how much of an archive is read.
func (w *remoteWorkspace) shown(what string, archive io.Reader) io.Reader {
	return &progress{Reader: archive, what: what, show: w.busy}
}

// Read implements [io.Reader].
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.bytes += int64(n)
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(progressEvery)
		p.show(fmt.Sprintf("%s: %.1f MB", p.what, float64(p.bytes)/1e6))
	}
	return n, err
}
