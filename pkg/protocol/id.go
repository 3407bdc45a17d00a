package protocol

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrInvalidName is wrapped by every error about a malformed id, resource key, or name of a fleet,
// pool or tenant.
var ErrInvalidName = errors.New("invalid name")

// SessionID names one durable conversation. New ids are UUIDv7; any token of
// 1 to 64 letters, digits, '-' and '_' is accepted, so that callers may bring
// their own.
type SessionID string

// NewSessionID returns a fresh UUIDv7, which sorts by time of creation.
func NewSessionID() SessionID {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	now := time.Now()
	fraction := now.Nanosecond() % 1e6 * 4096 / 1e6                                       // of a millisecond
	binary.BigEndian.PutUint64(id[:], uint64(now.UnixMilli())<<16|7<<12|uint64(fraction)) //nolint:gosec // below 4096
	id[8] = id[8]&0x3f | 0x80
	return SessionID(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
}

// ParseSessionID checks s. The error wraps [ErrInvalidName].
func ParseSessionID(s string) (SessionID, error) {
	return parseToken[SessionID]("session id", s, 64, tokenAlphabet())
}

// CallID names one call for ever. It derives from the session, its seed, and the call's turn, step
// and index, so a resumed coordinator derives the same id and enqueueing again does no harm.
type CallID string

// ParseCallID checks s: 1 to 64 letters, digits, '-' and '_'. The error wraps [ErrInvalidName].
func ParseCallID(s string) (CallID, error) {
	return parseToken[CallID]("call id", s, 64, tokenAlphabet())
}

// CallRef names one call of a session.
type CallRef struct {
	SessionID SessionID `json:"session_id"`
	ID        CallID    `json:"call_id"`
}

// String returns "SESSION/CALL", which [ParseCallRef] reads.
func (r CallRef) String() string { return string(r.SessionID) + "/" + string(r.ID) }

// ParseCallRef reads "SESSION/CALL". The error wraps [ErrInvalidName].
func ParseCallRef(s string) (CallRef, error) {
	session, id, _ := strings.Cut(s, "/")
	_, sessionErr := ParseSessionID(session)
	_, idErr := ParseCallID(id)
	return CallRef{SessionID(session), CallID(id)}, errors.Join(sessionErr, idErr)
}

// WorkerID names one worker process; it is chosen anew at every start.
type WorkerID string

// Fleet is the name that prefixes every subject and stream of one fleet, so
// that several share a NATS account. The default is [DefaultFleet].
type Fleet string

// DefaultFleet is the fleet of a process that names none.
const DefaultFleet Fleet = "tf"

// ParseFleet checks s: 1 to 32 lower-case letters, digits and '-', starting
// with a letter. The error wraps [ErrInvalidName].
func ParseFleet(s string) (Fleet, error) {
	fleet, err := parseToken[Fleet]("fleet", s, 32, fleetAlphabet())
	if err == nil && (s[0] < 'a' || s[0] > 'z') {
		return "", fmt.Errorf("%w: fleet %q: must start with a letter a-z", ErrInvalidName, s)
	}
	return fleet, err
}

// Pool names workers that can serve the same calls.
type Pool string

// The pools that exist in every fleet.
const (
	DefaultPool Pool = "default" // tool calls
	SessionPool Pool = "session" // sessions, run by coordinators
)

// ParsePool checks s: 1 to 32 lower-case letters, digits and '-'. The error
// wraps [ErrInvalidName].
func ParsePool(s string) (Pool, error) { return parseToken[Pool]("pool", s, 32, fleetAlphabet()) }

// parseToken checks that s is 1 to maxLen characters of an alphabet, and otherwise says so.
func parseToken[T ~string](what, s string, maxLen int, a alphabet) (T, error) {
	wrong := func(c byte) bool { return !a.has(c) }
	if s == "" || len(s) > maxLen || slices.ContainsFunc([]byte(s), wrong) {
		return "", fmt.Errorf("%w: %s %.100q: must be 1 to %d %s", ErrInvalidName, what, s, maxLen, a.words)
	}
	return T(s), nil
}

// alphabet is the characters that a name may have, and how to say so.
type alphabet struct {
	words string
	has   func(byte) bool
}

func fleetAlphabet() alphabet { return alphabet{"lower-case letters, digits and '-'", isFleetByte} }

func tokenAlphabet() alphabet { return alphabet{"letters, digits, '-' and '_'", isTokenByte} }

func isFleetByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
}

func isTokenByte(c byte) bool {
	return isFleetByte(c) || c >= 'A' && c <= 'Z' || c == '_'
}
