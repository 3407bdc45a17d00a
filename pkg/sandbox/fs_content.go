package sandbox

// ReadRequest asks for a file.
type ReadRequest struct {
	Path   string
	Offset int // first line, from 1; 0 and less means 1
	Limit  int // number of lines; 0 and less means as many as fit
	// MaxSize is the largest file that is read; 0 and more than it means [MaxReadSize].
	MaxSize int64
	// Raw reads the bytes of the file as they are, in whatever encoding.
	Raw bool
}

// What [ReadResult].LineEnds says.
const (
	LineEndsCRLF  = "CRLF"
	LineEndsMixed = "mixed"
)

// ReadResult is what Read found.
type ReadResult struct {
	// Content is text in UTF-8 without a byte order mark, with the line ends of the file. It is the
	// bytes of the file when they were asked for, and of one that is Binary.
	Content    []byte
	SHA256     string // of the whole file, in hex
	Size       int64  // of the whole file
	FirstLine  int    // number of the first line in Content, from 1; 0 when there is none
	Lines      int    // lines in Content
	TotalLines int
	// LineBytes is the size of a line, without its line end, of which not even all is in
	// Content, because it alone is more than fits; else 0.
	LineBytes int64
	Truncated bool // lines that were asked for did not fit
	Binary    bool // is not text, as far as is known; not counted in lines
	// Encoding is the name of that of the file, as in "UTF-16LE"; "" is UTF-8.
	Encoding string
	BOM      bool   // the file begins with a byte order mark
	LineEnds string // [LineEndsCRLF] or [LineEndsMixed]; "" when no line ends in CRLF
	// Image is the media type, as in "image/png", of an image that models take; its
	// Content is whole unless Truncated.
	Image string
}

// ReadAtRequest asks for bytes of a file.
type ReadAtRequest struct {
	Path  string
	From  int64 // the first byte, from 0
	Count int   // 0 and less, and more than [MaxChunk], means [MaxChunk]
}

// ReadAtResult is some bytes of a file: fewer than were asked for only where it ends.
type ReadAtResult struct{ Content []byte }

// Expect says what a file must be before it is changed. The zero value is no demand.
type Expect struct {
	// SHA256 is the digest of the file's content, in hex; "" is not checked.
	SHA256 string
	// Absent demands that there is no file, because its content is not known.
	Absent bool
}

// WriteRequest asks for a file to be made or replaced.
type WriteRequest struct {
	Path    string
	Content []byte
	Expect  Expect
}

// WriteResult is what Write or WriteJSON did.
type WriteResult struct {
	Size    int64
	SHA256  string
	Created bool
	Diff    string // short unified diff; empty for binary content
	// Links is how many other names the file had, as hard links: they keep the old content.
	Links int
}

// Edit is one replacement in a file. Line ends are not compared, and new lines get those of the
// file, unless line ends are all that differs between Old and New.
type Edit struct {
	Old, New string
	All      bool // every occurrence; else Old must occur exactly once
	First    bool // the first occurrence, however many there are
}

// EditRequest asks for a file to be changed: by Edits, one after another, each in
// what those before it left, or by Patch. Exactly one of them is set. They are for the text of the
// file, whatever its encoding; when they are not UTF-8 they are for its bytes.
type EditRequest struct {
	Path  string
	Edits []Edit
	// BestEffort makes the edits that can be made; else it is all or none.
	BestEffort bool
	// Patch is a unified diff. Its context must be in the file as it is; line
	// numbers may be wrong. Names of files in it are ignored.
	Patch  string
	Expect Expect
	// MaxSize is the largest file that is changed; 0 and more than it means [MaxFileSize].
	MaxSize int64
}

// EditResult is what Edit did.
type EditResult struct {
	Outcomes     []EditOutcome // one for each of Edits, or for each hunk of Patch
	Replacements int           // of all outcomes
	Size         int64
	SHA256       string
	Diff         string
	Links        int // see [WriteResult]
}

// EditOutcome is what became of one edit or hunk.
type EditOutcome struct {
	Replacements int
	Line         int    // of the first replacement, from 1, when it was made
	Offset       int    // how many lines further down a hunk was applied than its header says
	Fault        *Fault // why it was not made; only with BestEffort
}

// ReadJSONRequest asks for a JSON document.
type ReadJSONRequest struct {
	Path  string
	Query string // JSON pointer (RFC 6901); "" is the whole document
}

// ReadJSONResult is a JSON value.
type ReadJSONResult struct {
	Value  []byte // the text as it is in the file
	Type   string // object, array, string, number, boolean or null
	Length int    // keys of an object, items of an array, else 0
	Size   int64  // of the file
	SHA256 string
}

// WriteJSONRequest asks for a JSON document to be written.
type WriteJSONRequest struct {
	Path string
	// Query is the place to replace, a JSON pointer (RFC 6901); "" is the whole
	// document. The last step may be a key that an object does not have yet, or the
	// end of an array ("-" or its length).
	Query string
	// Content is JSON text.
	Content []byte
	Expect  Expect
}
