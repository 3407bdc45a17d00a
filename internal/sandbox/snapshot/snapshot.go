// Package snapshot keeps what a workspace contains, and brings the changes of one into a directory
// that may have changed too.
//
//	directory ──Save────► Tree + Bodies      what is there; contents that are known are not stored
//	Tree ──────Restore──► directory          the same bytes, modes and links
//	Tree ──────Sync─────► directory, with the Manifest of the last Sync of the two:
//
//	    tree against manifest      directory against manifest   then
//	    same                       anything                     left alone
//	    changed or new             same                         written
//	    missing                    same                         removed
//	    changed, new or missing    changed                      conflict, left alone
//
// except for the paths of [Options].Protect, which are never changed. What is as in the
// manifest is not fetched.
//
// A tree has directories, regular files and symbolic links. Other kinds of files are left out; hard
// links become files of their own. Names and link targets are bytes, not text. Contents are in
// [Bodies], compressed with zstd.
//
// Every path is resolved by an [os.Root]: whatever a tree says, and even if another program changes
// the directory at the same time, nothing outside of it is read or written. A tree of others is
// hostile until [Tree.Validate] accepts it, and each content is checked against its sum.
//
// Memory grows with the number and length of names, never with contents. A save of a directory that
// changes meanwhile has the files as they were read; the next [Save] finds the changes.
package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Defaults of [Limits], which are those of workspaces.
const (
	DefaultMaxEntries = 1_000_000
	DefaultMaxBytes   = 64 << 30
)

// Bounds that are not configurable, in bytes.
const (
	// MaxPath is the longest path and the longest target of a symbolic link.
	MaxPath = 4096
	// MaxNames is the most that the paths and targets of one tree add up to.
	MaxNames = 64 << 20
)

// What files may have with their holes, in bytes, so that every directory of this size can be
// brought back: more than [DefaultMaxBytes], which are without holes.
const (
	// MaxSize is the most of one file: what the file systems of Linux can have.
	MaxSize = 16<<40 - 4<<10
	// MaxSizes is the most of all files of a tree.
	MaxSizes = 64 << 40
)

// MaxParts is the most parts of one file: four times what [DefaultMaxBytes] without holes have.
const MaxParts = 1 << 16

// partsPerEntry is how many parts the files of a tree have, at most, for each entry of its limit.
const partsPerEntry = 2

// Manifest says what a directory contained: slash-separated paths relative to it, the
// directory itself excepted. It can be kept as JSON as long as names are UTF-8.
type Manifest map[string]Entry

// Entry is what is at one path. Entries are equal when == says so.
type Entry struct {
	// Type is [protocol.TypeFile], [protocol.TypeDir] or [protocol.TypeSymlink].
	Type protocol.FileType `json:"type"`
	// Mode is the permission bits; 0 for a symbolic link.
	Mode fs.FileMode `json:"mode,omitempty"`
	// Size is in bytes; 0 when it is not a file.
	Size int64 `json:"size,omitempty"`
	// SHA256 of the content, in hex; of more than [MaxPart] bytes that of the digests of each
	// MaxPart. Empty when it is not a file.
	SHA256 string `json:"sha256,omitempty"`
	// Target is what a symbolic link says, as it stands there.
	Target string `json:"target,omitempty"`
}

// Limits bound a tree.
type Limits struct {
	// MaxEntries is the most files, directories and links; 0 and less means
	// [DefaultMaxEntries].
	MaxEntries int
	// MaxBytes is the most that the contents of all files add up to; 0 and less means
	// [DefaultMaxBytes].
	MaxBytes int64
}

// Options of [Save], [Sync] and [Merge]; nil means the defaults.
type Options struct {
	// Skip names paths that do not take part: they are neither saved, nor written, nor removed. A
	// directory is skipped with all that is below it.
	Skip func(path string, isDir bool) bool
	// Limits bound the tree that [Save] makes. Holes of files do not count.
	Limits Limits
	// Only are the paths that may have changed since the last [Save], each with all that is below
	// it; nil is everything. Directories that they are in are looked at themselves.
	Only []string
	// Protect are paths, in the form of isolation.CleanProtected, that [Sync] does not change, with
	// all that is below them. Names that a file system may treat as the same, such as .GIT and
	// .git, count as the same.
	Protect []string
}

// withDefaults returns a copy that has every field set.
func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Skip, opts.Limits = skipping(opts.Skip), opts.Limits.withDefaults()
	return opts
}

// skipping is a function that names paths that do not take part; nil names none.
func skipping(skip func(string, bool) bool) func(string, bool) bool {
	if skip == nil {
		return func(string, bool) bool { return false }
	}
	return skip
}

// withDefaults returns a copy that has every field set.
func (l Limits) withDefaults() Limits {
	return Limits{
		MaxEntries: cmp.Or(max(l.MaxEntries, 0), DefaultMaxEntries),
		MaxBytes:   cmp.Or(max(l.MaxBytes, 0), DefaultMaxBytes),
	}
}

// What can be wrong with a tree or a directory. They come wrapped in an [*Error].
var (
	// ErrUnsafe says that a tree has an entry that no honest [Save] makes.
	ErrUnsafe = errors.New("unsafe entry")
	// ErrLimit says that a limit was exceeded; see [Limits].
	ErrLimit = errors.New("limit exceeded")
	// ErrCorrupt says that a content is damaged, cut off, or another.
	ErrCorrupt = errors.New("corrupt content")
)

// Error says what is wrong with an entry.
type Error struct {
	// Kind is [ErrUnsafe], [ErrLimit] or [ErrCorrupt].
	Kind error
	// Entry is the path; "" when the error is not with one entry.
	Entry string
	// Reason completes the sentence.
	Reason string
}

// Error implements the error interface.
func (e *Error) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("%v: %s", e.Kind, e.Reason)
	}
	return fmt.Sprintf("%v: %.200q: %s", e.Kind, e.Entry, e.Reason)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// ErrorType returns unsafe_entry, limit_exceeded or corrupt_content.
func (e *Error) ErrorType() string {
	switch {
	case errors.Is(e.Kind, ErrUnsafe):
		return "unsafe_entry"
	case errors.Is(e.Kind, ErrLimit):
		return "limit_exceeded"
	default:
		return "corrupt_content"
	}
}

func unsafef(name, format string, args ...any) error {
	return &Error{Kind: ErrUnsafe, Entry: name, Reason: fmt.Sprintf(format, args...)}
}

func corruptf(format string, args ...any) error {
	return &Error{Kind: ErrCorrupt, Reason: fmt.Sprintf(format, args...)}
}

func limitf(name, format string, args ...any) error {
	return &Error{Kind: ErrLimit, Entry: name, Reason: fmt.Sprintf(format, args...)}
}
