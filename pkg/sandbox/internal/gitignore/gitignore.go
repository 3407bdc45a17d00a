// Package gitignore tells which names the rules of ignore files exclude, with the meaning that Git
// gives them (gitignore(5)).
package gitignore

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/pattern"
)

// Rules are those of a directory's ignore file and of its parents', from the workspace down. The
// zero value excludes nothing.
type Rules []level

// level is the rules of one file.
type level struct {
	dir   string // in which the file is
	rules []rule
}

// With adds the rules of the ignore file in dir, a path from the workspace ("." for itself), to
// those above. Rules that can match nothing are left out.
func (r Rules) With(dir, content string) Rules {
	return append(slices.Clip(r), level{dir: dir, rules: parse(content)})
}

// Excludes reports whether the rules exclude name, a path from the workspace: the last rule of the
// deepest file that is about it decides.
func (r Rules) Excludes(name string, isDir bool) bool {
	excluded, _ := r.Judge(name, isDir)
	return excluded
}

// Judge is [Rules.Excludes] that says, too, whether any rule is about the name.
func (r Rules) Judge(name string, isDir bool) (excluded, known bool) {
	for _, level := range slices.Backward(r) {
		below := name
		if level.dir != "." {
			below = strings.TrimPrefix(name, level.dir+"/")
		}
		for _, rule := range slices.Backward(level.rules) {
			if rule.matches(below, isDir) {
				return !rule.takesBack, true
			}
		}
	}
	return false, false
}

// rule is one line of an ignore file, with the meaning that Git gives it. A path
// below a directory that a rule matches is not matched itself: who walks does not
// enter the directory.
type rule struct {
	takesBack bool // the line starts with "!"
	dirsOnly  bool // it ends with "/"
	anchored  bool // it is about a path below the file's directory, else about names
	// Exactly one of these says what matches; literal is the fallback.
	literal string
	suffix  string // what follows a "*", when that is all there is
	pattern *regexp.Regexp
}

func parse(content string) []rule {
	var rules []rule
	for line := range strings.SplitSeq(strings.TrimPrefix(content, "\uFEFF"), "\n") {
		if rule, ok := parseRule(strings.TrimSuffix(line, "\r")); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func parseRule(line string) (r rule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	line = trimSpaces(line)
	line, r.takesBack = strings.CutPrefix(line, "!")
	line, r.dirsOnly = strings.CutSuffix(line, "/")
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	switch {
	case line == "":
		return r, false
	case !strings.ContainsAny(line, `*?[\`):
		r.literal = line
		return r, true
	case !r.anchored && line[0] == '*' && !strings.ContainsAny(line[1:], `*?[\`):
		r.suffix = line[1:]
		return r, true
	}
	expression, err := pattern.Regexp(line, pattern.Filenames|pattern.EntireString|pattern.GlobLeadingDot)
	if err != nil {
		return r, false
	}
	r.pattern, err = regexp.Compile(expression)
	return r, err == nil
}

// trimSpaces drops the spaces at the end of a rule, but for one behind a backslash.
func trimSpaces(line string) string {
	trimmed := strings.TrimRight(line, " ")
	backslashes := len(trimmed) - len(strings.TrimRight(trimmed, `\`))
	if backslashes%2 == 1 && len(trimmed) < len(line) {
		return trimmed + " "
	}
	return trimmed
}

// matches reports whether the rule is about name, a path below the file's directory.
func (r *rule) matches(name string, isDir bool) bool {
	if r.dirsOnly && !isDir {
		return false
	}
	if !r.anchored {
		name = path.Base(name)
	}
	switch {
	case r.pattern != nil:
		return r.pattern.MatchString(name)
	case r.suffix != "":
		return strings.HasSuffix(name, r.suffix)
	default:
		return name == r.literal || r.literal == "" // "*"
	}
}
