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
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Parts of an index, see gitformat-index(5): sizes are in bytes.
const (
	indexHeader  = 12 // signature, version, number of entries
	entryMode    = 24 // where an entry has its mode
	entryStat    = 40 // before the hash
	nameMask     = 0xfff
	extended     = 0x4000 // two more bytes of flags
	prefixed     = 4      // the version whose names leave out what they share with the name before
	paddedEntry  = 8
	maxIndexName = 1 << 20
	maxLinked    = 64 << 20 // of what says how an index changes a shared one
	subMode      = 0o160000 // of a submodule
)

// maxIndex bounds the indexes of a repository and its submodules together, in bytes.
const maxIndex = 1 << 30

// Tracked returns the files in a directory that git tracks, as slash-separated paths relative to
// it, also those of submodules; none where there is no repository, or no git. The indexes are read
// here: git runs on nothing of them.
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
	room         int   // for their names, in bytes
}

// repository adds the files of one, and of its submodules.
func (t *tracked) repository(ctx context.Context, r *repository) error {
	if t.repositories++; t.repositories > maxRepositories {
		return fmt.Errorf("more than %d submodules", maxRepositories)
	}
	if r.gitDir == "" || !isGitDir(r.gitDir) {
		return nil // nothing to git, either
	}
	entries, err := t.index(ctx, r)
	if err != nil {
		return fmt.Errorf("%s: %w", r.gitDir, err)
	}
	for _, e := range entries {
		at := filepath.Join(r.dir, filepath.FromSlash(strings.TrimSuffix(e.name, "/")))
		below, err := filepath.Rel(t.dir, at)
		if e.name == "" || err != nil || below == "." || !filepath.IsLocal(below) {
			continue
		}
		if err := spend(&t.room, max(len(below)-len(e.name), 0)); err != nil { // the path of a submodule
			return fmt.Errorf("%s: %w", r.gitDir, err)
		}
		t.files = append(t.files, filepath.ToSlash(below))
		if e.mode != subMode {
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

// indexed is an entry of an index: a file, a submodule, or a directory of a sparse one.
type indexed struct {
	name string
	mode uint32
}

// index returns the entries of the index of a repository.
func (t *tracked) index(ctx context.Context, r *repository) ([]indexed, error) {
	hash := sha1.Size
	content, err := regular.Read(filepath.Join(r.common, "config"), MaxSettings)
	if err == nil {
		var entries []entry
		entries, err = t.list(ctx, content)
		if slices.Contains(entries, entry{"extensions.objectformat", "sha256"}) {
			hash = sha256.Size
		}
	}
	if err != nil && !missing(err) {
		return nil, err
	}
	entries, link, err := t.indexAt(filepath.Join(r.gitDir, "index"), hash)
	if missing(err) {
		return nil, nil
	}
	if err != nil || !slices.ContainsFunc(link[:min(len(link), hash)], func(b byte) bool { return b != 0 }) {
		return entries, err
	}
	shared, _, err := t.indexAt(filepath.Join(r.gitDir, "sharedindex."+hex.EncodeToString(link[:hash])), hash)
	if err != nil {
		return nil, err
	}
	return changed(shared, entries, link[hash:])
}

// changed is a shared index as a split one changes it. The first entries of that have no name: they
// are in the place of shared ones.
func changed(shared, entries []indexed, bitmaps []byte) ([]indexed, error) {
	deleted, rest, err := bits(bitmaps, len(shared))
	if err != nil {
		return nil, err
	}
	replaced, _, err := bits(rest, len(shared))
	if err != nil || len(replaced) > len(entries) {
		return nil, errors.Join(err, errRefused)
	}
	for i, at := range replaced {
		shared[at].mode = entries[i].mode
	}
	all := entries[len(replaced):]
	for i, e := range shared {
		if _, is := slices.BinarySearch(deleted, i); !is {
			all = append(all, e)
		}
	}
	return all, nil
}

// bits are the positions that a compressed bitmap of git's (EWAH) has, in order, and what follows
// it. Each must be less than a bound.
func bits(data []byte, bound int) (set []int, rest []byte, err error) {
	const head, word, tail = 8, 8, 4 // the number of bits and words; a word; where writing continues
	if len(data) == 0 {
		return nil, nil, nil
	}
	if len(data) < head {
		return nil, nil, errRefused
	}
	end := head + word*int64(binary.BigEndian.Uint32(data[4:]))
	if end+tail > int64(len(data)) {
		return nil, nil, errRefused
	}
	words, at := data[head:end], int64(0)
	next := func() uint64 {
		value := binary.BigEndian.Uint64(words)
		words = words[word:]
		return value
	}
	for len(words) > 0 {
		marker := next()
		run := int64(marker>>1&0xffffffff) * 64 // of one bit
		for i := range run {
			if marker&1 == 0 || at+i >= int64(bound) {
				break
			}
			set = append(set, int(at+i))
		}
		at += run
		for literal := marker >> 33; literal > 0 && len(words) > 0; literal-- {
			value := next()
			for i := range int64(64) {
				if value>>i&1 == 0 {
					continue
				}
				if at+i >= int64(bound) {
					return nil, nil, errRefused
				}
				set = append(set, int(at+i))
			}
			at += 64
		}
	}
	return set, data[end+tail:], nil
}

// indexAt reads an index whose hashes have so many bytes. link says of which shared index it is the
// change, by its id, and how.
func (t *tracked) indexAt(path string, hash int) (entries []indexed, link []byte, err error) {
	file, err := regular.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	if t.read += info.Size(); t.read > maxIndex {
		return nil, nil, fmt.Errorf("%s: the indexes are larger than %d bytes", path, maxIndex)
	}
	x := &indexReader{bufio.NewReaderSize(io.LimitReader(file, info.Size()-int64(hash)), maxIndexName), hash}
	if entries, err = x.entries(&t.room); err == nil {
		link, err = x.link()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, bufio.ErrBufferFull) {
		err = errRefused
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return entries, link, err
}

// indexReader reads an index without the hash at its end.
type indexReader struct {
	in   *bufio.Reader
	hash int
}

// entries reads the entries, whose names take up some of the room.
func (x *indexReader) entries(room *int) (entries []indexed, err error) {
	header := make([]byte, indexHeader)
	if _, err := io.ReadFull(x.in, header); err != nil {
		return nil, err
	}
	version, left := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[8:])
	if string(header[:4]) != "DIRC" || version < 2 || version > prefixed {
		return nil, errRefused
	}
	last := indexed{}
	for ; left > 0; left-- {
		if last, err = x.entry(version == prefixed, last.name); err != nil {
			return nil, err
		}
		if err := spend(room, len(last.name)+entryStat); err != nil { // an entry of a list costs about as much
			return nil, err
		}
		entries = append(entries, last)
	}
	return entries, nil
}

// spend takes up so many bytes of the room for names.
func spend(room *int, bytes int) error {
	if *room -= bytes; *room < 0 {
		return fmt.Errorf("the names of its files have more than %d bytes", maxAnswer)
	}
	return nil
}

// entry reads an entry behind another one.
func (x *indexReader) entry(isPrefixed bool, before string) (e indexed, err error) {
	fixed := make([]byte, entryStat+x.hash+2)
	if _, err := io.ReadFull(x.in, fixed); err != nil {
		return e, err
	}
	size, flags := len(fixed), binary.BigEndian.Uint16(fixed[entryStat+x.hash:])
	if flags&extended != 0 {
		if _, err := x.in.Discard(2); err != nil {
			return e, err
		}
		size += 2
	}
	kept := 0 // of the name before
	if isPrefixed {
		strip, err := x.varint()
		if err != nil || strip > len(before) {
			return e, errors.Join(err, errRefused)
		}
		kept = len(before) - strip
	}
	name, err := x.in.ReadSlice(0)
	if err != nil {
		return e, err
	}
	size += len(name)
	e = indexed{before[:kept] + string(name[:len(name)-1]), binary.BigEndian.Uint32(fixed[entryMode:])}
	if length := int(flags & nameMask); length != min(len(e.name), nameMask) {
		return e, errRefused
	}
	if padding := -size & (paddedEntry - 1); !isPrefixed {
		_, err = x.in.Discard(padding)
	}
	return e, err
}

// varint reads a number as git writes it.
func (x *indexReader) varint() (n int, err error) {
	for first := true; ; first = false {
		b, err := x.in.ReadByte()
		if err != nil {
			return 0, err
		}
		if !first {
			n = (n + 1) << 7
		}
		if n += int(b & 0x7f); n > maxIndex {
			return 0, errRefused
		}
		if b&0x80 == 0 {
			return n, nil
		}
	}
}

// link reads the extensions behind the entries: which shared index this one is the change of, nil
// for none. git may ignore the others, but not one that it does not know and whose name says that.
func (x *indexReader) link() (link []byte, err error) {
	for {
		var head [8]byte
		if _, err := io.ReadFull(x.in, head[:]); errors.Is(err, io.EOF) {
			return link, nil
		} else if err != nil {
			return nil, err
		}
		name, size := string(head[:4]), int64(binary.BigEndian.Uint32(head[4:]))
		switch {
		case name == "link" && link == nil && size >= int64(x.hash) && size <= maxLinked:
			link = make([]byte, size)
			_, err = io.ReadFull(x.in, link)
		case name == "sdir", 'A' <= name[0] && name[0] <= 'Z':
			_, err = io.CopyN(io.Discard, x.in, size)
		default:
			err = errRefused
		}
		if err != nil {
			return nil, err
		}
	}
}
