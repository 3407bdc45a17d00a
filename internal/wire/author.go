package wire

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxAuthor bounds a name and an address.
const maxAuthor = 256

// ValidateAuthor returns an error unless git can have the author in a commit.
func ValidateAuthor(a protocol.Author) error {
	check := func(field, text string) error {
		if len(text) > maxAuthor || strings.ContainsAny(text, "<>") || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("author.%s %q: must be at most %d bytes of printable text without < and >", field, text, maxAuthor)
		}
		return nil
	}
	return errors.Join(check("name", a.Name), check("email", a.Email))
}

// AuthorEnv returns the environment variables that name the author to git.
func AuthorEnv(a protocol.Author) map[string]string {
	env := map[string]string{}
	for what, value := range map[string]string{"NAME": a.Name, "EMAIL": a.Email} {
		if value != "" {
			env["GIT_AUTHOR_"+what], env["GIT_COMMITTER_"+what] = value, value
		}
	}
	return env
}

// WithAuthor adds the variables of [AuthorEnv] to the commands of a payload. The payload's own win.
func WithAuthor(p protocol.Payload, a protocol.Author) protocol.Payload {
	with := func(own map[string]string) map[string]string {
		if a == (protocol.Author{}) {
			return own
		}
		env := AuthorEnv(a)
		maps.Copy(env, own)
		return env
	}
	switch run := p.(type) {
	case protocol.CommandRun:
		run.Env = with(run.Env)
		return run
	case protocol.CodeRun:
		run.Env = with(run.Env)
		return run
	default:
		return p
	}
}
