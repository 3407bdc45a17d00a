package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// NewSeed returns a new secret, of 128 bits or more, from which the ids of a session's calls
// derive, together with turn, step and index. A worker cannot read the journal, so it cannot guess
// an id and store a result before the call is sent.
func NewSeed() string { return rand.Text() }

// NewCallID derives the id of the call at (turn, step, index) of a session: a UUIDv8 of the
// HMAC-SHA256 of session and place under the seed. Turn and step count from 1, index from 0.
// Without a seed, as in journals that have none, it is a UUIDv5, which whoever knows the session
// can derive.
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

// RandomCallID returns an id, which nobody can foretell, for a call that belongs to no step of a
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

// LifeID names the time in which a worker renews one heartbeat. A worker that lost its leases goes
// on as another life.
type LifeID string

// NewLifeID returns a fresh id.
func NewLifeID() LifeID { return LifeID(uuid.NewString()) }

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

// KeptText is the name of a call's result as text.
func KeptText(session protocol.SessionID, call protocol.CallID) string {
	return "text/" + string(session) + "/" + string(call)
}

// KeptValue is the name of a call's whole value as JSON, for a result of which no text is kept.
func KeptValue(session protocol.SessionID, call protocol.CallID) string {
	return "value/" + string(session) + "/" + string(call)
}

// KeptPart is the name of one stream of a command, [PartStdout] or [PartStderr], of which there is
// more than in its result, or of an image or document ([PartMedia]). All that a command wrote is
// its text.
func KeptPart(session protocol.SessionID, call protocol.CallID, part string) string {
	return part + "/" + string(session) + "/" + string(call)
}

// KeptFile is the name of the content of a file that was read, to which the texts of all calls
// that have read it are links; sum is its SHA-256 in hex.
func KeptFile(session protocol.SessionID, sum string) string {
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

// IsStreamKey reports whether a key is that of a stream in a sandbox. Its calls may change any file
// of the sandbox.
func IsStreamKey(key protocol.ResourceKey) bool {
	return strings.HasPrefix(strings.TrimPrefix(string(key), string(key.Lane())), "/"+streams+"/")
}
