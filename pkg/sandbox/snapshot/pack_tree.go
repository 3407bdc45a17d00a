package snapshot

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// PackTree writes an archive of a tree, which has passed [Tree.Validate], to w. Every content is
// checked against its sum. After an error, what was written to w is not an archive, and [Unpack]
// refuses it; it wraps [ErrCorrupt] when a body is not what the tree says.
func PackTree(ctx context.Context, tree Tree, bodies Bodies, w io.Writer) error {
	out, err := newWriter(w)
	if err != nil {
		return fmt.Errorf("pack tree: %w", err)
	}
	p := &treePacker{bodies: bodies, out: out}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if err = p.node(ctx, name, tree[name]); err != nil {
			break
		}
	}
	if err == nil {
		err = out.finish()
	}
	if err != nil {
		out.abort()
		return fmt.Errorf("pack tree: %w", err)
	}
	return nil
}

// treePacker is one run of [PackTree]. Small files that lie side by side share a body, which is
// fetched once.
type treePacker struct {
	bodies Bodies
	out    *writer
	body   string
	raw    []byte
}

func (p *treePacker) node(ctx context.Context, name string, node Node) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(node.Mode), Size: node.Size, ModTime: time.Unix(0, node.ModTime), Format: tar.FormatPAX}
	switch node.Type {
	case sandbox.TypeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case sandbox.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, node.Target
	default:
	}
	if err := p.out.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	for _, part := range node.Parts {
		if err := p.part(ctx, part); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func (p *treePacker) part(ctx context.Context, part Part) error {
	if part.Sum == "" {
		return copyExactly(ctx, p.out, eof{}, part.Size, make([]byte, min(part.Size, copyBuffer)))
	}
	if p.raw == nil || p.body != part.Body {
		raw, err := fetch(ctx, p.bodies, part.Body)
		if err != nil {
			return err
		}
		p.body, p.raw = part.Body, raw
	}
	content, err := part.of(p.raw)
	if err != nil {
		return err
	}
	_, err = p.out.Write(content)
	return err
}

// eof has nothing to read.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
