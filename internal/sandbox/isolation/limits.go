package isolation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Limits of file operations.
const (
	// MaxFileSize is the largest file that is edited or written, in bytes.
	MaxFileSize = 16 << 20
	// MaxReadSize is the largest file that is read, in bytes: it is read to its end for its digest.
	MaxReadSize = 1 << 30
	// MaxReadBytes is the most content that one Read returns.
	MaxReadBytes = prose.MaxPage
	// MaxImageSize is the largest image that Read returns whole.
	MaxImageSize = 4 << 20
	// MaxChunk is the most that one ReadAt returns.
	MaxChunk = 1 << 20
	// MaxFound is the most entries, paths or lines that one List, Tree, Glob or Search
	// returns. What is beyond that is counted.
	MaxFound = 100_000
	// MaxFoundBytes is the most that the paths and texts of one Tree, Glob or Search have together.
	MaxFoundBytes = 16 << 20
	// MaxEdits is the most replacements that one Edit makes.
	MaxEdits = 200
	// MaxPatch is the largest patch, in bytes.
	MaxPatch = 4 << 20
)

// Defaults of [sandbox.Limits].
const (
	DefaultProcesses = 1024
	DefaultOpenFiles = 4096
	DefaultOutput    = 128 << 10
	DefaultGrace     = 2 * time.Second
)

// A command that has written OutputBurst bytes is read at OutputRate bytes a second: no reader
// needs so much, and reading it at full speed takes a processor.
const (
	OutputBurst = 256 << 20
	OutputRate  = 64 << 20
)

// ValidateLimits reports every limit that is negative, joined, by the name of its field. Drivers
// open no sandbox and run no command with such limits: the error is a *[protocol.Error].
func ValidateLimits(l sandbox.Limits) error {
	var faults []error
	for field, value := range reflect.ValueOf(l).Fields() {
		if value.Int() < 0 {
			faults = append(faults, fmt.Errorf("sandbox.Limits.%s %v: must be 0 (the default) or more", field.Name, value))
		}
	}
	return errors.Join(faults...)
}

// Tighten returns l where each limit that by sets lower is lowered to it; 0 or less means no limit.
func Tighten(l, by sandbox.Limits) sandbox.Limits {
	limits, lower := reflect.ValueOf(&l).Elem(), reflect.ValueOf(by)
	for i := range limits.NumField() {
		if have, most := limits.Field(i).Int(), lower.Field(i).Int(); most > 0 && (have <= 0 || most < have) {
			limits.Field(i).SetInt(most)
		}
	}
	return l
}

// WithDefaults returns l with the documented defaults in place of zero values, and zero
// in place of negative ones that have none.
func WithDefaults(l sandbox.Limits) sandbox.Limits {
	return sandbox.Limits{
		Wall:      max(l.Wall, 0),
		CPU:       max(l.CPU, 0),
		Memory:    max(l.Memory, 0),
		Processes: cmp.Or(max(l.Processes, 0), DefaultProcesses),
		OpenFiles: cmp.Or(max(l.OpenFiles, 0), DefaultOpenFiles),
		FileSize:  max(l.FileSize, 0),
		Disk:      max(l.Disk, 0),
		Output:    cmp.Or(max(l.Output, 0), DefaultOutput),
		Grace:     cmp.Or(max(l.Grace, 0), DefaultGrace),
	}
}

// Bounds of protected paths.
const (
	// MaxProtected is the most that a sandbox can have.
	MaxProtected = 1024
	maxPlace     = 4096
	maxPlaceName = 255
)

// CleanProtected returns the canonical form of [Spec].Protect: clean, sorted, without what is
// below another path. The error names an invalid path and says what is allowed.
func CleanProtected(places []string) ([]string, error) {
	if len(places) > MaxProtected {
		return nil, fmt.Errorf("%d protected places: at most %d are possible", len(places), MaxProtected)
	}
	clean := make([]string, 0, len(places))
	for _, place := range places {
		if err := checkPlace(place); err != nil {
			return nil, err
		}
		clean = append(clean, path.Clean(place))
	}
	slices.Sort(clean)
	var kept []string
	for _, place := range clean {
		if !slices.ContainsFunc(kept, func(above string) bool { return system.Within(above, place) }) {
			kept = append(kept, place)
		}
	}
	return kept, nil
}

func checkPlace(place string) error {
	switch {
	case path.Clean(place) == ".":
		return fmt.Errorf("protected place %q: is the workspace itself; name something in it, such as .git/hooks", place)
	case path.IsAbs(place), !filepath.IsLocal(filepath.FromSlash(place)):
		return fmt.Errorf("protected place %q: must be a path in the workspace and relative to it, such as .git/hooks", place)
	case strings.ContainsRune(place, 0), !utf8.ValidString(place):
		return fmt.Errorf("protected place %q: must be UTF-8 text without NUL", place)
	case len(place) > maxPlace:
		return fmt.Errorf("protected place %.32q...: has %d bytes, at most %d are possible", place, len(place), maxPlace)
	}
	for part := range strings.SplitSeq(place, "/") {
		if len(part) > maxPlaceName {
			return fmt.Errorf("protected place %.32q...: a name in it has %d bytes, at most %d are possible", place, len(part), maxPlaceName)
		}
	}
	return nil
}

// CopyOf is the path of the file that replaces one of [Spec].Copies, relative to [Spec].Scratch.
// Commands may change or remove it.
func CopyOf(place string) string { return path.Join("home", CopyInHome(place)) }

// CopyInHome is [CopyOf] relative to the home directory of the sandbox.
func CopyInHome(place string) string {
	sum := sha256.Sum256([]byte(place))
	return path.Join(".protected", hex.EncodeToString(sum[:8]), path.Base(place))
}
