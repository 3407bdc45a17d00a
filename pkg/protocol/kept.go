package protocol

// Kept says that the fleet keeps a result whole until its session is removed, because it
// may be longer than what a reader is shown of it at once: see [ResultRead].
type Kept struct {
	// Lines is how many lines of a list, or of a file, are kept; 0 when it is neither.
	Lines int `json:"lines,omitempty"`
	// Truncated says that there was more than a worker keeps.
	Truncated bool `json:"truncated,omitempty"`
}

// ResultRead reads the result of an earlier call of the same session, line by
// line. It touches no sandbox: its resources may be empty but for a lane of its own.
type ResultRead struct {
	CallID CallID `json:"call_id"`
	// Part is text: what the call returned as one would read it, such as the content of a file or
	// one line for each entry of a list; or stdout, stderr, or output (both, in the order in which
	// they came) of a command; or value: what the call returned, as JSON. "" is output of a command
	// and text of anything else.
	Part string `json:"part,omitempty"`
	// Offset is the first line, from 1; 0 means 1.
	Offset int `json:"offset,omitempty"`
	// Column is the first byte of that line, from 1; 0 means 1.
	Column int64 `json:"column,omitempty"`
	// Limit is how many lines; 0 means as many as fit.
	Limit int `json:"limit,omitempty"`
}

// The parts of a result.
const (
	PartText   = "text"
	PartStdout = "stdout"
	PartStderr = "stderr"
	PartOutput = "output"
	PartValue  = "value"
)

// ResultReadResult answers [ResultRead].
type ResultReadResult struct {
	CallID CallID `json:"call_id"`
	Part   string `json:"part"`
	// Content is lines, each whole, but that the first begins at FirstColumn, and ends before
	// its end when it alone is more than fits.
	Content Bytes `json:"content"`
	// Bytes is the size of the whole part.
	Bytes int64 `json:"bytes"`
	// FirstLine is the number of the first line in Content, from 1; 0 when there is none.
	FirstLine int `json:"first_line"`
	// FirstColumn is the number of its first byte in that line, from 1; 0 means 1.
	FirstColumn int64 `json:"first_column,omitempty"`
	// LineBytes is the size of the first line, without its line end.
	LineBytes  int64 `json:"line_bytes,omitempty"`
	Lines      int   `json:"lines"`
	TotalLines int   `json:"total_lines"`
	// Truncated says that the part itself is not kept whole.
	Truncated bool `json:"truncated,omitempty"`
}

// Kind implements [Payload].
func (ResultRead) Kind() Kind { return KindResultRead }

// ValueKind implements [Value].
func (ResultReadResult) ValueKind() Kind { return KindResultRead }

// What is kept of a session are objects in the fleet's store: see [Fleet.KeptBucket].
// The second part of their names is the session's id.

// ImageBlob is the name of an image that a journal refers to; sum is the SHA-256 of its
// data in hex.
func ImageBlob(session SessionID, sum string) string { return "image/" + string(session) + "/" + sum }

// KeptText is the name of a call's result as text.
func KeptText(session SessionID, call CallID) string {
	return "text/" + string(session) + "/" + string(call)
}

// KeptValue is the name of a call's whole value as JSON, for a result of which no text is kept.
func KeptValue(session SessionID, call CallID) string {
	return "value/" + string(session) + "/" + string(call)
}

// KeptStream is the name of one stream of a command, [PartStdout] or [PartStderr], of which there
// is more than in its result. All that it wrote is its text.
func KeptStream(session SessionID, call CallID, part string) string {
	return part + "/" + string(session) + "/" + string(call)
}

// KeptFile is the name of the content of a file that was read, to which the texts of all calls
// that have read it are links; sum is its SHA-256 in hex.
func KeptFile(session SessionID, sum string) string { return "file/" + string(session) + "/" + sum }
