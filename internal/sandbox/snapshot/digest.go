package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// digest finds the digest of a content that is written to it: its SHA-256, or of more than
// [MaxPart] bytes the one of those of its runs of MaxPart bytes. So a [Tree], which has these,
// tells it without the content.
type digest struct {
	run   hash.Hash // of the run that is not complete
	size  int       // of that run
	runs  hash.Hash // of the digests of those before
	whole int       // how many these are
	first []byte    // the first of them
}

func newDigest() *digest { return &digest{run: sha256.New(), runs: sha256.New()} }

// Write implements [io.Writer].
func (d *digest) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		d.complete()
		n, _ := d.run.Write(rest[:min(len(rest), MaxPart-d.size)])
		d.size += n
		rest = rest[n:]
	}
	return len(p), nil
}

// complete begins the next run when a run is complete.
func (d *digest) complete() {
	if d.size == MaxPart {
		d.add(d.run.Sum(nil))
		d.size = 0
		d.run.Reset()
	}
}

// add is Write of a whole run, by its digest.
func (d *digest) add(sum []byte) {
	if d.whole++; d.whole == 1 {
		d.first = sum
	}
	_, _ = d.runs.Write(sum)
}

// zeros is Write of so many zeros. Only a digest for each run of them is computed.
func (d *digest) zeros(n int64) {
	for n > 0 {
		d.complete()
		if d.size > 0 {
			few := min(n, int64(MaxPart-d.size))
			_, _ = d.run.Write(zeroRun()[:few])
			d.size, n = d.size+int(few), n-few
			continue
		}
		if n < MaxPart {
			d.begin(int(n))
			return
		}
		for ; n >= MaxPart; n -= MaxPart {
			d.add(zeroSum())
		}
	}
}

// zeroStep is the distance of the beginnings of runs of zeros whose state is remembered.
const zeroStep = 64 << 10

var (
	zeroRun = sync.OnceValue(func() []byte { return make([]byte, MaxPart) }) //nolint:gochecknoglobals // a constant
	zeroSum = sync.OnceValue(func() []byte {                                 //nolint:gochecknoglobals // a constant
		sum := sha256.Sum256(zeroRun())
		return sum[:]
	})
	// zeroStates are the states of a hash after each zeroStep of zeros.
	zeroStates = sync.OnceValue(func() (states [][]byte) { //nolint:gochecknoglobals // a constant
		run := sha256.New()
		for range MaxPart / zeroStep {
			var state []byte
			if marshaler, is := run.(encoding.BinaryMarshaler); is {
				state, _ = marshaler.MarshalBinary() // without it the zeros are hashed
			}
			states = append(states, state)
			_, _ = run.Write(zeroRun()[:zeroStep])
		}
		return states
	})
)

// begin begins a run with n zeros, fewer than MaxPart: a file of many small contents, each at the
// end of a run, must not take as long as one without holes.
func (d *digest) begin(n int) {
	known := 0
	if run, is := d.run.(encoding.BinaryUnmarshaler); is && run.UnmarshalBinary(zeroStates()[n/zeroStep]) == nil {
		known = n / zeroStep * zeroStep
	}
	_, _ = d.run.Write(zeroRun()[:n-known])
	d.size = n
}

// sum returns the digest of what was written, in hex.
func (d *digest) sum() string {
	if d.size > 0 && d.whole > 0 {
		d.add(d.run.Sum(nil))
	}
	switch d.whole {
	case 0:
		return hex.EncodeToString(d.run.Sum(nil))
	case 1:
		return hex.EncodeToString(d.first)
	default:
		return hex.EncodeToString(d.runs.Sum(nil))
	}
}

// Manifest says what a tree contains. Of files with holes, and others whose parts are not of the
// usual sizes, the contents are read for it, but for the holes.
func (t Tree) Manifest(ctx context.Context, bodies Bodies) (Manifest, error) {
	m := make(Manifest, len(t))
	for name, node := range t {
		entry := Entry{Type: node.Type, Mode: node.Mode, Size: node.Size, Target: node.Target}
		if node.Type == protocol.TypeFile {
			var known bool
			if entry.SHA256, known = node.digest(); !known {
				var err error
				if entry.SHA256, err = node.contentDigest(ctx, bodies); err != nil {
					return nil, fmt.Errorf("%q: %w", name, err)
				}
			}
		}
		m[name] = entry
	}
	return m, nil
}

// digest returns the digest of a file's content, if its parts suffice.
func (n Node) digest() (sum string, known bool) {
	d := newDigest()
	for i, p := range n.Parts {
		part, err := base64.RawURLEncoding.DecodeString(p.Sum)
		if err != nil || len(part) != sha256.Size || p.Size != MaxPart && i < len(n.Parts)-1 {
			return "", false
		}
		d.add(part)
	}
	return d.sum(), true
}

// contentDigest returns it by what a file has.
func (n Node) contentDigest(ctx context.Context, bodies Bodies) (string, error) {
	d, body, raw := newDigest(), "", []byte(nil)
	for _, p := range n.Parts {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if p.Sum == "" {
			d.zeros(p.Size)
			continue
		}
		if p.Body != body { // most parts are in the same one as those before them
			var err error
			if raw, err = fetch(ctx, bodies, p.Body); err != nil {
				return "", err
			}
			body = p.Body
		}
		content, err := p.of(raw)
		if err != nil {
			return "", err
		}
		_, _ = d.Write(content)
	}
	return d.sum(), nil
}

// Index maps the files of one directory to the content and the stamp that they had when they were
// read or written. Files with the same stamp need not be read again. Without it every file is read
// again.
type Index map[string]Known

// Known is what is remembered of a file.
type Known struct {
	Stamp

	// Content stands for the parts that it was read or written as.
	Content string `json:"content"`
}

// Stamp is what changes when a file is written to: its size, its times in nanoseconds since 1970,
// and its number in the file system. On systems that do not report the time of a file's last
// change, the index stays empty.
type Stamp struct {
	Size   int64  `json:"size"`
	Mod    int64  `json:"mod"`
	Change int64  `json:"change"`
	Inode  uint64 `json:"inode"`
}

// fresh is how long after its last change a file may be changed again without another time: as
// coarse as clocks of file systems are.
const fresh = 25 * time.Millisecond

// note remembers a file that was read, or written, as info tells. A file that changed a moment ago
// may change again and show nothing: it is forgotten.
func (x Index) note(name string, info fs.FileInfo, node Node, now time.Time) {
	stamp, ok := stampOf(info)
	if !ok || now.UnixNano()-stamp.Change < int64(fresh) {
		delete(x, name)
		return
	}
	x[name] = Known{Stamp: stamp, Content: node.content()}
}

// matches reports whether a file is as it was when it had the content of a node.
func (x Index) matches(name string, info fs.FileInfo, node Node) bool {
	known, is := x[name]
	stamp, ok := stampOf(info)
	return is && ok && known.Stamp == stamp && known.Content == node.content()
}
