package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/workspace"
)

// copyFlags say what of a directory is copied to a fleet and back.
type copyFlags struct {
	IncludeIgnored bool `help:"With --nats, copy also files that .gitignore files exclude. Files that look like secrets (.env, *.pem, id_rsa, ...) are copied only if .toolfleetignore includes them, such as !.env."`

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

// progressEvery is how often the size of what travelled is shown.
const progressEvery = 200 * time.Millisecond

// progress is bodies whose size is shown as they travel.
type progress struct {
	*workspace.Store

	what string
	show func(string)

	mu    sync.Mutex
	bytes int
	next  time.Time
}

// shown is the store, and shows how much of it travels.
func (w *remoteWorkspace) shown(what string) *progress {
	return &progress{Store: w.store, what: what, show: w.busy}
}

// Put implements [snapshot.Bodies].
func (p *progress) Put(ctx context.Context, name string, body []byte) error {
	p.add(len(body))
	return p.Store.Put(ctx, name, body)
}

// Get implements [snapshot.Bodies].
func (p *progress) Get(ctx context.Context, name string) ([]byte, error) {
	body, err := p.Store.Get(ctx, name)
	p.add(len(body))
	return body, err
}

func (p *progress) add(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += size
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(progressEvery)
		p.show(fmt.Sprintf("%s: %.1f MB", p.what, float64(p.bytes)/1e6))
	}
}
