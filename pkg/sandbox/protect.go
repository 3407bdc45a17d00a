package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of protected places.
const (
	// MaxProtected is the most that a sandbox can have.
	MaxProtected = 64
	maxPlace     = 4096
	maxPlaceName = 255
)

// CleanProtected returns the canonical form of [Spec].Protect: clean, sorted, without what is
// below another place. The error names a place that cannot be one and says what is allowed.
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
		if !slices.ContainsFunc(kept, func(above string) bool { return place == above || strings.HasPrefix(place, above+"/") }) {
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

// Places of a repository from which git takes programs to run, but for those that have to be
// written to commit. What is missing of the first ones is kept from being made.
var (
	repositoryPlaces   = []string{".git/config", ".git/hooks"}                              //nolint:gochecknoglobals // a constant
	repositoryIfExists = []string{".git/config.worktree", ".git/modules", ".git/worktrees"} //nolint:gochecknoglobals // a constant
	editorPlaces       = []string{".idea", ".vscode"}                                       //nolint:gochecknoglobals // a constant
)

// DefaultProtected returns the places of a directory that programs of the host run on their own,
// for [Spec].Protect of a sandbox that uses the directory in place: of a git repository what names
// programs, and the settings of editors that are there. A directory in which there is no
// repository has none: one can be made in it.
func DefaultProtected(dir string) (places []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("protected places: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	there := func(name string) (bool, fs.FileMode) {
		info, err := root.Lstat(name)
		if err != nil {
			return false, 0
		}
		return true, info.Mode()
	}
	maybe := editorPlaces
	if is, mode := there(".git"); is && mode.IsDir() {
		places = slices.Clone(repositoryPlaces)
		maybe = slices.Concat(repositoryIfExists, editorPlaces)
	} else if is { // it names a repository elsewhere
		places = []string{".git"}
	}
	for _, name := range maybe {
		if is, _ := there(name); is {
			places = append(places, name)
		}
	}
	return CleanProtected(places)
}
