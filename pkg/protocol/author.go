package protocol

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode"
)

// Author is who commits with git in the commands of a session; what is "" is not said.
type Author struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// maxAuthor bounds a name and an address.
const maxAuthor = 256

// Validate returns an error unless git can have the author in a commit.
func (a Author) Validate() error {
	check := func(field, text string) error {
		if len(text) > maxAuthor || strings.ContainsAny(text, "<>") || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("author.%s %q: must be at most %d bytes of printable text without < and >", field, text, maxAuthor)
		}
		return nil
	}
	return errors.Join(check("name", a.Name), check("email", a.Email))
}

// Env are the variables by which git knows the author.
func (a Author) Env() map[string]string {
	env := map[string]string{}
	for what, value := range map[string]string{"NAME": a.Name, "EMAIL": a.Email} {
		if value != "" {
			env["GIT_AUTHOR_"+what], env["GIT_COMMITTER_"+what] = value, value
		}
	}
	return env
}

// In returns a payload whose commands know the author, unless their own variables say another.
func (a Author) In(p Payload) Payload {
	with := func(own map[string]string) map[string]string {
		if a == (Author{}) {
			return own
		}
		env := a.Env()
		maps.Copy(env, own)
		return env
	}
	switch run := p.(type) {
	case CommandRun:
		run.Env = with(run.Env)
		return run
	case CodeRun:
		run.Env = with(run.Env)
		return run
	default:
		return p
	}
}
