package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// attempts is how often a path is looked at that changes between look and read.
const attempts = 10

// Pack writes an archive of root to w and returns what is in it.
//
// What vanishes meanwhile is not in the archive; a file that shrinks is filled up with
// zeros, one that grows is cut, and both count in [Stats].Changed. Modes lose all but
// the permission bits. Files and directories that their mode keeps from being read are
// made readable for the moment when they belong to this process' user.
//
// After an error, what was written to w is not an archive, and [Unpack] refuses it. The
// error wraps [ErrLimit] when root is too large, fs.ErrPermission when something
// cannot be read.
func Pack(ctx context.Context, root *os.Root, w io.Writer, options *Options) (Manifest, Stats, error) {
	opts := options.withDefaults()
	out, err := newWriter(w)
	if err != nil {
		return nil, Stats{}, fmt.Errorf("pack %s: %w", root.Name(), err)
	}
	p := &packer{
		root:     root,
		out:      out,
		skip:     opts.Skip,
		budget:   budget{limits: opts.Limits},
		manifest: Manifest{},
		buf:      make([]byte, copyBuffer),
	}
	err = p.top(ctx)
	if err == nil {
		err = out.finish()
	}
	if err != nil {
		out.abort()
		return nil, Stats{}, fmt.Errorf("pack %s: %w", root.Name(), err)
	}
	return p.manifest, p.stats, nil
}

// packer is one run of [Pack].
type packer struct {
	root     *os.Root
	out      *writer
	skip     func(string, bool) bool
	budget   budget
	manifest Manifest
	stats    Stats
	buf      []byte
}

// top packs what is in the root.
func (p *packer) top(ctx context.Context) error {
	info, err := p.root.Stat(".")
	if err != nil {
		return err
	}
	return p.inside(ctx, ".", info, func() error { return nil })
}

// path packs what is at a path, if anything.
func (p *packer) path(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for range attempts {
		info, err := p.root.Lstat(name)
		switch {
		case err != nil && gone(err):
			return nil
		case err != nil:
			return err
		case p.skip(name, info.IsDir()):
			return nil
		default:
		}
		if err := p.entry(ctx, name, info); !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("%q changes all the time", name)
}

// entry packs what info describes, or returns errChanged before anything is written.
func (p *packer) entry(ctx context.Context, name string, info fs.FileInfo) error {
	switch info.Mode().Type() {
	case 0:
		return p.file(ctx, name, info)
	case fs.ModeDir:
		return p.inside(ctx, name, info, func() error { return p.directory(name, info) })
	case fs.ModeSymlink:
		return p.link(name, info)
	default:
		p.stats.LeftOut++
		return nil
	}
}

// inside calls before once a directory was read, and then packs what is in it.
func (p *packer) inside(ctx context.Context, name string, info fs.FileInfo, before func() error) (err error) {
	lock, err := unlock(p.root, name, info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock()) }()
	names, err := p.list(name, info)
	if err == nil {
		err = before()
	}
	if err != nil {
		return err
	}
	for _, base := range names {
		if err := p.path(ctx, path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory, sorted.
func (p *packer) list(name string, info fs.FileInfo) ([]string, error) {
	dir, err := openSame(p.root, name, info)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var names []string
	for {
		more, err := dir.Readdirnames(1024)
		names = append(names, more...)
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		if len(names) > p.budget.limits.MaxEntries {
			return nil, limitf(name, "more than %d entries", p.budget.limits.MaxEntries)
		}
	}
}

func (p *packer) directory(name string, info fs.FileInfo) error {
	entry := Entry{Type: sandbox.TypeDir, Mode: info.Mode().Perm()}
	return p.header(name, entry, &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", ModTime: info.ModTime()})
}

func (p *packer) link(name string, info fs.FileInfo) error {
	target, err := p.root.Readlink(name)
	if err != nil {
		if again, lerr := p.root.Lstat(name); lerr != nil || again.Mode().Type() != fs.ModeSymlink {
			return errChanged
		}
		return err
	}
	entry := Entry{Type: sandbox.TypeSymlink, Target: filepath.ToSlash(target)}
	return p.header(name, entry, &tar.Header{
		Typeflag: tar.TypeSymlink, Name: name, Linkname: entry.Target, ModTime: info.ModTime(),
	})
}

// header begins an entry.
func (p *packer) header(name string, entry Entry, h *tar.Header) error {
	if err := p.budget.entry(name, entry.Target); err != nil {
		return err
	}
	h.Mode = int64(entry.Mode)
	h.Size = entry.Size
	h.Format = tar.FormatPAX
	if err := p.out.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	p.manifest[name] = entry
	return nil
}

// setDigest completes a file's line in the manifest.
func (p *packer) setDigest(name, digest string) {
	entry := p.manifest[name]
	entry.SHA256 = digest
	p.manifest[name] = entry
}
