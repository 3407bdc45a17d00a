package gitguard

import (
	"context"
	"strings"
)

// Tracked returns the files in a directory that git tracks, as slash-separated paths relative to
// it, also those of submodules; none where there is no repository, or no git.
func Tracked(ctx context.Context, dir string) []string {
	out, err := ask(ctx, dir, "ls-files", "--cached", "--recurse-submodules", "-z")
	if err != nil {
		return nil
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}
