package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every kind that this version knows.
const (
	KindCommandRun       protocol.Kind = "command_run"
	KindCodeRun          protocol.Kind = "code_run"
	KindProcessList      protocol.Kind = "process_list"
	KindProcessRead      protocol.Kind = "process_read"
	KindProcessSend      protocol.Kind = "process_send"
	KindProcessKill      protocol.Kind = "process_kill"
	KindResultRead       protocol.Kind = "result_read"
	KindToolRun          protocol.Kind = "tool_run"
	KindMCPList          protocol.Kind = "mcp_list"
	KindMCPCall          protocol.Kind = "mcp_call"
	KindDialogOpen       protocol.Kind = "dialog_open"
	KindDialogContinue   protocol.Kind = "dialog_continue"
	KindDialogEnd        protocol.Kind = "dialog_end"
	KindWorkspaceImport  protocol.Kind = "workspace_import"
	KindWorkspaceExport  protocol.Kind = "workspace_export"
	KindWorkspaceRemove  protocol.Kind = "workspace_remove"
	KindWorkspaceRestore protocol.Kind = "workspace_restore"
	KindWorkspaceFork    protocol.Kind = "workspace_fork"
	KindWorkspaceMerge   protocol.Kind = "workspace_merge"
	KindWorkspaceUnpack  protocol.Kind = "workspace_unpack"
	KindTurnRun          protocol.Kind = "turn_run"
	KindNoop             protocol.Kind = "noop"
	KindStored           protocol.Kind = "stored"
	KindFilesRead        protocol.Kind = "files_read"
	KindFilesWrite       protocol.Kind = "files_write"
	KindFilesRemove      protocol.Kind = "files_remove"
	KindFilesEdit        protocol.Kind = "files_edit"
	KindFilesJSONRead    protocol.Kind = "files_json_read"
	KindFilesJSONWrite   protocol.Kind = "files_json_write"
	KindFilesExists      protocol.Kind = "files_exists"
	KindFilesList        protocol.Kind = "files_list"
	KindFilesTree        protocol.Kind = "files_tree"
	KindFilesGlob        protocol.Kind = "files_glob"
	KindFilesSearch      protocol.Kind = "files_search"
	KindHTTPFetch        protocol.Kind = "http_fetch"
)

// Class says what the calls of a kind do, for rules that hold for the tools of every toolset.
type Class string

// The classes.
const (
	// ClassNone is the class of kinds that no rule for a class is about.
	ClassNone Class = ""
	// ClassExecute runs programs that the model chooses, writes to them, or ends them.
	ClassExecute Class = "execute"
	// ClassWrite changes files by the tool itself.
	ClassWrite Class = "write"
	// ClassRead returns files, processes and results.
	ClassRead Class = "read"
)

// Where the calls of a kind run.
const (
	inSandbox = true  // in a sandbox, or on its files
	outside   = false // in the process of the worker or of a coordinator
)

// descriptor is what the engine, the policies and the codecs know of a kind.
type descriptor struct {
	class                      Class
	sandboxed                  bool
	payload, value             reflect.Type
	decodePayload, decodeValue decoder
}

type decoder func(raw json.RawMessage) (any, error)

// kinds has every kind that this version knows. To add one, define its payload and its value in a
// file, and describe both here; CONTRIBUTING.md has all steps.
var kinds = map[protocol.Kind]descriptor{ //nolint:gochecknoglobals // a constant table
	KindCommandRun:       describe[protocol.CommandRun, protocol.CommandRunResult](inSandbox, ClassExecute),
	KindCodeRun:          describe[protocol.CodeRun, protocol.CodeRunResult](inSandbox, ClassExecute),
	KindProcessList:      describe[ProcessList, ProcessListResult](inSandbox, ClassRead),
	KindProcessRead:      describe[ProcessRead, ProcessReadResult](inSandbox, ClassRead),
	KindProcessSend:      describe[ProcessSend, ProcessSendResult](inSandbox, ClassExecute),
	KindProcessKill:      describe[ProcessKill, ProcessKillResult](inSandbox, ClassExecute),
	KindFilesRead:        describe[protocol.FilesRead, protocol.FilesReadResult](inSandbox, ClassRead),
	KindFilesWrite:       describe[protocol.FilesWrite, protocol.FilesWriteResult](inSandbox, ClassWrite),
	KindFilesRemove:      describe[protocol.FilesRemove, protocol.FilesRemoveResult](inSandbox, ClassWrite),
	KindFilesEdit:        describe[protocol.FilesEdit, protocol.FilesEditResult](inSandbox, ClassWrite),
	KindFilesJSONRead:    describe[protocol.FilesJSONRead, protocol.FilesJSONReadResult](inSandbox, ClassRead),
	KindFilesJSONWrite:   describe[protocol.FilesJSONWrite, protocol.FilesJSONWriteResult](inSandbox, ClassWrite),
	KindFilesExists:      describe[protocol.FilesExists, protocol.FilesExistsResult](inSandbox, ClassRead),
	KindFilesList:        describe[protocol.FilesList, protocol.FilesListResult](inSandbox, ClassRead),
	KindFilesTree:        describe[protocol.FilesTree, protocol.FilesTreeResult](inSandbox, ClassRead),
	KindFilesGlob:        describe[protocol.FilesGlob, protocol.FilesGlobResult](inSandbox, ClassRead),
	KindFilesSearch:      describe[protocol.FilesSearch, protocol.FilesSearchResult](inSandbox, ClassRead),
	KindResultRead:       describe[ResultRead, ResultReadResult](outside, ClassRead),
	KindToolRun:          describe[protocol.ToolRun, protocol.ToolRunResult](inSandbox, ClassNone),
	KindMCPList:          describe[MCPList, MCPListResult](inSandbox, ClassNone),
	KindMCPCall:          describe[protocol.MCPCall, protocol.MCPCallResult](inSandbox, ClassNone),
	KindDialogOpen:       describe[DialogOpen, DialogOpenResult](outside, ClassNone),
	KindDialogContinue:   describe[DialogContinue, DialogContinueResult](outside, ClassNone),
	KindDialogEnd:        describe[DialogEnd, DialogEndResult](outside, ClassNone),
	KindWorkspaceImport:  describe[WorkspaceImport, WorkspaceImportResult](inSandbox, ClassNone),
	KindWorkspaceExport:  describe[WorkspaceExport, WorkspaceExportResult](inSandbox, ClassNone),
	KindWorkspaceRemove:  describe[WorkspaceRemove, WorkspaceRemoveResult](inSandbox, ClassNone),
	KindWorkspaceRestore: describe[WorkspaceRestore, WorkspaceRestoreResult](inSandbox, ClassNone),
	KindWorkspaceFork:    describe[WorkspaceFork, WorkspaceForkResult](inSandbox, ClassNone),
	KindWorkspaceMerge:   describe[WorkspaceMerge, WorkspaceMergeResult](inSandbox, ClassNone),
	KindWorkspaceUnpack:  describe[WorkspaceUnpack, WorkspaceUnpackResult](inSandbox, ClassWrite),
	KindTurnRun:          describe[TurnRun, TurnRunResult](outside, ClassNone),
	KindNoop:             describe[Noop, NoopResult](outside, ClassNone),
	KindHTTPFetch:        describe[protocol.HTTPFetch, protocol.HTTPFetchResult](outside, ClassNone),
	KindStored:           describe[Stored, Stored](inSandbox, ClassNone),
}

// describe is the descriptor of a kind with a type of payload and of value.
func describe[P, V any](sandboxed bool, class Class) descriptor {
	return descriptor{class, sandboxed, reflect.TypeFor[P](), reflect.TypeFor[V](), decodeAs[P], decodeAs[V]}
}

func decodeAs[T any](raw json.RawMessage) (any, error) {
	var v T
	err := unmarshal(raw, &v)
	return v, err
}

// payloadKinds and valueKinds are the kinds by the types of their payloads and values.
var payloadKinds, valueKinds = kindsByType() //nolint:gochecknoglobals // constant tables

func kindsByType() (payloads, values map[reflect.Type]protocol.Kind) {
	payloads, values = map[reflect.Type]protocol.Kind{}, map[reflect.Type]protocol.Kind{}
	for kind, d := range kinds {
		payloads[d.payload], values[d.value] = kind, kind
	}
	return payloads, values
}

// KindOf returns the kind of a payload; "" when it is none.
func KindOf(p protocol.Payload) protocol.Kind {
	if unknown, ok := p.(protocol.UnknownPayload); ok {
		return unknown.Name
	}
	return payloadKinds[reflect.TypeOf(p)]
}

// ValueKindOf returns the kind of a value; "" when it is none.
func ValueKindOf(v protocol.Value) protocol.Kind {
	if unknown, ok := v.(protocol.UnknownValue); ok {
		return unknown.Name
	}
	return valueKinds[reflect.TypeOf(v)]
}

// ClassOf returns the class of a kind. It is [ClassNone] for unknown kinds: the kinds of a
// program's own handlers.
func ClassOf(kind protocol.Kind) Class { return kinds[kind].class }

// Sandboxed reports whether the calls of a kind run in a sandbox or work on its files. Those of a
// program's own kinds run in the worker's process.
func Sandboxed(kind protocol.Kind) bool { return kinds[kind].sandboxed }

// MaxKindLength bounds the kind of a payload of a user's own, in bytes.
const MaxKindLength = 64

// ErrInvalidKind is wrapped by the errors of [ParseUserKind].
var ErrInvalidKind = errors.New("invalid payload kind")

// userBody is the JSON of a payload or a value of a kind of a user's own. The user's part is one
// field, so that its names never collide with names of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// ParseUserKind checks a kind for payloads of a user's own: 1 to [MaxKindLength]
// lower-case letters, digits and '_', and not a kind of this package. The error
// wraps [ErrInvalidKind].
func ParseUserKind(s string) (protocol.Kind, error) {
	if len(s) > MaxKindLength || !plainName([]byte(s)) {
		return "", fmt.Errorf("%w %q: must be 1 to %d lower-case letters, digits and '_'", ErrInvalidKind, s, MaxKindLength)
	}
	known, err := DecodePayload(json.RawMessage(typePrefix + s + `"}`))
	if _, unknown := known.(protocol.UnknownPayload); err != nil || !unknown {
		return "", fmt.Errorf("%w %q: is a built-in payload: choose another name", ErrInvalidKind, s)
	}
	return protocol.Kind(s), nil
}

// NewUserPayload makes a payload of a kind of a user's own, which a worker with a
// handler for that kind executes. arguments is a JSON value. The kind must be one
// that [ParseUserKind] takes.
func NewUserPayload(kind protocol.Kind, arguments json.RawMessage) (protocol.UnknownPayload, error) {
	raw, err := encodeTyped(kind, userBody{Arguments: arguments})
	return protocol.UnknownPayload{Name: kind, Raw: raw}, err
}

// NewUserValue makes the value that answers a payload of a kind of a user's own.
// output is a JSON value.
func NewUserValue(kind protocol.Kind, output json.RawMessage) (protocol.UnknownValue, error) {
	raw, err := encodeTyped(kind, userBody{Output: output})
	return protocol.UnknownValue{Name: kind, Raw: raw}, err
}

// NewSeed returns a new secret, of 128 bits or more, from which the ids of a session's calls
// derive, together with turn, step and index. A worker cannot read the journal, so it cannot guess
// an id and store a result before the call is sent.
func NewSeed() string { return rand.Text() }

// NewCallID derives the id of the call at (turn, step, index) of a session: a UUIDv8 of the
// HMAC-SHA256 of session and place under the seed. Turn and step count from 1, index from 0.
// Without a seed, as in journals that have none, it is a UUIDv5, which everyone who knows the
// session can derive.
func NewCallID(session protocol.SessionID, seed string, turn, step, index int) protocol.CallID {
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte("toolfleet/session/"+string(session)))
	place := strconv.Itoa(turn) + "/" + strconv.Itoa(step) + "/" + strconv.Itoa(index)
	if seed == "" {
		return protocol.CallID(uuid.NewSHA1(space, []byte(place)).String())
	}
	return protocol.CallID(uuid.NewHash(hmac.New(sha256.New, []byte(seed)), space, []byte(place), 8).String())
}

// RevertCallID returns the id of an attempt, from 0, to undo the effect of a call.
func RevertCallID(of protocol.CallID, attempt int) protocol.CallID {
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte("toolfleet/revert/"+string(of)))
	return protocol.CallID(uuid.NewSHA1(space, []byte(strconv.Itoa(attempt))).String())
}

// MergeCallID returns the id of the call that merges the workspace of a fork, whose journal ends at
// fromLast, into that of a session, after a number of earlier merges of it.
func MergeCallID(into protocol.SessionID, earlier uint64, from protocol.SessionID, fromLast uint64) protocol.CallID {
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte("toolfleet/merge/"+string(into)+"/"+string(from)))
	return protocol.CallID(uuid.NewSHA1(space, []byte(fmt.Sprint("merge ", earlier, "/", fromLast))).String())
}

// CopyCallID returns the id of a request that makes a session of the conversation of another one.
func CopyCallID(to protocol.SessionID, request string) protocol.CallID {
	space := uuid.NewSHA1(uuid.NameSpaceOID, []byte("toolfleet/copy/"+string(to)))
	return protocol.CallID(uuid.NewSHA1(space, []byte(request)).String())
}

// SeedOf derives a secret for what a call of a session makes from the session's seed.
func SeedOf(seed string, call protocol.CallID) string {
	sum := hmac.New(sha256.New, []byte(seed))
	_, _ = sum.Write([]byte("toolfleet/seed/" + string(call))) // never fails
	return hex.EncodeToString(sum.Sum(nil))
}

// RandomCallID returns an unpredictable id for a call that belongs to no step of a
// session.
func RandomCallID() protocol.CallID { return protocol.CallID(uuid.Must(uuid.NewV7()).String()) }

// IsRandomCallID reports whether an id may be one of [RandomCallID]. Ids that derive from a secret,
// which several processes make, are of another version of UUIDs.
func IsRandomCallID(id protocol.CallID) bool {
	return len(id) == len(uuid.Nil.String()) && id[14] == '7'
}

// NewWorkerID returns host name and a random suffix, cut to a safe token.
func NewWorkerID(host string) protocol.WorkerID {
	safe := strings.Map(func(r rune) rune {
		if _, err := protocol.ParseSessionID(string(r)); err != nil {
			return -1
		}
		return r
	}, host)
	return protocol.WorkerID(safe[:min(len(safe), 32)] + "-" + uuid.NewString()[:8])
}

// IncarnationID names the time in which a worker renews one heartbeat. A worker that lost its
// leases goes on as another life.
type IncarnationID string

// NewIncarnationID returns a fresh id.
func NewIncarnationID() IncarnationID { return IncarnationID(uuid.NewString()) }

// LaneHash is the fixed-length token that stands for a lane in subjects.
type LaneHash string

// laneAlphabet is RFC 4648 base32 in lower case, without padding.
var laneAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant table

// HashLane returns 26 characters: base32 of the first 128 bits of SHA-256.
func HashLane(l protocol.Lane) LaneHash {
	sum := sha256.Sum256([]byte(l))
	return LaneHash(laneAlphabet.EncodeToString(sum[:16]))
}

// What is kept of a session are objects in the fleet's store: see [KeptBucket].
// The second part of their names is the session's id.

// ImageBlob is the name of an image that a journal refers to; sum is the SHA-256 of its
// data in hex.
func ImageBlob(session protocol.SessionID, sum string) string {
	return "image/" + string(session) + "/" + sum
}

// uploads begins the names of the objects by which directories are sent to sessions.
const uploads = "workspace/"

// UploadBlob is the name of an object by which a directory is sent to a session.
func UploadBlob(session protocol.SessionID, id string) string {
	return uploads + string(session) + "/" + id
}

// UploadBase is the name of the object that says which state of a directory a session and this
// machine had last.
func UploadBase(session protocol.SessionID, directory string) string {
	return uploads + string(session) + "/" + base + directory
}

const base = "base-"

// IsUploadBlob reports whether a name is one of [UploadBlob].
func IsUploadBlob(name string) bool {
	rest, is := strings.CutPrefix(name, uploads)
	_, id, _ := strings.Cut(rest, "/")
	return is && !strings.HasPrefix(id, base)
}

// PartObject is the name of a part of a call's result: [PartText], the result as text, which of a
// command is all that it wrote; [PartStdout] or [PartStderr] of a command, of which there is more
// than in its result; [PartMedia], an image or document; or [PartValue], the whole value as JSON,
// for a result without a stored text.
func PartObject(session protocol.SessionID, call protocol.CallID, part string) string {
	return part + "/" + string(session) + "/" + string(call)
}

// FileObject is the name of the content of a file that was read, to which the texts of all calls
// that have read it are links; sum is its SHA-256 in hex.
func FileObject(session protocol.SessionID, sum string) string {
	return "file/" + string(session) + "/" + sum
}

// streams is the segment of a resource key that precedes the name of a stream in a sandbox: no path
// that a tool uses begins so by accident.
const streams = ":stream"

// StreamKey is the resource that the calls of a stream use, exclusively: in the lane of its
// sandbox, or a lane of its own without a sandbox.
func StreamKey(sandbox, name string) protocol.ResourceKey {
	if sandbox == "" {
		return protocol.ResourceKey("stream/" + name)
	}
	return protocol.SandboxKey(sandbox) + protocol.ResourceKey("/"+streams+"/"+name)
}

// IsStreamKey reports whether a key names a stream in a sandbox. Its calls may change any file
// of the sandbox.
func IsStreamKey(key protocol.ResourceKey) bool {
	return strings.HasPrefix(strings.TrimPrefix(string(key), string(key.Lane())), "/"+streams+"/")
}
