package sandbox

import (
	"errors"
	"fmt"
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
	MaxProtected = 256
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

// DefaultProtected returns the places of a directory that programs of the host run on their own,
// for [Spec].Protect of a sandbox that uses the directory in place: of a git repository what names
// programs, where its submodules are repositories, and the settings of editors that are there. A
// directory in which there is no repository has none: one can be made in it. What has to be written
// to commit is not among them; of what is missing the hooks and the settings of a repository are.
func DefaultProtected(dir string) (places []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("protected places: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	ifThere := []string{".idea", ".vscode"}
	if info, err := root.Lstat(".git"); err == nil {
		ifThere = append(ifThere, submodules(root, ".", 0)...)
		if info.IsDir() {
			places = []string{".git/config", ".git/hooks"}
			ifThere = append(ifThere, ".git/config.worktree", ".git/modules", ".git/worktrees")
		} else { // it names a repository elsewhere
			places = []string{".git"}
		}
	}
	for _, name := range ifThere {
		if _, err := root.Lstat(name); err == nil {
			places = append(places, name)
		}
	}
	return CleanProtected(places)
}

// Bounds of the search for submodules.
const (
	maxModulesDepth = 8
	maxModulesFile  = 1 << 20
)

// submodules returns where the submodules below a directory say where their repositories are. A git
// that looks at the state of the whole runs what those name.
func submodules(root *os.Root, dir string, depth int) (places []string) {
	info, err := root.Lstat(path.Join(dir, ".gitmodules"))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxModulesFile || depth == maxModulesDepth {
		return nil
	}
	text, err := root.ReadFile(path.Join(dir, ".gitmodules"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		name, value, found := strings.Cut(line, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if !found || !strings.EqualFold(strings.TrimSpace(name), "path") || checkPlace(value) != nil {
			continue
		}
		at := path.Join(dir, value)
		places = append(places, path.Join(at, ".git"))
		places = append(places, submodules(root, at, depth+1)...)
	}
	return places
}
