package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// stores is how many bodies are compressed and stored, or fetched, side by side.
const stores = 4

// bundle collects new contents until they make up a body, and stores bodies; without bodies it only
// finds out what parts contents have. While it does, parts name them by their number; finish puts
// the names there.
type bundle struct {
	ctx    context.Context //nolint:containedctx // of one Save
	group  *errgroup.Group
	bodies Bodies
	known  map[string]Part // by their sum
	whole  bool            // all of the last tree is known
	raw    []byte
	sums   bytes.Buffer // of what is in raw
	names  []string
	kept   int64
	buf    []byte

	since  time.Time // when bodies were kept last
	mu     sync.Mutex
	stored []string // guarded by mu
}

func newBundle(ctx context.Context, bodies Bodies) *bundle {
	b := &bundle{bodies: bodies, known: map[string]Part{}, since: time.Now()}
	b.group, b.ctx = errgroup.WithContext(ctx)
	b.group.SetLimit(stores)
	return b
}

// addKnown has contents of the last tree found again: those of a file, or of all of them.
func (b *bundle) addKnown(last Tree, name string, all bool) {
	if !all {
		b.remember(last[name])
		return
	}
	if b.whole {
		return
	}
	b.whole = true
	for _, node := range last {
		b.remember(node)
	}
}

func (b *bundle) remember(node Node) {
	for _, p := range node.Parts {
		if p.Sum != "" {
			b.known[p.Sum] = p
		}
	}
}

// read returns the content of a file from an offset to the next multiple of [MaxPart], or to end;
// nothing at either end. It is valid until the next call.
func (b *bundle) read(file *os.File, from, end int64) ([]byte, error) {
	want := int(min(MaxPart-from%MaxPart, max(end-from, 0)))
	b.buf = slices.Grow(b.buf[:0], want) // most files are small
	n, err := file.ReadAt(b.buf[:want], from)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b.buf[:n], err
}

// add returns the part that a content is: a hole, one that is kept already, or a new one.
func (b *bundle) add(content []byte) (Part, error) {
	size := int64(len(content))
	if len(bytes.TrimLeft(content, "\x00")) == 0 {
		return Part{Size: size}, nil
	}
	sum := sumOf(content)
	if p, is := b.known[sum]; is && p.Size == size {
		return p, nil
	}
	if len(b.raw)+len(content) > MaxPart {
		if err := b.flush(); err != nil {
			return Part{}, err
		}
	}
	p := Part{Size: size, Sum: sum, Body: numbered + strconv.Itoa(len(b.names)), At: int64(len(b.raw))}
	b.raw = append(b.raw, content...)
	b.sums.WriteString(sum)
	b.kept += size
	b.known[sum] = p
	return p, nil
}

// numbered begins what stands for the name of a body that is not stored yet.
const numbered = "#"

// flush stores what was collected.
func (b *bundle) flush() error {
	raw, name := b.raw, sumOf(b.sums.Bytes())
	b.names = append(b.names, name)
	b.raw = make([]byte, 0, len(raw)) // the next one is as large
	b.sums.Reset()
	if b.bodies != nil {
		b.group.Go(func() error { return b.put(name, compress(raw)) })
	}
	if keeper, is := b.bodies.(Keeper); is && time.Since(b.since) > keepEvery { // nothing names them yet
		b.since = time.Now()
		b.mu.Lock()
		stored := slices.Clone(b.stored)
		b.mu.Unlock()
		b.group.Go(func() error { return keeper.Keep(b.ctx, stored) })
	}
	return b.ctx.Err()
}

// keepEvery is the time after which the bodies of a long Save are kept.
var keepEvery = 5 * time.Minute //nolint:gochecknoglobals // shorter in a test

func (b *bundle) put(name string, body []byte) error {
	err := b.bodies.Put(b.ctx, name, body)
	if err == nil {
		b.mu.Lock()
		b.stored = append(b.stored, name)
		b.mu.Unlock()
	}
	return err
}

// finish stores what is left, or puts it into the delta when it is little and all there is, and has
// the parts of the delta name their bodies. A failed Save only waits for what is under way.
func (b *bundle) finish(d *Delta, failed bool) error {
	inline := ""
	switch {
	case failed || len(b.raw) == 0:
	case len(b.names) == 0 && len(b.raw) <= MaxInline:
		d.Inline = compress(b.raw)
		b.names = append(b.names, inline)
	default:
		_ = b.flush() // what stopped it is told by Wait
	}
	if err := b.group.Wait(); err != nil || failed {
		return err
	}
	stored := make(map[string]string, len(b.names))
	for n, name := range b.names {
		stored[numbered+strconv.Itoa(n)] = name
	}
	d.Set.eachPart(func(p *Part) {
		if name, is := stored[p.Body]; is {
			p.Body = name
		}
	})
	for _, name := range b.names {
		if name != inline {
			d.Stored = append(d.Stored, name)
		}
	}
	d.Stats.Kept = b.kept
	return nil
}

// What compresses and decompresses bodies; both can be used by many at once.
var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))                             //nolint:gochecknoglobals // its tables are large
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(2*MaxPart), zstd.WithDecoderConcurrency(0)) //nolint:gochecknoglobals // its tables are large
)

func compress(raw []byte) []byte { return encoder.EncodeAll(raw, nil) }

// decompress returns the content of a body, of at most [MaxPart] bytes.
func decompress(body []byte) ([]byte, error) {
	raw, err := decoder.DecodeAll(body, nil)
	if err != nil || len(raw) > MaxPart {
		return nil, corruptf("a body cannot be decompressed: %v", err)
	}
	return raw, nil
}

// fetch returns the content of a body.
func fetch(ctx context.Context, bodies Bodies, name string) ([]byte, error) {
	packed, err := bodies.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("body %s: %w", name, err)
	}
	raw, err := decompress(packed)
	if err != nil {
		return nil, fmt.Errorf("body %s: %w", name, err)
	}
	return raw, nil
}

// sumOf is the SHA-256 of a content, in base64.
func sumOf(content []byte) string {
	digest := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(digest[:])
}

// Outline stores what a delta carries as a body.
func (d *Delta) Outline(ctx context.Context, bodies Bodies) error {
	if len(d.Inline) == 0 {
		return nil
	}
	name := sumOf(d.Inline)
	if err := bodies.Put(ctx, name, d.Inline); err != nil {
		return err
	}
	d.Set.nameInline(name)
	d.Inline, d.Stored = nil, append(d.Stored, name)
	return nil
}

// StoreBytes keeps a content in bodies of its own, and returns its parts and the names of the
// bodies.
func StoreBytes(ctx context.Context, bodies Bodies, content []byte) ([]Part, []string, error) {
	b := newBundle(ctx, bodies)
	node := Node{Type: protocol.TypeFile}
	var err error
	for rest := content; len(rest) > 0 && err == nil; {
		var part Part
		if part, err = b.add(rest[:min(MaxPart, len(rest))]); err == nil {
			node.Parts = append(node.Parts, part)
			rest = rest[part.Size:]
		}
	}
	d := &Delta{Set: Tree{"content": node}}
	if len(b.raw) > 0 && err == nil {
		err = b.flush()
	}
	if err = errors.Join(err, b.finish(d, err != nil)); err != nil {
		return nil, nil, err
	}
	return node.Parts, d.Stored, nil
}

// LoadBytes returns a content of at most limit bytes that [StoreBytes] has kept.
func LoadBytes(ctx context.Context, bodies Bodies, parts []Part, limit int64) ([]byte, error) {
	r, err := open(ctx, bodies, parts, limit)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// maxTree is more than the JSON of any tree has that is within the default limits.
const maxTree = 1 << 30

// LoadTree returns the tree that [StoreBytes] has kept as JSON, by a [Reader] with the default
// limits.
func LoadTree(ctx context.Context, bodies Bodies, parts []Part) (Tree, error) {
	r, err := open(ctx, bodies, parts, maxTree)
	if err != nil {
		return nil, err
	}
	return NewReader(r, Limits{}).Tree()
}

// open reads what [StoreBytes] has kept, a part at a time.
func open(ctx context.Context, bodies Bodies, parts []Part, limit int64) (io.Reader, error) {
	node := Node{Parts: parts}
	for _, p := range parts {
		if p.Size <= 0 || p.Size > MaxPart || p.Size > limit-node.Size {
			return nil, limitf("", "a content of too many bytes, or a part of %d", p.Size)
		}
		node.Size += p.Size
	}
	return node.Open(ctx, bodies), nil
}

// of returns the bytes of a part, out of the content of its body.
func (p Part) of(raw []byte) ([]byte, error) {
	if p.At < 0 || p.Size < 0 || p.At > int64(len(raw)) || p.Size > int64(len(raw))-p.At {
		return nil, corruptf("body %s has %d bytes, not those at %d", p.Body, len(raw), p.At)
	}
	content := raw[p.At : p.At+p.Size]
	if sumOf(content) != p.Sum {
		return nil, corruptf("body %s does not match its sum", p.Body)
	}
	return content, nil
}
