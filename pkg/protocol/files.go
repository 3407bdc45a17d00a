package protocol

import (
	"encoding/json"
)

// Guard is the check before a session changes a file. Workers remember what each session has seen
// of a sandbox's files.
type Guard string

// The guards. "" lets a session change what it never saw.
const (
	// GuardChanged refuses to change a file that is not as the session last read or wrote it.
	GuardChanged Guard = "changed"
	// GuardRead refuses that, and to change an existing file that the session never read or wrote.
	GuardRead Guard = "read"
	// GuardAbsent refuses to change a file that exists.
	GuardAbsent Guard = "absent"
)

// FilesRead reads a text file, whole or some of its lines.
type FilesRead struct {
	Path string `json:"path"`
	// Offset is the first line, from 1; 0 means 1.
	Offset int `json:"offset,omitempty"`
	// Limit is how many lines; 0 means as many as fit.
	Limit int `json:"limit,omitempty"`
	// MaxBytes is the largest file that is read; 0 means as large as the worker reads.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// Encoding is the IANA name, or a usual alias, of the encoding of the file's text, as in
	// "latin1"; "" has the worker find it out.
	Encoding string `json:"encoding,omitempty"`
	// Raw says that the reader wants bytes, whatever they are. It comes back in the result.
	Raw bool `json:"raw,omitempty"`
	// Guard has the worker remember what the session has seen.
	Guard Guard `json:"guard,omitempty"`
}

// FilesWrite replaces a file, making its parent directories.
type FilesWrite struct {
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// ExpectSHA256 is the digest that the file must have, in hex; "" is not checked.
	ExpectSHA256 string `json:"expect_sha256,omitempty"`
	Guard        Guard  `json:"guard,omitempty"`
	// Mode has the permissions of the file; 0 keeps those that it has, and makes a new one with
	// 0644.
	Mode uint32 `json:"mode,omitempty"`
	// Raw says that the file gets these bytes, whatever they are and were. Otherwise a text keeps
	// its byte order mark, and a notebook must be one.
	Raw bool `json:"raw,omitempty"`
}

// FilesRemove removes a file or a symbolic link, and no directory.
type FilesRemove struct {
	Path string `json:"path"`
	// ExpectSHA256 is as of [FilesWrite].
	ExpectSHA256 string `json:"expect_sha256,omitempty"`
}

// FilesEdit changes a file: Old becomes New, or Edits are made one after another, or
// Patch is applied. Old must occur exactly once, unless ReplaceAll or First.
type FilesEdit struct {
	Path       string `json:"path"`
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	// First replaces the first of several occurrences of Old; it says nothing about Edits.
	First bool       `json:"first,omitempty"`
	Edits []FileEdit `json:"edits,omitempty"`
	// BestEffort makes those of Edits that can be made; else it is all or none.
	BestEffort bool `json:"best_effort,omitempty"`
	// Patch is a unified diff; its line numbers may be wrong, its context may not.
	Patch string `json:"patch,omitempty"`
	// MaxBytes is the largest file that is changed; 0 means as large as the worker changes.
	MaxBytes     int64  `json:"max_bytes,omitempty"`
	ExpectSHA256 string `json:"expect_sha256,omitempty"`
	Guard        Guard  `json:"guard,omitempty"`
}

// FileEdit is one of several replacements in a file.
type FileEdit struct {
	Old        string `json:"old"`
	New        string `json:"new"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
}

// FilesJSONRead reads a JSON document, or one place of it.
type FilesJSONRead struct {
	Path string `json:"path"`
	// Query is a JSON pointer; "" is the whole document.
	Query string `json:"query,omitempty"`
	Guard Guard  `json:"guard,omitempty"`
}

// FilesJSONWrite replaces a JSON document, or one place of it.
type FilesJSONWrite struct {
	Path         string          `json:"path"`
	Query        string          `json:"query,omitempty"`
	Content      json.RawMessage `json:"content"`
	ExpectSHA256 string          `json:"expect_sha256,omitempty"`
	Guard        Guard           `json:"guard,omitempty"`
}

// FilesExists asks whether something is at a path.
type FilesExists struct {
	Path string `json:"path"`
	// Follow asks about what a symbolic link leads to; nothing exists outside of the workspace.
	Follow bool `json:"follow,omitempty"`
}

// FilesList lists a directory.
type FilesList struct {
	Path string `json:"path,omitempty"`
	// Follow gives symbolic links the type of what they lead to in the workspace.
	Follow bool `json:"follow,omitempty"`
}

// FilesTree lists a directory and what is below it.
type FilesTree struct {
	Path string `json:"path,omitempty"`
	// Depth is how many levels; 0 means 3.
	Depth int `json:"depth,omitempty"`
	// Limit is how many entries; 0 means as many as the worker lists.
	Limit int `json:"limit,omitempty"`
	// NoIgnore also lists what .gitignore files exclude, and what is in directories of packages and
	// caches, such as node_modules.
	NoIgnore bool `json:"no_ignore,omitempty"`
}

// FilesGlob finds files by their paths.
type FilesGlob struct {
	// Pattern has "**", "{a,b}" and "[a-z]", and is matched against the path below Path.
	Pattern string `json:"pattern"`
	// Names has a pattern without a slash match base names at every depth.
	Names    bool   `json:"names,omitempty"`
	Path     string `json:"path,omitempty"`
	Limit    int    `json:"limit,omitempty"`
	NoIgnore bool   `json:"no_ignore,omitempty"`
	// NoGenerated leaves out directories of packages and caches also with NoIgnore.
	NoGenerated bool `json:"no_generated,omitempty"`
}

// FilesSearch finds the lines that match a regular expression (RE2 syntax).
type FilesSearch struct {
	Pattern    string `json:"pattern"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	// Path is the file or directory to search.
	Path string `json:"path,omitempty"`
	// Glob keeps only files whose path below Path (or base name, when the glob
	// has no slash) matches; "" keeps all.
	Glob     string `json:"glob,omitempty"`
	Limit    int    `json:"limit,omitempty"`
	NoIgnore bool   `json:"no_ignore,omitempty"`
	// Context is how many lines before and after each match are returned, too.
	Context int `json:"context,omitempty"`
}
