package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// EncodePayload returns the JSON of p, with its type and version.
func EncodePayload(p protocol.Payload) (json.RawMessage, error) {
	return encodeKind[protocol.UnknownPayload](p, KindOf(p), "payload")
}

// EncodeValue returns the JSON of v, with its type and version.
func EncodeValue(v protocol.Value) (json.RawMessage, error) {
	return encodeKind[protocol.UnknownValue](v, ValueKindOf(v), "value")
}

// unknown is a payload or a value of a kind that this version does not know.
type unknown interface {
	protocol.UnknownPayload | protocol.UnknownValue
}

func encodeKind[U unknown](v any, kind protocol.Kind, what string) (json.RawMessage, error) {
	if u, is := v.(U); is {
		return compact(protocol.UnknownValue(u).Raw)
	}
	if kind == "" {
		return nil, fmt.Errorf("%T is not a %s", v, what)
	}
	return encodeTyped(kind, v)
}

// DecodePayload reads what [EncodePayload] wrote. An unknown kind yields a
// [protocol.UnknownPayload], which keeps raw; a malformed body is an error.
func DecodePayload(raw json.RawMessage) (protocol.Payload, error) {
	return checkKind[protocol.UnknownPayload](decodePayload, raw)
}

// DecodeValue reads what [EncodeValue] wrote. An unknown kind yields a [protocol.UnknownValue],
// which keeps raw; a malformed body is an error.
func DecodeValue(raw json.RawMessage) (protocol.Value, error) {
	return checkKind[protocol.UnknownValue](decodeValue, raw)
}

func checkKind[U unknown](decode func(json.RawMessage) (any, error), raw json.RawMessage) (any, error) {
	v, err := decode(raw)
	if _, is := v.(U); is && !json.Valid(raw) {
		return nil, errNoJSON
	}
	return v, err
}

var errNoJSON = errors.New("not JSON")

// decodePayload is [DecodePayload] for a part of a body that was decoded, and so is valid JSON.
func decodePayload(raw json.RawMessage) (any, error) {
	return decodeKind[protocol.UnknownPayload](raw, func(d descriptor) decoder { return d.decodePayload })
}

// decodeValue is [DecodeValue] for such a part.
func decodeValue(raw json.RawMessage) (any, error) {
	return decodeKind[protocol.UnknownValue](raw, func(d descriptor) decoder { return d.decodeValue })
}

func decodeKind[U unknown](raw json.RawMessage, by func(descriptor) decoder) (any, error) {
	kind, err := kindIn(raw)
	if err != nil {
		return nil, err
	}
	known, found := kinds[kind]
	if !found {
		return U(protocol.UnknownValue{Name: kind, Raw: raw}), nil
	}
	v, err := by(known)(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return v, nil
}

// kindIn reads the type name of a typed JSON object. What this package wrote begins
// with it, so that it is read at a glance.
func kindIn(raw json.RawMessage) (protocol.Kind, error) {
	if rest, found := bytes.CutPrefix(raw, []byte(typePrefix)); found {
		if name, _, closed := bytes.Cut(rest, []byte{'"'}); closed && plainName(name) {
			return protocol.Kind(name), nil
		}
	}
	var head struct {
		Type protocol.Kind `json:"type"`
	}
	if err := unmarshal(raw, &head); err != nil {
		return "", err
	}
	if head.Type == "" {
		return "", errors.New(`"type": missing`)
	}
	return head.Type, nil
}

// typePrefix begins every typed JSON object that this package writes.
const typePrefix = `{"type":"`

// plainName reports whether a type name needs no escapes in JSON.
func plainName(name []byte) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0
}

// encodeTyped writes body as a JSON object that starts with its type and version.
func encodeTyped(kind protocol.Kind, body any) (json.RawMessage, error) {
	if !plainName([]byte(kind)) {
		return nil, fmt.Errorf("type %q: must be lower-case letters, digits and '_'", kind)
	}
	fields, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	head := typePrefix + string(kind) + `","version":` + strconv.Itoa(Version)
	if len(fields) == len("{}") {
		return json.RawMessage(head + "}"), nil
	}
	return append(append(make([]byte, 0, len(head)+len(fields)), head+","...), fields[1:]...), nil
}

// unmarshal decodes JSON exactly as encoding/json does, by the engine of its next version: a call
// takes half the time and a sixth of the allocations, and every call is decoded at least twice on
// its way.
func unmarshal(data []byte, v any) error { return jsonv1.Unmarshal(data, v) }

// compact checks JSON that this package did not write, and takes out its spaces.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	var out bytes.Buffer
	err := json.Compact(&out, raw)
	return out.Bytes(), err
}

// Noop does nothing, for the requested time: the payload of measurements.
type Noop struct {
	WorkMS protocol.Millis `json:"work_ms,omitempty"`
	// Fill is carried and ignored.
	Fill protocol.Bytes `json:"fill,omitempty"`
}

// Stored stands for a payload or a value that is too large for a message: its JSON
// is in the fleet's object store. Whoever executes calls or reads results puts
// the real one back; tools never see it.
type Stored struct {
	Blob  string `json:"blob"`
	Bytes int64  `json:"bytes"`
	// Digest is the SHA-256 of the JSON, in hexadecimal digits; "" from earlier versions.
	Digest string `json:"digest,omitempty"`
	// Of is a payload's kind, or the kind of the handler that it opens; "" when it is not
	// known.
	Of protocol.Kind `json:"of,omitempty"`
	// Model is, of a payload that runs a turn, the model that the turn names.
	Model string `json:"model,omitempty"`
}

// NoopResult answers [Noop].
type NoopResult struct{}

// maxAuthor bounds a name and an address.
const maxAuthor = 256

// ParseGuard reads the word for a guard: none, changed or read; "" is none.
func ParseGuard(word string) (protocol.Guard, error) {
	switch guard := protocol.Guard(word); guard {
	case "none":
		return "", nil
	case "", protocol.GuardChanged, protocol.GuardRead:
		return guard, nil
	default:
		return "", fmt.Errorf("guard %q: must be none, changed or read", word)
	}
}

// ValidateAuthor returns an error unless git can have the author in a commit.
func ValidateAuthor(a protocol.Author) error {
	check := func(field, text string) error {
		if len(text) > maxAuthor || strings.ContainsAny(text, "<>") || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("author.%s %q: must be at most %d bytes of printable text without < and >", field, text, maxAuthor)
		}
		return nil
	}
	return errors.Join(check("name", a.Name), check("email", a.Email))
}

// AuthorEnv returns the environment variables that name the author to git.
func AuthorEnv(a protocol.Author) map[string]string {
	env := map[string]string{}
	for what, value := range map[string]string{"NAME": a.Name, "EMAIL": a.Email} {
		if value != "" {
			env["GIT_AUTHOR_"+what], env["GIT_COMMITTER_"+what] = value, value
		}
	}
	return env
}

// WithAuthor adds the variables of [AuthorEnv] to the commands of a payload. The payload's own win.
func WithAuthor(p protocol.Payload, a protocol.Author) protocol.Payload {
	with := func(own map[string]string) map[string]string {
		if a == (protocol.Author{}) {
			return own
		}
		env := AuthorEnv(a)
		maps.Copy(env, own)
		return env
	}
	switch run := p.(type) {
	case protocol.CommandRun:
		run.Env = with(run.Env)
		return run
	case protocol.CodeRun:
		run.Env = with(run.Env)
		return run
	default:
		return p
	}
}

// Bounds of [protocol.Limits]: no command makes sense outside of them.
const (
	MaxWall      = 7 * 24 * time.Hour
	minMemory    = 1 << 20
	MinOutput    = 1 << 10
	maxOutput    = 1 << 20
	minOpenFiles = 8
)

// ValidateLimits reports every limit that is out of bounds, joined, by its name on the wire.
func ValidateLimits(l protocol.Limits) error {
	const most = 1 << 50
	var faults []error
	check := func(name string, value, least, greatest int64) {
		if value != 0 && (value < least || value > greatest) {
			faults = append(faults, fmt.Errorf("limits.%s %d: must be 0 (the worker's own) or %d to %d", name, value, least, greatest))
		}
	}
	check("wall_ms", int64(l.Wall), 1, int64(protocol.MillisOf(MaxWall)))
	check("cpu_ms", int64(l.CPU), 1, int64(protocol.MillisOf(MaxWall)))
	check("memory_bytes", l.Memory, minMemory, most)
	check("processes", l.Processes, 1, 1<<22)
	check("open_files", l.OpenFiles, minOpenFiles, 1<<20)
	check("file_size_bytes", l.FileSize, 1, most)
	check("disk_bytes", l.Disk, 1, most)
	check("output_bytes", l.Output, MinOutput, maxOutput)
	return errors.Join(faults...)
}

// Limits of [protocol.HTTPFetch].
const (
	maxFetchBytes = 16 << 20
	maxFetchURL   = 8 << 10 // bytes
)

// FetchHeaders returns the names of the headers that [protocol.HTTPFetch] may send, sorted.
func FetchHeaders() []string {
	return []string{"Accept", "Accept-Language", "If-Modified-Since", "If-None-Match", "User-Agent"}
}

// CheckFetch reports an invalid payload as [protocol.CodeInvalidArguments].
func CheckFetch(f protocol.HTTPFetch) *protocol.Error {
	invalid := func(format string, args ...any) *protocol.Error {
		return protocol.Errorf(protocol.CodeInvalidArguments, format, args...)
	}
	u, err := url.Parse(f.URL)
	switch {
	case len(f.URL) > maxFetchURL:
		return invalid("url: %d bytes: must be at most %d", len(f.URL), maxFetchURL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return invalid("url %q: must begin with http:// or https:// and name a host", f.URL)
	case u.User != nil:
		return invalid("url: must not contain a user name or a password")
	case !slices.Contains([]string{"", http.MethodGet, http.MethodHead}, f.Method):
		return invalid("method %q: must be GET or HEAD", f.Method)
	case f.MaxBytes < 0 || f.MaxBytes > maxFetchBytes:
		return invalid("max_bytes %d: must be between 1 and %d", f.MaxBytes, maxFetchBytes)
	}
	for name, value := range f.Headers {
		if !slices.ContainsFunc(FetchHeaders(), func(allowed string) bool { return strings.EqualFold(allowed, name) }) {
			return invalid("headers: %q cannot be sent: must be one of %s", name, strings.Join(FetchHeaders(), ", "))
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return invalid("headers: the value of %q contains a control character", name)
		}
	}
	return nil
}

// WorkspaceImport fills a sandbox's empty workspace with an upload. Done twice it does nothing.
type WorkspaceImport struct {
	// Upload is the name of the upload: lower case letters and digits, at most 64.
	Upload string `json:"upload"`
	// Blob is the name, in the fleet's object store, of what changed since the last one of that
	// name.
	Blob string `json:"blob"`
}

// WorkspaceExport keeps what a sandbox's workspace has as the last state of an upload.
type WorkspaceExport struct {
	// Upload is the name of the upload, as of [WorkspaceImport].
	Upload string `json:"upload"`
}

// WorkspaceRemove removes a sandbox's workspace, with all that workers keep beside it. A
// directory that is a workspace in place stays. Done twice it does nothing.
type WorkspaceRemove struct{}

// WorkspaceRestore restores a sandbox's workspace, and its shell's directory and variables, as
// after an earlier call. Processes that live in the sandbox are killed.
type WorkspaceRestore struct {
	// At is the call, which changed something.
	At protocol.CallID `json:"at"`
}

// WorkspaceFork begins the workspace of another sandbox with the files that this one has. Done
// twice it does nothing.
type WorkspaceFork struct {
	// To is the id of the other sandbox, which has no workspace yet.
	To string `json:"to"`
}

// WorkspaceMerge brings what changed in a fork of a sandbox's workspace since it began into that
// workspace, all or nothing. Files that changed on both sides stay as they are, unless their texts
// can be merged; the fork's version of them is put next to them. Repositories of git keep what is
// theirs.
type WorkspaceMerge struct {
	// From is the id of the fork's sandbox.
	From string `json:"from"`
	// After is the fork's checkpoint that was merged last, 0 if only the workspace may know.
	After uint64 `json:"after,omitempty"`
}

// WorkspaceUnpack lays the files of an archive over a workspace, all or nothing. Directories that
// are there stay, with what is in them and their modes.
type WorkspaceUnpack struct {
	// Blob is the name, in the fleet's object store, of what the archive has, as of
	// [WorkspaceImport], and Digest the SHA-256 of that object, in hexadecimal digits.
	Blob   string `json:"blob"`
	Digest string `json:"digest"`
	// Path is the directory of the workspace that gets the files; "" is the workspace.
	Path string `json:"path,omitempty"`
}

// WorkspaceUnpackResult answers [WorkspaceUnpack].
type WorkspaceUnpackResult struct {
	// Files and Bytes are those of the archive.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Written is how many paths were made or changed: the others were so already.
	Written int `json:"written"`
}

// WorkspaceImportResult answers [WorkspaceImport].
type WorkspaceImportResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Checkpoint is where the journal of the upload has it, 0 when the workspace stayed as it was.
	Checkpoint uint64 `json:"checkpoint,omitempty"`
}

// WorkspaceExportResult answers [WorkspaceExport].
type WorkspaceExportResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Checkpoint is where the journal of the upload has it.
	Checkpoint uint64 `json:"checkpoint"`
}

// WorkspaceForkResult answers [WorkspaceFork].
type WorkspaceForkResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// WorkspaceMergeResult answers [WorkspaceMerge].
type WorkspaceMergeResult = report.MergedFiles

// WorkspaceRemoveResult answers [WorkspaceRemove].
type WorkspaceRemoveResult struct{}

// WorkspaceRestoreResult answers [WorkspaceRestore].
type WorkspaceRestoreResult struct {
	// Written and Removed are how many files were made anew, and how many paths were removed.
	Written int `json:"written"`
	Removed int `json:"removed"`
}

// ResultRead reads the result of an earlier call of the same session, line by
// line. It touches no sandbox: its resources may be empty but for a lane of its own.
type ResultRead struct {
	CallID protocol.CallID `json:"call_id"`
	// Part is text (the content of a file, or one line for each entry of a list), stdout, stderr or
	// output (both, in the order written) of a command, media (an image or document, all of it), or
	// value (JSON). "" means output of a command, and text of anything else.
	Part string `json:"part,omitempty"`
	// Offset is the first line, from 1; 0 means 1.
	Offset int `json:"offset,omitempty"`
	// Column is the first byte of that line, from 1; 0 means 1.
	Column int64 `json:"column,omitempty"`
	// Limit is how many lines; 0 means as many as fit.
	Limit int `json:"limit,omitempty"`
}

// ResultReadResult answers [ResultRead].
type ResultReadResult struct {
	CallID protocol.CallID `json:"call_id"`
	Part   string          `json:"part"`
	// Content is lines, each whole, but that the first begins at FirstColumn, and ends before
	// its end when it alone is more than fits.
	Content protocol.Bytes `json:"content"`
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

// The parts of a result.
const (
	PartText   = "text"
	PartStdout = "stdout"
	PartStderr = "stderr"
	PartOutput = "output"
	PartMedia  = "media"
	PartValue  = "value"
)
