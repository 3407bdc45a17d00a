package hostenv

import (
	"context"
	"os/exec"
	"strings"
	"time"
	"unicode"
)

// identityTime bounds the questions to git, and maxIdentity a name.
const (
	identityTime = 5 * time.Second
	maxIdentity  = 256
)

// Identity is who commits: the user's name and address, as git has them in a directory, and nothing
// else of its settings. They are "" where git has none, or is none.
func Identity(ctx context.Context, dir string) (name, email string) {
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	return gitConfig(ctx, dir, "user.name"), gitConfig(ctx, dir, "user.email")
}

// gitConfig is a value of git's settings that is fit for a commit; "" when there is none.
func gitConfig(ctx context.Context, dir, key string) string {
	git := exec.CommandContext(ctx, "git", "config", "--get", key)
	git.Dir = dir
	out, err := git.Output()
	value := strings.TrimSpace(string(out))
	if err != nil || len(value) > maxIdentity || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.ContainsAny(value, "<>") {
		return ""
	}
	return value
}
