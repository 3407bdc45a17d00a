package snapshot

import (
	"cmp"
	"io/fs"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Defaults of [Limits].
const (
	DefaultMaxEntries = 200_000
	DefaultMaxBytes   = 4 << 30
)

// Bounds that are not configurable, in bytes.
const (
	// MaxPath is the longest path and the longest target of a symbolic link.
	MaxPath = 4096
	// MaxNames is the most that the paths and targets of one archive add up to.
	MaxNames = 64 << 20
)

// Manifest says what a directory contained: slash-separated paths relative to it, the
// directory itself excepted. It can be kept as JSON as long as names are UTF-8.
type Manifest map[string]Entry

// Entry is what is at one path. Entries are equal when == says so.
type Entry struct {
	// Type is [sandbox.TypeFile], [sandbox.TypeDir] or [sandbox.TypeSymlink].
	Type sandbox.FileType `json:"type"`
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

// Stats counts what was packed or unpacked.
type Stats struct {
	// Files is the number of regular files.
	Files int
	// Bytes is the size of their contents.
	Bytes int64
	// LeftOut is how many FIFOs, sockets and devices were not packed.
	LeftOut int
	// Changed is how many files were written to while they were packed.
	Changed int
}

// Limits bound an archive, when it is made and when it is read.
type Limits struct {
	// MaxEntries is the most files, directories and links; 0 and less means
	// [DefaultMaxEntries].
	MaxEntries int
	// MaxBytes is the most that the contents of all files add up to; 0 and less means
	// [DefaultMaxBytes].
	MaxBytes int64
}

// Options of [Pack], [Unpack] and [Sync]; nil means the defaults.
type Options struct {
	// Limits bound the archive.
	Limits Limits
	// Skip names paths that do not take part: they are not packed, not unpacked, and
	// neither written nor removed. A directory is skipped with all that is below it.
	Skip func(path string, isDir bool) bool
	// Protect are places that [Sync] leaves as they are, whatever the archive has there, with all
	// that is below them: paths in the form of [sandbox.CleanProtected]. What a file system may
	// take for the same name, such as .GIT for .git, counts too. Pack and Unpack do not look at it.
	Protect []string
}

// withDefaults returns a copy that has every field set.
func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Limits.MaxEntries = cmp.Or(max(opts.Limits.MaxEntries, 0), DefaultMaxEntries)
	opts.Limits.MaxBytes = cmp.Or(max(opts.Limits.MaxBytes, 0), DefaultMaxBytes)
	if opts.Skip == nil {
		opts.Skip = func(string, bool) bool { return false }
	}
	return opts
}
