package snapshot

import (
	"slices"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// guarded reports whether something at a path would change one of the places: it is one, or below
// one, or leads elsewhere on the way to one. File systems differ in which names they take for the
// same; whatever any of them may take for a place is it here.
func guarded(places []string, name string, is sandbox.FileType) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		want, have := strings.Split(place, "/"), strings.Split(name, "/")
		if len(have) < len(want) && is == sandbox.TypeDir {
			return false
		}
		for i := range min(len(want), len(have)) {
			if !alike(want[i], have[i]) {
				return false
			}
		}
		return true
	})
}

// alike reports whether two names may be one: letters that differ in case only are the same for the
// file systems of macOS and Windows, characters that nobody sees are nothing for some, and so are
// dots and spaces at the end for others, which also know a file under a short name.
func alike(a, b string) bool {
	a, b = bare(a), bare(b)
	return strings.EqualFold(a, b) || short(a, b) || short(b, a)
}

// bare is a name without what some file systems ignore.
func bare(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name)
	if trimmed := strings.TrimRight(name, ". "); trimmed != "" {
		return trimmed
	}
	return name
}

// shortBase is how many letters of a name its short form begins with, at most.
const shortBase = 6

// short reports whether a name may be the short form of another, as in GIT~1 for .git.
func short(name, of string) bool {
	base, number, found := strings.Cut(name, "~")
	if !found || base == "" || number == "" || number[0] < '0' || number[0] > '9' {
		return false
	}
	of = strings.ReplaceAll(strings.TrimLeft(of, "."), " ", "")
	of, _, _ = strings.Cut(of, ".")
	return len(base) <= shortBase && len(of) >= len(base) && strings.EqualFold(base, of[:len(base)])
}
