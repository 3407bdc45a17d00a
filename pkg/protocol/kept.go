package protocol

// MaxKeptLine is where a line of a kept result is broken, in bytes, so that every byte of
// it can be read: the pieces count as lines.
const MaxKeptLine = 2000

// ResultRead reads the stored result of an earlier call of the same session, line by
// line. It touches no sandbox: its resources may be empty but for a lane of its own.
type ResultRead struct {
	CallID CallID `json:"call_id"`
	// Part is stdout, stderr, or output (both, in the order in which they came) of a
	// command, or value: what the call returned, as JSON. "" is output of a command and value of anything else.
	Part string `json:"part,omitempty"`
	// Offset is the first line, from 1; 0 means 1.
	Offset int `json:"offset,omitempty"`
	// Limit is how many lines; 0 means as many as fit.
	Limit int `json:"limit,omitempty"`
}

// The parts of a result.
const (
	PartStdout = "stdout"
	PartStderr = "stderr"
	PartOutput = "output"
	PartValue  = "value"
)

// ResultReadResult answers [ResultRead].
type ResultReadResult struct {
	CallID CallID `json:"call_id"`
	Part   string `json:"part"`
	// Content is whole lines, unless a line alone is more than fits.
	Content Bytes `json:"content"`
	// Bytes is the size of the whole part.
	Bytes int64 `json:"bytes"`
	// FirstLine is the number of the first line in Content, from 1; 0 when there is none.
	FirstLine  int `json:"first_line"`
	Lines      int `json:"lines"`
	TotalLines int `json:"total_lines"`
	// Truncated says that the part itself is not kept whole.
	Truncated bool `json:"truncated,omitempty"`
}

// Kind implements [Payload].
func (ResultRead) Kind() Kind { return KindResultRead }

// ValueKind implements [Value].
func (ResultReadResult) ValueKind() Kind { return KindResultRead }

// ImageBlob is the name in the fleet's object store of an image that a journal refers to;
// sum is the SHA-256 of its data in hex.
func ImageBlob(session SessionID, sum string) string { return "image/" + string(session) + "/" + sum }

// OutputBlob is the name in the fleet's object store of a command's whole output.
func OutputBlob(session SessionID, call CallID) string {
	return "output/" + string(session) + "/" + string(call)
}
