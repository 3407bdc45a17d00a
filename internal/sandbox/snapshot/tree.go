package snapshot

import (
	"cmp"
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MaxPart is the most bytes that one [Part] has, and what a body is filled up to: small files
// share bodies, and large ones have several.
const MaxPart = 4 << 20

// MaxInline is the most bytes of contents that a [Delta] carries itself, before compression.
const MaxInline = 64 << 10

// Tree is what a directory contained when it was saved: slash-separated paths relative to it,
// the directory itself excepted. Contents are in bodies.
type Tree map[string]Node

// Node is what is at one path of a [Tree].
type Node struct {
	// Type is [protocol.TypeFile], [protocol.TypeDir] or [protocol.TypeSymlink].
	Type protocol.FileType `json:"type"`
	// Mode is the permission bits; 0 for a symbolic link.
	Mode fs.FileMode `json:"mode,omitempty"`
	// Size is in bytes, and ModTime in nanoseconds since 1970; both 0 when it is not a file.
	Size    int64 `json:"size,omitempty"`
	ModTime int64 `json:"mtime,omitempty"`
	// Target is what a symbolic link says, as it stands there.
	Target string `json:"target,omitempty"`
	// Parts are the contents of a file, one after the other.
	Parts []Part `json:"parts,omitempty"`
}

// Part is a run of the bytes of a file.
type Part struct {
	Size int64 `json:"size"`
	// Sum is the SHA-256 of the bytes, in base64; "" when all of them are zero and nowhere kept.
	Sum string `json:"sum,omitempty"`
	// Body is the name of the body that has the bytes, and At where they begin in it; "" is the
	// body that the [Delta] carries.
	Body string `json:"body,omitempty"`
	At   int64  `json:"at,omitempty"`
}

// Same reports whether two nodes say the same, wherever their content is kept.
func (n Node) Same(other Node) bool {
	return n.Mode == other.Mode && n.ModTime == other.ModTime && n.sameContent(other)
}

// sameContent reports whether two nodes differ in mode and time at most.
func (n Node) sameContent(other Node) bool {
	return n.Type == other.Type && n.Target == other.Target && n.Size == other.Size && n.content() == other.content()
}

// content stands for the parts of a file.
func (n Node) content() string {
	if len(n.Parts) == 1 {
		return n.Parts[0].Sum
	}
	sums := make([]string, 0, len(n.Parts))
	for _, p := range n.Parts {
		sums = append(sums, strconv.FormatInt(p.Size, 10)+p.Sum)
	}
	return strings.Join(sums, " ")
}

// Delta is what changed from one tree to the next.
type Delta struct {
	// Set are paths that are new or have changed, Removed those that are gone, with all that was
	// below them.
	Set     Tree  `json:"set,omitempty"`
	Removed Names `json:"removed,omitempty"`
	// Inline is the body of parts that name none; at most [MaxInline] bytes before compression.
	Inline []byte `json:"inline,omitempty"`
	// Stored are the bodies that were stored for it.
	Stored []string `json:"-"`
	// Stats count the files found, and those that were read.
	Stats SaveStats `json:"-"`
}

// SaveStats count what one [Save] did, for tests.
type SaveStats struct {
	Read int   // files that were read, because they may have changed
	Kept int64 // bytes of contents that were new, before compression
}

// Empty reports whether nothing changed.
func (d *Delta) Empty() bool { return len(d.Set) == 0 && len(d.Removed) == 0 }

// Apply makes the changes in a tree. body is the name under which Inline can be had from now on.
func (t Tree) Apply(d *Delta, body string) {
	below := map[string]bool{}
	for _, name := range d.Removed {
		if t[name].Type == protocol.TypeDir {
			below[name] = true
		}
		delete(t, name)
	}
	if len(below) > 0 {
		maps.DeleteFunc(t, func(path string, _ Node) bool { return isBelow(path, below) })
	}
	d.Set.nameInline(body)
	maps.Copy(t, d.Set)
}

// nameInline has the parts that name no body name this one.
func (t Tree) nameInline(body string) {
	t.eachPart(func(p *Part) {
		if p.Body == "" && p.Sum != "" {
			p.Body = body
		}
	})
}

// Rename has the parts name bodies otherwise, where names has another name for theirs.
func (t Tree) Rename(names map[string]string) {
	t.eachPart(func(p *Part) { p.Body = cmp.Or(names[p.Body], p.Body) })
}

// Reuse has the parts name bodies that known needs already, where these have the same content.
func (t Tree) Reuse(known Tree) {
	parts := map[string]Part{}
	known.eachPart(func(p *Part) { parts[p.Sum] = *p })
	t.eachPart(func(p *Part) {
		if same, is := parts[p.Sum]; is && p.Sum != "" && same.Size == p.Size {
			*p = same
		}
	})
}

func (t Tree) eachPart(do func(*Part)) {
	for _, node := range t {
		for i := range node.Parts {
			do(&node.Parts[i])
		}
	}
}

// With returns the tree that a delta makes of t, which stays as it is. The delta must carry
// nothing.
func (t Tree) With(d *Delta) Tree {
	next := maps.Clone(t)
	next.Apply(d, "")
	return next
}

// To returns what changes t into another tree, whose bodies are kept.
func (t Tree) To(next Tree) *Delta {
	d, gone := &Delta{Set: Tree{}}, map[string]bool{}
	for name, before := range t {
		if next[name].Type != before.Type {
			gone[name] = true
		}
	}
	for name, node := range next {
		if !t[name].Same(node) {
			d.Set[name] = node
		}
	}
	d.Removed = topmost(gone)
	return d
}

// topmost are the paths that are below no other of them, sorted.
func topmost(paths map[string]bool) (names []string) {
	for name := range paths {
		if !isBelow(name, paths) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// isBelow reports whether a path is in one of the directories, or in one that is.
func isBelow(name string, dirs map[string]bool) bool {
	for name = parent(name); name != "."; name = parent(name) {
		if dirs[name] {
			return true
		}
	}
	return false
}

// Bodies are the names of all bodies that a tree needs, sorted.
func (t Tree) Bodies() []string {
	names := map[string]bool{}
	t.eachPart(func(p *Part) {
		if p.Sum != "" {
			names[p.Body] = true
		}
	})
	return slices.Sorted(maps.Keys(names))
}

// Validate reports what no honest [Save] writes: paths and links that are not possible, types and
// modes that are not known, parts that do not make up their file, and more than limits allow. The
// error is an [*Error].
func (t Tree) Validate(limits Limits) error {
	b := budget{limits: limits.withDefaults()}
	for name, node := range t {
		if err := b.node(name, node); err != nil {
			return err
		}
		if above := parent(name); above != "." && t[above].Type != protocol.TypeDir {
			return unsafef(name, "%q, which it is in, is no directory", above)
		}
	}
	return nil
}

func (n Node) validate(name string) error {
	if n.Mode != n.Mode.Perm() {
		return unsafef(name, "mode %v has more than permissions", n.Mode)
	}
	switch n.Type {
	case protocol.TypeDir:
		return nil
	case protocol.TypeSymlink:
		return checkTarget(name, n.Target)
	case protocol.TypeFile:
	default:
		return unsafef(name, "type %q", n.Type)
	}
	if len(n.Parts) > MaxParts {
		return limitf(name, "it has more than %d parts", MaxParts)
	}
	if n.Size > MaxSize {
		return limitf(name, "it has more than %d bytes, with its holes", int64(MaxSize))
	}
	var size int64
	for i, p := range n.Parts {
		hole := p.Sum == ""
		if p.Size <= 0 || p.At < 0 || len(p.Sum) > maxSum || len(p.Body) > maxSum ||
			hole && i > 0 && n.Parts[i-1].Sum == "" || !hole && (p.Size > MaxPart || p.Body == "") {
			return unsafef(name, "a part of %d bytes at %d of body %.100q", p.Size, p.At, p.Body)
		}
		if size += p.Size; size < 0 || size > n.Size {
			break
		}
	}
	if size != n.Size {
		return unsafef(name, "parts of other than its %d bytes", n.Size)
	}
	return nil
}

// maxSum is more than a sum, or the name of a body, has.
const maxSum = 64

// Bodies keep the contents of trees. They are used from several goroutines at once.
type Bodies interface {
	// Put stores a body. One of that name has the same content, so it need not be stored again.
	Put(ctx context.Context, name string, body []byte) error
	// Get returns a body.
	Get(ctx context.Context, name string) ([]byte, error)
}

// Keeper are [Bodies] that remove a body after a while if nothing names it.
type Keeper interface {
	Bodies
	// Keep has bodies that were put count as put now. It is an error if one is not there any more.
	Keep(ctx context.Context, names []string) error
}

// Directory is a directory of this machine as [Bodies], of trees that were saved there.
type Directory string

// Put implements [Bodies].
func (d Directory) Put(_ context.Context, name string, body []byte) error {
	return os.WriteFile(filepath.Join(string(d), name), body, 0o600)
}

// Get implements [Bodies].
func (d Directory) Get(_ context.Context, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}
