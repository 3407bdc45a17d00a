package isolation

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/system"
)

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
