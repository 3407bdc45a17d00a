package hostenv

import (
	"context"
	"maps"
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

// Identity are the variables by which git in a sandbox knows who commits: the user's name and
// address, as git has them in a directory, and nothing else of its settings. There are none where
// git has none, or is none.
func Identity(ctx context.Context, dir string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	env := map[string]string{}
	for key, what := range map[string]string{"user.name": "NAME", "user.email": "EMAIL"} {
		value := gitConfig(ctx, dir, key)
		if value == "" {
			continue
		}
		maps.Copy(env, map[string]string{"GIT_AUTHOR_" + what: value, "GIT_COMMITTER_" + what: value})
	}
	return env
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
