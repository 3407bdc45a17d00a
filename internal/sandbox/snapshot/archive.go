package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// WriteTar writes a tree as a tar archive, a part of a content at a time. After an error the
// archive has no end.
func (t Tree) WriteTar(ctx context.Context, to io.Writer, bodies Bodies) error {
	archive := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		node := t[name]
		h := &tar.Header{Name: name, Mode: int64(node.Mode), Typeflag: tar.TypeReg, Size: node.Size, ModTime: time.Unix(0, node.ModTime).Truncate(time.Second)}
		switch node.Type {
		case protocol.TypeDir:
			h.Typeflag, h.Name, h.ModTime = tar.TypeDir, name+"/", time.Time{}
		case protocol.TypeSymlink:
			h.Typeflag, h.Linkname, h.Mode, h.ModTime = tar.TypeSymlink, node.Target, 0o777, time.Time{}
		default:
		}
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if _, err := io.Copy(archive, node.Open(ctx, bodies)); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return archive.Close()
}

// Open reads the content of a file.
func (n Node) Open(ctx context.Context, bodies Bodies) *io.SectionReader {
	return io.NewSectionReader(&reader{ctx: ctx, bodies: bodies, parts: n.Parts}, 0, n.Size)
}

// reader reads the content of a file at any offset. It keeps the part that it read last.
type reader struct {
	ctx    context.Context //nolint:containedctx // of one read
	bodies Bodies
	parts  []Part
	last   Part
	have   []byte // the content of last
}

// ReadAt implements [io.ReaderAt]; it is not for concurrent use.
func (r *reader) ReadAt(p []byte, off int64) (n int, err error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	var begin int64
	for _, part := range r.parts {
		at := off + int64(n) - begin
		if begin += part.Size; at >= part.Size {
			continue
		}
		into := p[n:min(int64(len(p)), int64(n)+part.Size-at)]
		content, err := r.content(part)
		if err != nil {
			return n, err
		}
		if content == nil {
			clear(into)
		} else {
			copy(into, content[at:])
		}
		if n += len(into); n == len(p) {
			return n, nil
		}
	}
	return n, io.EOF
}

// content is that of a part; nil is a hole.
func (r *reader) content(p Part) ([]byte, error) {
	if p.Sum == "" {
		return nil, nil
	}
	if r.last == p {
		return r.have, nil
	}
	raw, err := fetch(r.ctx, r.bodies, p.Body)
	if err != nil {
		return nil, err
	}
	content, err := p.of(raw)
	if err == nil {
		r.last, r.have = p, content
	}
	return content, err
}

// ReadTar stores the contents of a tar archive, and returns what it has. It refuses what could
// reach outside of the directory that gets the files, or does not mean the same on every system:
// paths that are absolute or have "..", links that lead out, devices, modes with setuid, setgid or
// sticky, names that differ in case only. The error is an [*Error] if it is about the archive.
func ReadTar(ctx context.Context, from io.Reader, bodies Bodies, limits Limits) (*Delta, error) {
	limits = limits.withDefaults()
	r := &tarReader{
		from:   &ending{ctx: ctx, from: from, left: limits.MaxBytes + int64(limits.MaxEntries)*maxHead},
		bundle: newBundle(ctx, bodies), budget: budget{limits: limits},
		tree: Tree{}, folded: map[string]string{},
	}
	delta := &Delta{Set: r.tree}
	err := r.read(ctx)
	return delta, errors.Join(err, r.bundle.finish(delta, err != nil))
}

type tarReader struct {
	from   *ending
	bundle *bundle
	budget budget
	tree   Tree
	folded map[string]string // names, without their case
}

// maxHead is how many bytes of an archive an entry may take in addition to its content, on average.
const maxHead = 16 << 10

// ending knows with how many zeros ends what was read. It bounds that, also of what is no entry: an
// archive may have any number of headers, and contents that nothing gets.
type ending struct {
	ctx   context.Context //nolint:containedctx // of one read
	from  io.Reader
	left  int64
	zeros int
}

// Read implements [io.Reader].
func (e *ending) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := e.from.Read(p)
	if e.left -= int64(n); e.left < 0 {
		return 0, limitf("", "it is longer than its files can be")
	}
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		e.zeros = n - rest
	} else {
		e.zeros += n
	}
	return n, err
}

// tarBlock is the unit of a tar archive, in bytes: it ends with zeros of at least one.
const tarBlock = 512

func (r *tarReader) read(ctx context.Context) error {
	archive := tar.NewReader(r.from)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF) && r.from.zeros < tarBlock:
			return corruptf("the archive ends early")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return r.failed(err)
		}
		if err := r.entry(archive, h); err != nil {
			return err
		}
	}
}

// failed is an error of the archive, or of what it is read from.
func (r *tarReader) failed(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) {
		return corruptf("no tar archive: %v", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", corruptf("the archive ends early"), err)
	}
	return err
}

// entry adds what an entry says.
func (r *tarReader) entry(content io.Reader, h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	for strings.HasPrefix(name, "./") {
		name = strings.TrimLeft(name[2:], "/")
	}
	if name == "." || name == "" && h.Name != "" && !strings.HasPrefix(h.Name, "/") { // the directory itself
		return nil
	}
	if err := checkName(name); err != nil {
		return err
	}
	if h.Mode&0o7000 != 0 {
		return unsafef(name, "mode %o: setuid, setgid and sticky are not allowed", h.Mode&0o7777)
	}
	node := Node{Mode: h.FileInfo().Mode().Perm()}
	switch h.Typeflag {
	case tar.TypeReg:
		node.Type = protocol.TypeFile
	case tar.TypeDir:
		node.Type = protocol.TypeDir
	case tar.TypeSymlink:
		node = Node{Type: protocol.TypeSymlink, Target: h.Linkname}
		if err := checkInside(name, h.Linkname); err != nil {
			return err
		}
	case tar.TypeLink:
		linked := r.tree[path.Clean(h.Linkname)]
		if linked.Type != protocol.TypeFile {
			return unsafef(name, "a hard link to %.200q, which is no file of the archive before it", h.Linkname)
		}
		node = linked
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return unsafef(name, "type %q: allowed are files, directories and links", h.Typeflag)
	}
	if err := r.admit(name, node.Type); err != nil {
		return err
	}
	if err := r.budget.entry(name, node.Target); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeReg {
		if err := r.content(name, content, h.Size, &node); err != nil {
			return err
		}
	} else if err := r.take(name, usageOfFile(node)); err != nil {
		return err
	}
	r.tree[name] = node
	return nil
}

// admit refuses a path that the archive has already, also in another case, or below what is no
// directory. Directories that it is in are made.
func (r *tarReader) admit(name string, kind protocol.FileType) error {
	for above := parent(name); above != "."; above = parent(above) {
		switch have, is := r.tree[above]; {
		case is && have.Type != protocol.TypeDir:
			return unsafef(name, "%q, which it is in, is no directory", above)
		case !is:
			if err := r.fold(above); err != nil {
				return err
			}
			if err := r.budget.entry(above, ""); err != nil {
				return err
			}
			r.tree[above] = Node{Type: protocol.TypeDir, Mode: 0o755}
		}
	}
	have, is := r.tree[name]
	switch {
	case !is:
		return r.fold(name)
	case have.Type == protocol.TypeDir && kind == protocol.TypeDir:
		return nil
	default:
		return unsafef(name, "the archive has it twice")
	}
}

// fold refuses a name that differs from another one in case only.
func (r *tarReader) fold(name string) error {
	folded := strings.Map(func(c rune) rune { // the least of those that are the same
		least := c
		for same := unicode.SimpleFold(c); same != c; same = unicode.SimpleFold(same) {
			least = min(least, same)
		}
		return least
	}, name)
	if other, is := r.folded[folded]; is && other != name {
		return unsafef(name, "it differs from %.200q in case only, which is the same file for some systems", other)
	}
	r.folded[folded] = name
	return nil
}

// take takes from the budget, of whose bytes holes take theirs as well.
func (r *tarReader) take(name string, u Usage) error {
	err := r.budget.take(name, u)
	if err == nil && r.budget.used.Sizes > r.budget.limits.MaxBytes {
		err = limitf(name, "the files have more than %d bytes together", r.budget.limits.MaxBytes)
	}
	return err
}

// content stores the content of a file.
func (r *tarReader) content(name string, from io.Reader, size int64, node *Node) error {
	if size > MaxSize || size > r.budget.limits.MaxBytes { // also of holes
		return limitf(name, "it has %d bytes, at most %d are allowed", size, min(int64(MaxSize), r.budget.limits.MaxBytes))
	}
	if err := r.take(name, Usage{Sizes: size}); err != nil {
		return err
	}
	buf := make([]byte, min(size, MaxPart))
	for node.Size < size {
		piece := buf[:min(size-node.Size, MaxPart)]
		if _, err := io.ReadFull(from, piece); err != nil {
			return r.failed(err)
		}
		part, err := r.bundle.add(piece)
		if err != nil {
			return err
		}
		if part.Sum == "" {
			node.hole(part.Size)
			continue
		}
		if err := r.budget.content(name, part); err != nil {
			return err
		}
		node.Size += part.Size
		node.Parts = append(node.Parts, part)
	}
	return nil
}

// checkInside accepts a symbolic link that leads into the directory, whatever other links
// of that directory it goes through: ".." stands at its beginning only, for the directories that
// the link is in.
func checkInside(name, target string) error {
	if err := checkTarget(name, target); err != nil {
		return err
	}
	up, named := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if up--; named {
				return unsafef(name, "a symbolic link to %.200q: .. is allowed at its beginning only", target)
			}
		default:
			named = true
		}
	}
	if up < 0 || strings.HasPrefix(target, "/") {
		return unsafef(name, "a symbolic link to %.200q, outside of the archive", target)
	}
	return nil
}

// Below is a tree in a directory, with the directories that this is in.
func (t Tree) Below(dir string) Tree {
	if dir == "" || dir == "." {
		return t
	}
	below := make(Tree, len(t))
	for name, node := range t {
		below[path.Join(dir, name)] = node
	}
	for above := dir; above != "." && above != "/"; above = parent(above) { // a path of others may be absolute
		below[above] = Node{Type: protocol.TypeDir, Mode: 0o755}
	}
	return below
}

// Overlay puts the files of a tree into root, over those that are there, and returns what it wrote.
// Directories that are there stay as they are. It refuses a tree that would replace a directory by
// something else or something else by a directory, go through a link, or change a path of
// [Options].Protect: then, and if a content is missing, root stays as it is. After another error
// part of the changes are made, as by [Sync].
func Overlay(ctx context.Context, root *os.Root, tree Tree, bodies Bodies, options *Options) (changes Changes, err error) {
	tree, base := maps.Clone(tree), Manifest{}
	here := &local{root: root, buf: make([]byte, copyBuffer), locked: map[string]fs.FileMode{}}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		node := tree[name]
		info, err := root.Lstat(name)
		if gone(err) {
			info, err = nil, nil
		}
		switch {
		case err != nil:
		case info != nil && info.IsDir() && node.Type == protocol.TypeDir:
			node.Mode = info.Mode().Perm()
			tree[name] = node
		case info != nil && info.Mode().Type() == fs.ModeSymlink && node.Type == protocol.TypeDir:
			err = unsafef(name, "it is a link there, and a directory in the archive")
		case info != nil && info.IsDir() != (node.Type == protocol.TypeDir):
			err = unsafef(name, "it is a directory there or in the archive, and not in the other")
		case options != nil && guarded(options.Protect, name, node.Type):
			err = unsafef(name, "it is protected")
		}
		if err != nil {
			return changes, errors.Join(err, here.relock(nil))
		}
		if base[name], err = here.at(ctx, name); err != nil {
			return changes, errors.Join(err, here.relock(nil))
		}
		if base[name] == (Entry{}) {
			delete(base, name)
		}
	}
	if err := here.relock(nil); err != nil {
		return changes, err
	}
	changes, err = Sync(ctx, root, base, tree, bodies, options)
	if left := slices.Concat(changes.Conflicts, changes.Protected); err == nil && len(left) > 0 {
		err = unsafef(left[0], "it was changed meanwhile, or is protected")
	}
	return changes, err
}
