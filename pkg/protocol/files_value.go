package protocol

import (
	"encoding/json"
	"errors"
	"unicode/utf8"
)

// FilesReadResult answers [FilesRead].
type FilesReadResult struct {
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// SHA256 is of the whole file, in hex.
	SHA256 string `json:"sha256"`
	// Bytes is the size of the whole file.
	Bytes int64 `json:"bytes"`
	// FirstLine is the number of the first line in Content, from 1; 0 when there is none.
	FirstLine  int `json:"first_line"`
	Lines      int `json:"lines"`
	TotalLines int `json:"total_lines"`
	// LineBytes is the size of a line, without its line end, of which not even all is in
	// Content, because it alone is more than fits; else 0.
	LineBytes int64 `json:"line_bytes,omitempty"`
	// Truncated says that lines after the last one in Content were asked for but did not fit.
	Truncated bool `json:"truncated,omitempty"`
	// Binary says that the file is not text, as far as is known; lines are not counted then.
	Binary bool `json:"binary,omitempty"`
	// Encoding is the name of the file's own, as in "UTF-16LE"; empty for UTF-8. Content is UTF-8,
	// unless it is raw.
	Encoding string `json:"encoding,omitempty"`
	// BOM says that the file begins with a byte order mark, which is not in Content unless that is
	// raw.
	BOM bool `json:"bom,omitempty"`
	// LineEnds is "CRLF" or "mixed"; empty when no line ends in CRLF.
	LineEnds string `json:"line_ends,omitempty"`
	// Image is the media type of an image or document (PDF) that models take; Content is all of it
	// unless Truncated.
	Image string `json:"image,omitempty"`
	Raw   bool   `json:"raw,omitempty"`
	// Cells is how many cells a Jupyter notebook has, and 0 for every other file. Content is then
	// the text of its cells, which edits change.
	Cells int `json:"cells,omitempty"`
}

// FilesWriteResult answers [FilesWrite].
type FilesWriteResult struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	Created bool   `json:"created"`
	// Diff is a short unified diff of what changed; empty for binary content.
	Diff string `json:"diff,omitempty"`
	// Links is how many other names the file had, as hard links: they keep the old content.
	Links int `json:"links,omitempty"`
}

// FilesRemoveResult answers [FilesRemove].
type FilesRemoveResult struct {
	Path string `json:"path"`
}

// FilesEditResult answers [FilesEdit].
type FilesEditResult struct {
	Path         string `json:"path"`
	Replacements int    `json:"replacements"`
	Bytes        int64  `json:"bytes"`
	SHA256       string `json:"sha256"`
	Diff         string `json:"diff,omitempty"`
	// Links is how many other names the file had, as hard links: they keep the old content.
	Links int `json:"links,omitempty"`
	// Outcomes are what became of each edit, or of each hunk of a patch.
	Outcomes []EditOutcome `json:"outcomes,omitempty"`
}

// EditOutcome is what became of one edit or hunk.
type EditOutcome struct {
	Replacements int `json:"replacements"`
	// Line is where the first replacement was made, from 1; 0 when there was none.
	Line int `json:"line,omitempty"`
	// Offset is how many lines further down a hunk was applied than its header says.
	Offset int `json:"offset,omitempty"`
	// Error is why the edit was not made.
	Error *Error `json:"error,omitempty"`
}

// FilesJSONReadResult answers [FilesJSONRead].
type FilesJSONReadResult struct {
	Path  string `json:"path"`
	Query string `json:"query,omitempty"`
	// Value is the text as it is in the file.
	Value Bytes `json:"value"`
	// JSONType is object, array, string, number, boolean or null.
	JSONType string `json:"json_type"`
	// Length is how many keys an object or items an array has.
	Length int `json:"length,omitempty"`
	// Bytes is the size of the file, SHA256 its digest in hex.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// FilesJSONWriteResult answers [FilesJSONWrite].
type FilesJSONWriteResult struct{ FilesWriteResult }

// FileType says what is at a path.
type FileType string

// Every file type.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FilesExistsResult answers [FilesExists].
type FilesExistsResult struct {
	Path   string `json:"path"`
	Exists bool   `json:"exists"`
	// Type is not "type" on the wire: that is the name of the value itself.
	Type FileType `json:"file_type,omitempty"`
	Size int64    `json:"size,omitempty"`
}

// DirEntry is one name in a directory.
type DirEntry struct {
	Name string   `json:"name"`
	Type FileType `json:"type"`
	Size int64    `json:"size"`
}

// FilesListResult answers [FilesList]; entries are sorted by name.
type FilesListResult struct {
	Path    string     `json:"path"`
	Entries []DirEntry `json:"entries"`
	// Total is how many entries there are; more than len(Entries) when cut.
	Total int `json:"total"`
}

// TreeEntry is one line of a tree.
type TreeEntry struct {
	Path string   `json:"path"` // relative to the workspace
	Type FileType `json:"type"`
	Size int64    `json:"size,omitempty"`
	// Hidden is how many entries of a directory are too deep to be listed.
	Hidden int `json:"hidden,omitempty"`
}

// FilesTreeResult answers [FilesTree]; each directory stands before what is in it.
type FilesTreeResult struct {
	Path    string      `json:"path"`
	Entries []TreeEntry `json:"entries"`
	// Total is how many entries there are within the depth; more than len(Entries) when cut.
	Total int `json:"total"`
	// Ignored is how many entries .gitignore files exclude, Skipped how many directories
	// could not be read.
	Ignored int `json:"ignored,omitempty"`
	Skipped int `json:"skipped,omitempty"`
	// GeneratedPaths are the first three of the directories of packages and caches that were left
	// out, such as node_modules; Generated is how many they are.
	Generated      int      `json:"generated,omitempty"`
	GeneratedPaths []string `json:"generated_paths,omitempty"`
}

// FilesGlobResult answers [FilesGlob]; paths are relative to the workspace, and sorted.
type FilesGlobResult struct {
	Paths []string `json:"paths"`
	// Total is how many files match; more than len(Paths) when cut.
	Total int `json:"total"`
	// Skipped is how many directories could not be read, Ignored how many entries
	// .gitignore files exclude.
	Skipped int `json:"skipped,omitempty"`
	Ignored int `json:"ignored,omitempty"`
	// GeneratedPaths are the first three of the directories of packages and caches that were left
	// out, such as node_modules; Generated is how many they are.
	Generated      int      `json:"generated,omitempty"`
	GeneratedPaths []string `json:"generated_paths,omitempty"`
}

// Match is one matching line.
type Match struct {
	Path string `json:"path"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"` // up to 500 bytes of the line
	// Cut is how many bytes of the line are not in Text.
	Cut int `json:"cut,omitempty"`
	// Before and After are the lines around it that were asked for and that no other match has,
	// each cut at 500 bytes.
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

// FilesSearchResult answers [FilesSearch]; matches are sorted by path and line.
type FilesSearchResult struct {
	Matches []Match `json:"matches"`
	// Total is how many lines match; more than len(Matches) when cut.
	Total int `json:"total"`
	// Stopped says that not all was searched, because that took too long.
	Stopped bool `json:"stopped,omitempty"`
	// Files counts the files that were searched, Skipped those that could not be (too big or
	// unreadable), and Binary those that contain no text.
	Files   int `json:"files"`
	Skipped int `json:"skipped"`
	Binary  int `json:"binary,omitempty"`
	// SkippedPaths and BinaryPaths name the first three of them; a directory that could not be read
	// counts as one of Skipped.
	SkippedPaths []string `json:"skipped_paths,omitempty"`
	BinaryPaths  []string `json:"binary_paths,omitempty"`
	// Ignored is how many entries .gitignore files exclude.
	Ignored int `json:"ignored,omitempty"`
	// GeneratedPaths are the first three of the directories of packages and caches that were left
	// out, such as node_modules; Generated is how many they are.
	Generated      int      `json:"generated,omitempty"`
	GeneratedPaths []string `json:"generated_paths,omitempty"`
}

// Bytes is content that is usually text. In JSON it is a string when it is UTF-8
// with few control characters, and {"base64": "..."} otherwise: readable, never
// changed on the way, and never more than twice as long.
type Bytes []byte

type base64Bytes struct {
	Base64 *[]byte `json:"base64"`
}

// MarshalJSON implements [json.Marshaler].
func (b Bytes) MarshalJSON() ([]byte, error) {
	if b.readable() {
		return json.Marshal(string(b))
	}
	raw := []byte(b)
	return json.Marshal(base64Bytes{Base64: &raw})
}

// readable reports whether a JSON string is a good form of b: what escapes add must
// not be more than b itself.
func (b Bytes) readable() bool {
	if !utf8.Valid(b) {
		return false
	}
	added := 0
	for _, c := range b {
		switch {
		case c == '"', c == '\\', c == '\n', c == '\t', c == '\r': // two bytes, as in \n
			added++
		case c < ' ', c == '<', c == '>', c == '&': // six, as in \u0000
			added += 5
		}
	}
	return added <= len(b)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*b = Bytes(s)
		return nil
	}
	var raw base64Bytes
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if raw.Base64 == nil {
		return errors.New(`content: want a string or {"base64": "..."}`)
	}
	*b = *raw.Base64
	return nil
}
