package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"io/fs"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// digest finds the digest of a content that is written to it: its SHA-256, or of more than
// [MaxPart] bytes the one of those of its runs of MaxPart bytes. So a [Tree], which has these,
// tells it without the content.
type digest struct {
	run  hash.Hash // of the run that is not complete
	size int       // of that run
	runs []byte    // digests of those before
}

func newDigest() *digest { return &digest{run: sha256.New()} }

// Write implements [io.Writer].
func (d *digest) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if d.size == MaxPart {
			d.runs, d.size = d.run.Sum(d.runs), 0
			d.run.Reset()
		}
		n, _ := d.run.Write(rest[:min(len(rest), MaxPart-d.size)])
		d.size += n
		rest = rest[n:]
	}
	return len(p), nil
}

// add is Write of a whole run, by its digest.
func (d *digest) add(sum []byte) {
	d.runs = append(d.runs, sum...)
}

// sum returns the digest of what was written, in hex.
func (d *digest) sum() string {
	if len(d.runs) == 0 {
		return hex.EncodeToString(d.run.Sum(nil))
	}
	runs := d.runs
	if d.size > 0 {
		runs = d.run.Sum(runs)
	}
	if len(runs) == sha256.Size {
		return hex.EncodeToString(runs)
	}
	all := sha256.Sum256(runs)
	return hex.EncodeToString(all[:])
}

// maxUnusual is how many bytes of files with holes are read for a manifest.
const maxUnusual = 4 << 30

// Manifest says what a tree contains. Files with holes, and others whose parts are not of the usual
// sizes, are read for it: at most 4 GiB of them.
func (t Tree) Manifest(ctx context.Context, bodies Bodies) (Manifest, error) {
	m, unusual := make(Manifest, len(t)), int64(0)
	for name, node := range t {
		entry := Entry{Type: node.Type, Mode: node.Mode, Size: node.Size, Target: node.Target}
		if node.Type == protocol.TypeFile {
			var known bool
			if entry.SHA256, known = node.digest(); !known {
				if unusual += node.Size; unusual > maxUnusual || unusual < 0 {
					return nil, limitf(name, "files with holes of more than %d bytes", int64(maxUnusual))
				}
				var err error
				if entry.SHA256, err = node.contentDigest(ctx, bodies); err != nil {
					return nil, err
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
	d := newDigest()
	for _, p := range n.Parts {
		if p.Sum == "" {
			zeros := make([]byte, min(p.Size, copyBuffer))
			for rest := p.Size; rest > 0; rest -= int64(len(zeros)) {
				if err := ctx.Err(); err != nil {
					return "", err
				}
				zeros = zeros[:min(rest, copyBuffer)]
				_, _ = d.Write(zeros)
			}
			continue
		}
		content, err := LoadBytes(ctx, bodies, []Part{p}, MaxPart)
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

// note remembers a file that was read, or written, as info tells. One that has changed a moment ago
// may change again and show nothing: it is forgotten.
func (x Index) note(name string, info fs.FileInfo, node Node, now time.Time) {
	stamp, ok := stampOf(info)
	if !ok || now.UnixNano()-stamp.Change < int64(fresh) {
		delete(x, name)
		return
	}
	x[name] = Known{Stamp: stamp, Content: node.content()}
}

// knows reports whether a file is as it was when it had the content of a node.
func (x Index) knows(name string, info fs.FileInfo, node Node) bool {
	known, is := x[name]
	stamp, ok := stampOf(info)
	return is && ok && known.Stamp == stamp && known.Content == node.content()
}
