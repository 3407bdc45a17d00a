package gitguard

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // git's ids
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Parts of an index that have a fixed size, in bytes; see gitformat-index(5).
const (
	indexHeader  = 12 // signature, version, number of entries
	entryStat    = 40 // before the hash
	nameMask     = 0xfff
	extended     = 0x4000 // two more bytes of flags
	listedEntry  = 11     // what git writes for an entry in addition to its hash and name
	prefixed     = 4      // the version whose names leave out what they share with the name before
	paddedEntry  = 8
	maxIndexName = 1 << 20
)

// indexCopy copies the entries of an index, and nothing else that git could do without. It follows
// each entry as git does: a name of version 4 repeats a prefix of the one before, so that a file of
// a few MiB has git use any amount of memory.
type indexCopy struct {
	from *bufio.Reader
	to   *bufio.Writer
	left int64 // of the file, without the hash at its end
	hash int   // bytes of a hash
	room int64 // for the entries in git's list; less than 0 is an error
	part [nameMask + 1]byte
}

// copyIndex copies an index whose hashes have so many bytes. room is what git may write about its
// entries, in bytes, and rest what is left of that. shared is the name of the index that this one
// is the change of; "" for none.
func copyIndex(from, to string, hash int, room int64) (shared string, size, rest int64, err error) {
	file, err := regular.Open(from)
	if err != nil {
		return "", 0, room, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return "", 0, room, err
	}
	if info.Size() > maxIndex {
		return "", 0, room, fmt.Errorf("%s: the indexes are larger than %d bytes", from, maxIndex)
	}
	made, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, room, err
	}
	c := &indexCopy{from: bufio.NewReader(file), to: bufio.NewWriter(made), left: info.Size() - int64(hash), hash: hash, room: room}
	shared, err = c.copy()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errRefused
	}
	if err = errors.Join(err, c.to.Flush(), made.Close()); err != nil {
		err = fmt.Errorf("%s: %w", from, err)
	}
	return shared, info.Size(), c.room, err
}

func (c *indexCopy) copy() (shared string, err error) {
	header, err := c.next(indexHeader)
	if err != nil {
		return "", err
	}
	version, entries := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[8:])
	if string(header[:4]) != "DIRC" || version < 2 || version > prefixed {
		return "", errRefused
	}
	for before := 0; entries > 0; entries-- {
		if before, err = c.entry(version == prefixed, before); err != nil {
			return "", err
		}
		if c.room -= int64(before + 2*c.hash + listedEntry); c.room < 0 {
			return "", fmt.Errorf("the names of its files have more than %d bytes", maxAnswer)
		}
	}
	for c.left > 0 {
		if shared, err = c.extension(shared); err != nil {
			return "", err
		}
	}
	_, err = io.CopyN(c.to, c.from, int64(c.hash)) // which a shared index is known by
	return shared, err
}

// next copies so many bytes, at most nameMask, and returns them until the next call.
func (c *indexCopy) next(n int) ([]byte, error) {
	if c.left -= int64(n); c.left < 0 {
		return nil, io.ErrUnexpectedEOF
	}
	part := c.part[:n]
	if _, err := io.ReadFull(c.from, part); err != nil {
		return nil, err
	}
	_, err := c.to.Write(part)
	return part, err
}

// entry copies an entry behind one with a name of so many bytes. It returns how long its name is.
func (c *indexCopy) entry(isPrefixed bool, before int) (name int, err error) {
	fixed, err := c.next(entryStat + c.hash + 2)
	if err != nil {
		return 0, err
	}
	size, flags := len(fixed), binary.BigEndian.Uint16(fixed[entryStat+c.hash:])
	if flags&extended != 0 {
		if _, err := c.next(2); err != nil {
			return 0, err
		}
		size += 2
	}
	kept := 0 // of the name before
	if isPrefixed {
		strip, err := c.varint()
		if err != nil || strip > uint64(before) { //nolint:gosec // a length
			return 0, errors.Join(err, errRefused)
		}
		kept = before - int(strip) //nolint:gosec // less than before
	}
	name = int(flags & nameMask)
	switch {
	case name == nameMask:
		more, err := c.terminated()
		if err != nil {
			return 0, err
		}
		name, size = kept+more, size+more+1
	case name < kept: // git would write before the name
		return 0, errRefused
	default:
		if _, err := c.next(name - kept); err != nil {
			return 0, err
		}
		if end, err := c.next(1); err != nil || end[0] != 0 {
			return 0, errors.Join(err, errRefused)
		}
		size += name - kept + 1
	}
	if padding := -size & (paddedEntry - 1); !isPrefixed && padding > 0 {
		_, err = c.next(padding)
	}
	return name, err
}

// varint copies a number as git writes it.
func (c *indexCopy) varint() (n uint64, err error) {
	for first := true; ; first = false {
		b, err := c.next(1)
		if err != nil {
			return 0, err
		}
		if !first {
			n = (n + 1) << 7
		}
		if n += uint64(b[0] & 0x7f); n > maxIndex {
			return 0, errRefused
		}
		if b[0]&0x80 == 0 {
			return n, nil
		}
	}
}

// terminated copies bytes up to a NUL, and returns how many there were before it.
func (c *indexCopy) terminated() (n int, err error) {
	for ; n <= maxIndexName; n++ {
		b, err := c.next(1)
		if err != nil || b[0] == 0 {
			return n, err
		}
	}
	return 0, errRefused
}

// extension copies what git needs of what follows the entries: that the index is the change of a
// shared one, and that it is sparse. Other extensions that git may ignore are left out.
func (c *indexCopy) extension(shared string) (string, error) {
	var head [8]byte
	if c.left -= int64(len(head)); c.left < 0 {
		return "", errRefused
	}
	if _, err := io.ReadFull(c.from, head[:]); err != nil {
		return "", err
	}
	name, size := string(head[:4]), int64(binary.BigEndian.Uint32(head[4:]))
	if c.left -= size; c.left < 0 {
		return "", errRefused
	}
	switch {
	case name == "sdir", name == "link" && shared == "" && size >= int64(c.hash):
	case 'A' <= name[0] && name[0] <= 'Z':
		_, err := io.CopyN(io.Discard, c.from, size)
		return shared, err
	default:
		return "", errRefused
	}
	if _, err := c.to.Write(head[:]); err != nil {
		return "", err
	}
	if name == "link" {
		id := make([]byte, c.hash)
		if _, err := io.ReadFull(c.from, id); err != nil {
			return "", err
		}
		if _, err := c.to.Write(id); err != nil {
			return "", err
		}
		if slices.ContainsFunc(id, func(b byte) bool { return b != 0 }) {
			shared = "sharedindex." + hex.EncodeToString(id)
		}
		size -= int64(c.hash)
	}
	_, err := io.CopyN(c.to, c.from, size)
	return shared, err
}

// maxIndex bounds the indexes of a repository and its submodules together, in bytes.
const maxIndex = 1 << 30

// Tracked returns the files in a directory that git tracks, as slash-separated paths relative to
// it, also those of submodules; none where there is no repository, or no git. git reads a copy of
// the index in an empty repository, which names no server to fetch from and no program.
func Tracked(ctx context.Context, dir string) ([]string, error) {
	git, err := newReader(dir)
	if err != nil {
		return nil, nil //nolint:nilerr // there is no git
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	t := &tracked{reader: git, dir: dir, room: maxAnswer}
	r, ok, err := repositoryOf(dir)
	if ok && err == nil {
		err = t.repository(ctx, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("files that git tracks: %w", err)
	}
	return t.files, nil
}

// tracked collects the files that git tracks.
type tracked struct {
	*reader

	dir          string
	files        []string
	repositories int
	read         int64 // bytes of indexes
	room         int64 // for what git lists of them, in bytes
}

// repository adds the files of one, and of its submodules.
func (t *tracked) repository(ctx context.Context, r *repository) error {
	if t.repositories++; t.repositories > maxRepositories {
		return fmt.Errorf("more than %d submodules", maxRepositories)
	}
	if r.gitDir == "" || !isGitDir(r.gitDir) {
		return nil // nothing to git, either
	}
	out, err := t.index(ctx, r)
	if err != nil {
		return fmt.Errorf("%s: %w", r.gitDir, err)
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		stat, name, _ := strings.Cut(line, "\t")
		at := filepath.Join(r.dir, filepath.FromSlash(strings.TrimSuffix(name, "/")))
		below, err := filepath.Rel(t.dir, at)
		if name == "" || err != nil || below == "." || !filepath.IsLocal(below) {
			continue
		}
		t.files = append(t.files, filepath.ToSlash(below))
		if !strings.HasPrefix(stat, "160000 ") { // it is no submodule
			continue
		}
		sub, _, ok, err := dotGit(at)
		if ok && err == nil {
			err = t.repository(ctx, &sub)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// index lists the index of a repository.
func (t *tracked) index(ctx context.Context, r *repository) (out []byte, err error) {
	format, hash := "", sha1.Size
	content, err := regular.Read(filepath.Join(r.common, "config"), MaxSettings)
	if err == nil {
		var entries []entry
		entries, err = t.list(ctx, content)
		for _, e := range entries {
			if e.key == "extensions.objectformat" && e.value == "sha256" {
				format, hash = "[extensions]\n\tobjectformat = sha256\n", sha256.Size
			}
		}
	}
	if err != nil && !missing(err) {
		return nil, err
	}
	err = inScratch(func(dir string) error {
		gitDir := filepath.Join(dir, "git")
		if err := empty(gitDir, format); err != nil {
			return err
		}
		shared, err := t.copyIndex(r.gitDir, gitDir, "index", hash)
		if err == nil && shared != "" { // of an index that is split
			_, err = t.copyIndex(r.gitDir, gitDir, shared, hash)
		}
		if err != nil {
			return err
		}
		list := func(settings []string, options ...string) ([]byte, error) {
			env := append(neutral(dir), "GIT_DIR="+gitDir, "GIT_WORK_TREE="+dir)
			return t.ask(ctx, dir, env, append(append(settings, "-c", "index.threads=1", "ls-files", "--cached", "--stage", "-z"), options...)...)
		}
		if out, err = list(nil); !errors.Is(err, errRefused) {
			return err
		}
		// A sparse index names directories whose files only the repository has.
		sparse, _ := list([]string{"-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=true", "-c", "index.sparse=true"}, "--sparse")
		if sparse != nil {
			out, err = sparse, nil
		}
		return err
	})
	return out, err
}

// empty makes an empty repository, in which nothing is checked out.
func empty(gitDir, format string) error {
	var err error
	for _, dir := range []string{"objects", "refs", "info"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(gitDir, dir), 0o700))
	}
	for name, content := range map[string]string{
		"HEAD": "ref: refs/heads/none\n", "config": "[core]\n\trepositoryformatversion = 1\n\tbare = false\n" + format, "info/sparse-checkout": "/*\n!/*/\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(gitDir, name), []byte(content), 0o600))
	}
	return err
}

// copyIndex copies an index from one directory to another one. What is missing is an empty index.
func (t *tracked) copyIndex(from, to, name string, hash int) (shared string, err error) {
	shared, size, room, err := copyIndex(filepath.Join(from, name), filepath.Join(to, name), hash, t.room)
	if missing(err) {
		return "", nil
	}
	t.room = room
	if t.read += size; err == nil && t.read > maxIndex {
		err = fmt.Errorf("%s: the indexes are larger than %d bytes", filepath.Join(from, name), maxIndex)
	}
	return shared, err
}
