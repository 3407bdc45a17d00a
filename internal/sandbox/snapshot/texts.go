package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Merge is [Sync] for a base whose contents are known. Of a file that changed on both sides, modes
// and texts are merged where the changes are apart: no line of one is, or is next to, a line of
// the other. Such a file is in Written and in Merged; every other one is a conflict, as in Sync.
func Merge(ctx context.Context, root *os.Root, base, tree Tree, bodies Bodies, options *Options) (Changes, error) {
	t := &texts{
		root: root, base: base, tree: maps.Clone(tree),
		bodies: &overlay{Bodies: bodies, own: map[string][]byte{}}, opts: options.withDefaults(),
	}
	was, err := t.merge(ctx)
	if err != nil {
		return Changes{}, fmt.Errorf("merge %s: %w", root.Name(), err)
	}
	changes, err := Sync(ctx, root, was, t.tree, t.bodies, options)
	changes.Merged = slices.DeleteFunc(t.merged, func(name string) bool { return !slices.Contains(changes.Written, name) })
	return changes, err
}

// texts prepares a [Merge]: what is merged becomes a change of the tree alone.
type texts struct {
	root   *os.Root
	base   Tree
	tree   Tree
	bodies *overlay
	opts   Options
	merged []string
}

// merge returns the base for [Sync].
func (t *texts) merge(ctx context.Context) (was Manifest, err error) {
	if was, err = t.base.Manifest(ctx, t.bodies); err != nil {
		return nil, err
	}
	theirs, err := t.tree.Manifest(ctx, t.bodies)
	if err != nil {
		return nil, err
	}
	local := &local{root: t.root, buf: make([]byte, copyBuffer), locked: map[string]fs.FileMode{}}
	for _, name := range slices.Sorted(maps.Keys(withoutSkipped(theirs, t.opts.Skip))) {
		if theirs[name] == was[name] || theirs[name].Type != protocol.TypeFile || was[name].Type != protocol.TypeFile {
			continue
		}
		mine, err := local.at(ctx, name)
		if err == nil && mine.Type == protocol.TypeFile && mine != was[name] && mine != theirs[name] {
			err = t.file(ctx, name, was, mine, theirs[name])
		}
		if err != nil {
			return nil, err
		}
	}
	return was, local.relock(nil)
}

// maxText is the maximum size of a text that is merged, in bytes.
const maxText = 4 << 20

// file merges a file that both sides have changed, if that is possible.
func (t *texts) file(ctx context.Context, name string, was Manifest, mine, theirs Entry) error {
	base, node := was[name], t.tree[name]
	var ok bool
	if node.Mode, ok = either(base.Mode, mine.Mode, theirs.Mode); !ok {
		return nil
	}
	sum, ok := either(base.SHA256, mine.SHA256, theirs.SHA256)
	if !ok || sum == mine.SHA256 {
		content, err := t.text(ctx, name, mine.Size, ok)
		if content == nil || err != nil {
			return err
		}
		if node.Parts, _, err = StoreBytes(ctx, t.bodies, content); err != nil {
			return err
		}
		node.Size = int64(len(content))
	}
	node.ModTime = time.Now().UnixNano()
	t.tree[name], was[name] = node, mine
	t.merged = append(t.merged, name)
	return nil
}

// text is what the file has when both changes are made, or its present content as it is; nil when
// the changes conflict, or it is no text.
func (t *texts) text(ctx context.Context, name string, size int64, asItIs bool) ([]byte, error) {
	if size > maxText || t.base[name].Size > maxText || t.tree[name].Size > maxText {
		return nil, nil
	}
	mine, err := regular.ReadIn(t.root, name, maxText)
	if err != nil || asItIs {
		return mine, err
	}
	base, err := LoadBytes(ctx, t.bodies, t.base[name].Parts, maxText)
	if err != nil {
		return nil, err
	}
	theirs, err := LoadBytes(ctx, t.bodies, t.tree[name].Parts, maxText)
	if err != nil {
		return nil, err
	}
	return mergeText(base, mine, theirs)
}

// Fate is what [Merge] makes of a path that one side has changed.
type Fate string

// The fates.
const (
	FateNothing  Fate = ""         // both sides are the same
	FateTheirs   Fate = "theirs"   // only the other side has changed it
	FateMerged   Fate = "merged"   // both changes are made
	FateConflict Fate = "conflict" // it stays as it is
)

// FateOf says what [Merge] would make of a path, as far as its content is stored.
func FateOf(ctx context.Context, bodies Bodies, was, mine, theirs Node) (Fate, error) {
	same := func(a, b Node) bool { return a.Mode == b.Mode && a.sameContent(b) }
	switch {
	case same(mine, theirs), same(was, theirs):
		return FateNothing, nil
	case same(mine, was):
		return FateTheirs, nil
	}
	merges, err := merges(ctx, bodies, was, mine, theirs)
	if merges {
		return FateMerged, err
	}
	return FateConflict, err
}

// merges reports whether both changes of a file are made.
func merges(ctx context.Context, bodies Bodies, was, mine, theirs Node) (bool, error) {
	var contents [3][]byte
	for i, node := range []Node{was, mine, theirs} {
		if node.Type != protocol.TypeFile || node.Size > maxText {
			return false, nil
		}
		var err error
		if contents[i], err = LoadBytes(ctx, bodies, node.Parts, maxText); err != nil {
			return false, err
		}
	}
	if _, same := either(was.Mode, mine.Mode, theirs.Mode); !same {
		return false, nil
	}
	merged, err := mergeText(contents[0], contents[1], contents[2])
	return merged != nil, err
}

// mergeText makes two changes of a text; nil when they conflict, or one of the three is no text.
func mergeText(base, mine, theirs []byte) ([]byte, error) {
	for _, content := range [][]byte{base, mine, theirs} {
		if bytes.IndexByte(content, 0) >= 0 {
			return nil, nil
		}
	}
	ours, others := udiff.Lines(string(base), string(mine)), udiff.Lines(string(base), string(theirs))
	for _, a := range ours {
		for _, b := range others {
			if a != b && a.Start <= b.End && b.Start <= a.End {
				return nil, nil
			}
		}
	}
	edits, ok := udiff.Merge(ours, others)
	if !ok {
		return nil, nil
	}
	merged, err := udiff.Apply(string(base), edits)
	return []byte(merged), err
}

// either is the value that one of two sides has changed, or both in the same way.
func either[V comparable](base, mine, theirs V) (V, bool) {
	switch {
	case mine == base || mine == theirs:
		return theirs, true
	case theirs == base:
		return mine, true
	default:
		return base, false
	}
}

// overlay is bodies with some that are in memory alone.
type overlay struct {
	Bodies

	mu  sync.Mutex
	own map[string][]byte
}

// Put implements [Bodies].
func (o *overlay) Put(_ context.Context, name string, body []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.own[name] = bytes.Clone(body)
	return nil
}

// Get implements [Bodies].
func (o *overlay) Get(ctx context.Context, name string) ([]byte, error) {
	o.mu.Lock()
	body, is := o.own[name]
	o.mu.Unlock()
	if is {
		return body, nil
	}
	return o.Bodies.Get(ctx, name)
}
