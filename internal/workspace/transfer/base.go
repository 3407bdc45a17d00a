package transfer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
)

// name is the name of the directory's uploads. It depends on the host: another one may have another
// directory there.
func (w *Workspace) name() string {
	host, _ := os.Hostname() // only a name
	sum := sha256.Sum256([]byte(host + "\x00" + w.Dir))
	return hex.EncodeToString(sum[:8])
}

// baseName is the name of the object that says which checkpoint the base is.
func (w *Workspace) baseName() string {
	return wire.UploadBase(w.Session, w.name())
}

// storeBase stores which checkpoint the base is, so that a later pull knows which side changed
// what.
func (w *Workspace) storeBase(ctx context.Context, base workspace.Ref) error {
	encoded, err := json.Marshal(base)
	if err == nil {
		err = w.put(ctx, w.baseName(), encoded)
	}
	if err != nil {
		return fmt.Errorf("record the state of the workspace: %w", err)
	}
	return nil
}

// loadBase loads the base; nil if the fleet has none. Then every difference counts as changed on
// both sides, so that nothing is lost. sent is the upload of the directory, which mostly is the
// base; nil if there is none.
func (w *Workspace) loadBase(ctx context.Context, sent *workspace.Upload) (snapshot.Manifest, error) {
	var at workspace.Ref
	err := w.get(ctx, w.baseName(), &at)
	var tree snapshot.Tree
	switch {
	case err != nil:
	case sent != nil && sent.Delta.Empty() && at == workspace.UploadRef(w.name(), sent.After):
		tree, w.baseAt = sent.Tree, at
	default:
		if tree, err = w.store.Files(ctx, at); err == nil && sent != nil {
			w.baseAt = at
		}
	}
	var base snapshot.Manifest
	if err == nil {
		base, err = tree.Manifest(ctx, w.store)
	}
	if errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, workspace.ErrNone) || errors.Is(err, workspace.ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the workspace's last state: %w", err)
	}
	return base, nil
}

// stampsKept is how long the stamps of a directory stay that is not copied.
const stampsKept = 30 * 24 * time.Hour

// loadStamps returns what the files of the directory were when it was copied last; without stamps
// that can be read every file is read.
func (w *Workspace) loadStamps() snapshot.Index {
	index := snapshot.Index{}
	if w.Stamps == "" {
		return index
	}
	file, err := os.Open(w.stampsFile())
	if err != nil {
		return index
	}
	defer func() { _ = file.Close() }() // it was only read
	if gob.NewDecoder(bufio.NewReader(file)).Decode(&index) != nil {
		return snapshot.Index{}
	}
	return index
}

func (w *Workspace) stampsFile() string { return filepath.Join(w.Stamps, w.name()) }

// storeStamps keeps the stamps, and removes those of directories that were not copied for long.
// Without them the next copy takes longer, so errors do not matter.
func (w *Workspace) storeStamps(index snapshot.Index) {
	if w.Stamps == "" || os.MkdirAll(w.Stamps, 0o700) != nil {
		return
	}
	var content bytes.Buffer
	if gob.NewEncoder(&content).Encode(index) == nil {
		_ = regular.Replace(w.stampsFile(), content.Bytes())
	}
	entries, _ := os.ReadDir(w.Stamps)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > stampsKept {
			_ = os.Remove(filepath.Join(w.Stamps, entry.Name()))
		}
	}
}

// get decodes an object.
func (w *Workspace) get(ctx context.Context, name string, into any) (err error) {
	object, err := natsio.GetObject(ctx, w.part().JS, wire.BlobsBucket(w.Fleet.Name), name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	return json.NewDecoder(object).Decode(into)
}

// ignoring returns which files of the directory are left out.
func (w *Workspace) ignoring(ctx context.Context, root *os.Root) (*snapshot.Ignore, error) {
	return Ignoring(ctx, root, w.IncludeIgnored)
}

// Ignoring returns which files of a directory are left out of all copies to a fleet.
func Ignoring(ctx context.Context, root *os.Root, includeIgnored bool) (*snapshot.Ignore, error) {
	tracked, err := gitguard.Tracked(ctx, root.Name())
	if err != nil {
		return nil, err
	}
	return snapshot.NewIgnore(root, tracked, includeIgnored), nil
}

// reportLeft reports what is left out, once.
func (w *Workspace) reportLeft(how string, ignore *snapshot.Ignore) {
	if left := ignore.LeftOut(); left != "" && left != w.left {
		w.left = left
		w.Warn(LeftOut(how, left))
	}
}

// LeftOut says in a sentence what [snapshot.Ignore.LeftOut] names.
func LeftOut(how, left string) string {
	return fmt.Sprintf("%s: %s; %s and --include-ignored change this", how, left, snapshot.OwnIgnoreFile)
}

// progressEvery is the time between updates of the size that is shown.
const progressEvery = 200 * time.Millisecond

// progress shows the size of the contents that it stores and loads.
type progress struct {
	*workspace.Store

	what string
	show func(string)

	mu    sync.Mutex
	bytes int
	next  time.Time
}

// shown returns the store, which shows its progress.
func (w *Workspace) shown(what string) *progress {
	return &progress{Store: w.store, what: what, show: w.Busy}
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
