package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxKeyLength bounds a resource key, in bytes. A longer path is cut by
// [ResourceKey.Join] to a prefix, which is a broader and so always a safe key.
const maxKeyLength = 1024

// ResourceKey is a canonical path of at least two segments that names what a
// call touches: "sandbox/<id>/src/a.go", "account/acme". Make one with
// [ParseResourceKey] or [ResourceKey.Join] only: both put it into canonical form,
// so equal resources have equal keys.
type ResourceKey string

// ParseResourceKey puts s into canonical form: "." and empty segments are
// dropped and ".." is resolved. It fails, wrapping [ErrInvalidName], when fewer than two
// segments remain, when ".." would climb out of the lane, on a NUL byte or
// invalid UTF-8, or above 1024 bytes.
func ParseResourceKey(s string) (ResourceKey, error) {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return "", fmt.Errorf("%w: resource key %q: must be UTF-8 without NUL", ErrInvalidName, s)
	}
	segments, err := canonical(nil, s, 2)
	if err != nil {
		return "", fmt.Errorf("%w: resource key %q: %w", ErrInvalidName, s, err)
	}
	if len(segments) < 2 {
		return "", fmt.Errorf("%w: resource key %q: needs two segments or more", ErrInvalidName, s)
	}
	key := strings.Join(segments, "/")
	if len(key) > maxKeyLength {
		return "", fmt.Errorf("%w: resource key: %d bytes, at most %d are allowed", ErrInvalidName, len(key), maxKeyLength)
	}
	return ResourceKey(key), nil
}

var errClimbs = errors.New(`".." climbs out of the lane`)

// canonical appends the segments of path to base. The first keep segments of the
// whole cannot be left by "..".
func canonical(base []string, path string, keep int) ([]string, error) {
	for segment := range strings.SplitSeq(path, "/") {
		switch segment {
		case "", ".":
		case "..":
			if len(base) <= keep {
				return nil, errClimbs
			}
			base = base[:len(base)-1]
		default:
			base = append(base, segment)
		}
	}
	return base, nil
}

// SandboxKey is the key of a whole sandbox: "sandbox/<id>". The id is one segment of a key,
// which is not checked here.
func SandboxKey(sandbox string) ResourceKey { return ResourceKey("sandbox/" + sandbox) }

// Join returns the key of a slash-separated path below k. A path that climbs
// above k fails, wrapping [ErrInvalidName]. A path that would exceed
// 1024 bytes is cut at a segment: the key is broader than asked, hence safe.
func (k ResourceKey) Join(path string) (ResourceKey, error) {
	if !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%w: resource key: path %q: must be UTF-8 without NUL", ErrInvalidName, path)
	}
	base := strings.Split(string(k), "/")
	segments, err := canonical(base, path, len(base))
	if err != nil {
		return "", fmt.Errorf("%w: resource key: path %q below %s: %w", ErrInvalidName, path, k, err)
	}
	if len(k) > maxKeyLength {
		return "", fmt.Errorf("%w: resource key: %d bytes, at most %d are allowed", ErrInvalidName, len(k), maxKeyLength)
	}
	joined := strings.Join(segments, "/")
	for len(joined) > maxKeyLength {
		joined = joined[:strings.LastIndexByte(joined, '/')]
	}
	return ResourceKey(joined), nil
}

// Lane returns the first two segments: what one worker owns at a time.
func (k ResourceKey) Lane() Lane {
	first := strings.IndexByte(string(k), '/')
	if first < 0 {
		return Lane(k)
	}
	second := strings.IndexByte(string(k[first+1:]), '/')
	if second < 0 {
		return Lane(k)
	}
	return Lane(k[:first+1+second])
}

// Contains reports whether k equals other or is a prefix of it by segments.
func (k ResourceKey) Contains(other ResourceKey) bool {
	return strings.HasPrefix(string(other), string(k)) &&
		(len(other) == len(k) || other[len(k)] == '/')
}

// Access says how a call uses a resource.
type Access string

// The two ways to use a resource.
const (
	Shared    Access = "shared"    // may overlap with other shared uses
	Exclusive Access = "exclusive" // overlaps with no other use
)

// MarshalText writes "", which is the zero value, as [Exclusive].
func (a Access) MarshalText() ([]byte, error) { return []byte(cmp.Or(a, Exclusive)), nil }

// Use is one resource of a call and the access it needs; "" means [Exclusive].
type Use struct {
	Key    ResourceKey `json:"key"`
	Access Access      `json:"access"`
}

// Conflicts reports whether the two uses must not overlap: one key contains the
// other and at least one use is exclusive.
func (u Use) Conflicts(other Use) bool {
	if u.Access == Shared && other.Access == Shared {
		return false
	}
	return u.Key.Contains(other.Key) || other.Key.Contains(u.Key)
}

func (u Use) validate() error {
	canonicalKey, err := ParseResourceKey(string(u.Key))
	if err != nil {
		return err
	}
	if canonicalKey != u.Key {
		return fmt.Errorf("%w: resource key %q: not canonical, want %q", ErrInvalidName, u.Key, canonicalKey)
	}
	if u.Access != Shared && cmp.Or(u.Access, Exclusive) != Exclusive {
		return fmt.Errorf("access %q of %s: must be %q or %q", u.Access, u.Key, Shared, Exclusive)
	}
	return nil
}

// Lane is the first two segments of a resource key: the unit of order and of
// ownership. At most one worker holds a lane.
type Lane string
