package sandbox

import "time"

// FileType says what something in a workspace is: file, dir, symlink or other.
type FileType string

// The file types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// Entry is one name in a directory.
type Entry struct {
	Name string
	Type FileType
	Size int64 // in bytes; 0 when it is not a file
}

// ListRequest asks for the entries of a directory; "" is the workspace.
type ListRequest struct{ Path string }

// ListResult is the entries of a directory.
type ListResult struct {
	Entries []Entry
	Total   int // more than len(Entries) when cut at [MaxFound]
}

// StatRequest asks what is at a path; "" is the workspace.
type StatRequest struct{ Path string }

// StatResult is what is at a path.
type StatResult struct {
	Exists bool
	Type   FileType
	Size   int64 // in bytes; 0 when it is not a file
}

// TreeRequest asks for a directory and what is below it.
type TreeRequest struct {
	Path     string // "" is the workspace
	Depth    int    // levels shown, from 1; 0 and less means 3
	Limit    int    // entries; 0 and less, and more than [MaxFound], means [MaxFound]
	NoIgnore bool   // shows what .gitignore files exclude
}

// TreeEntry is one line of a tree.
type TreeEntry struct {
	Path string // relative to the workspace
	Type FileType
	Size int64 // in bytes; 0 when it is not a file
	// Hidden is how many entries of a directory are not shown because they are too deep.
	Hidden int
}

// TreeResult is a directory's tree: each directory before what is in it, sorted by name.
type TreeResult struct {
	Entries []TreeEntry
	Total   int // entries within the depth; more than len(Entries) when cut
	Ignored int // entries that .gitignore files exclude
	Skipped int // directories that could not be read
}

// GlobRequest asks for files by their paths.
type GlobRequest struct {
	// Pattern is a glob with "**", "{a,b}" and "[a-z]", matched against the path below Path.
	Pattern string
	// Names has a pattern without a slash match base names at every depth.
	Names    bool
	Regular  bool   // leaves out symlinks and special files
	Path     string // directory to start from; "" is the workspace
	Limit    int    // paths; 0 and less, and more than [MaxFound], means [MaxFound]
	NoIgnore bool   // finds what .gitignore files exclude, too
}

// GlobResult is the files that match, sorted by path: everything but directories.
type GlobResult struct {
	Paths   []string // relative to the workspace
	Total   int      // more than len(Paths) when cut
	Skipped int      // directories that could not be read
	Ignored int      // entries that .gitignore files exclude, whatever their names
}

// SearchRequest asks for matching lines.
type SearchRequest struct {
	Pattern    string // RE2 syntax
	IgnoreCase bool
	Path       string   // file or directory; "" is the workspace
	Glob       string   // keeps files whose path below Path, or base name when the glob has no slash, matches
	NoIgnore   bool     // searches what .gitignore files exclude, too
	Limit      int      // matches; 0 and less, and more than [MaxFound], means [MaxFound]
	Among      []string // when set, only these of the files are searched; all are counted
	// Patience is after what time a search ends with what it has found; 0 is never.
	Patience time.Duration
}

// Match is one matching line.
type Match struct {
	Path string
	Line int    // from 1
	Text string // without its line end, valid UTF-8
}

// SearchResult is the matching lines, sorted by path and line.
type SearchResult struct {
	Matches []Match
	Total   int  // matching lines; more than len(Matches) when cut
	Files   int  // searched; fewer than there are when Stopped
	Skipped int  // too big or unreadable
	Binary  int  // not searched because they are not text
	Ignored int  // entries that .gitignore files exclude
	Stopped bool // Patience was over before everything was searched
}
