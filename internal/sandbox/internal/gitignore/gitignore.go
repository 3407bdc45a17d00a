// Package gitignore decides which names the rules of ignore files exclude, as Git does
// (gitignore(5)).
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

// MaxPatterns bounds the rules of a directory that are neither names nor endings of names, those of
// its parents included: each is tried for each name. More are not heeded.
const MaxPatterns = 1000

// level is the rules of one file; the last one that matches decides. Names and endings are looked
// up in maps, so their number does not matter.
type level struct {
	dir      string // in which the file is
	rules    []rule
	literals map[string][]int // which rules are this name, or this path with a "/" before it
	suffixes map[string][]int // which rules are "*" and this
	patterns []int            // the others
}

// With adds the rules of the ignore file in dir, a path from the workspace ("." for itself), to
// those above. Rules that can match nothing are left out, and more than [MaxPatterns].
func (r Rules) With(dir, content string) Rules {
	left := MaxPatterns
	for _, above := range r {
		left -= len(above.patterns)
	}
	l := level{dir: dir, rules: parse(content, left), literals: map[string][]int{}, suffixes: map[string][]int{}}
	for i, rule := range l.rules {
		switch {
		case rule.pattern != nil:
			l.patterns = append(l.patterns, i)
		case rule.literal != "" && rule.anchored:
			l.literals["/"+rule.literal] = append(l.literals["/"+rule.literal], i)
		case rule.literal != "":
			l.literals[rule.literal] = append(l.literals[rule.literal], i)
		default:
			l.suffixes[rule.suffix] = append(l.suffixes[rule.suffix], i)
		}
	}
	return append(slices.Clip(r), l)
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
		if last := level.last(below, isDir); last >= 0 {
			return !level.rules[last].takesBack, true
		}
	}
	return false, false
}

// last is the last rule about a path below the level's directory; -1 when there is none.
func (l *level) last(below string, isDir bool) int {
	last, base := -1, path.Base(below)
	look := func(rules []int, matches func(*rule) bool) {
		for _, i := range slices.Backward(rules) {
			if i <= last {
				return
			}
			if rule := &l.rules[i]; (isDir || !rule.dirsOnly) && matches(rule) {
				last = i
				return
			}
		}
	}
	all := func(*rule) bool { return true }
	look(l.literals["/"+below], all)
	look(l.literals[base], all)
	for at := 0; at <= len(base) && len(l.suffixes) > 0; at++ {
		look(l.suffixes[base[at:]], all)
	}
	look(l.patterns, func(rule *rule) bool {
		if rule.anchored {
			return rule.pattern.MatchString(below)
		}
		return rule.pattern.MatchString(base)
	})
	return last
}

// rule is one line of an ignore file, with the meaning that Git gives it. A path
// below a directory that a rule matches is not matched itself: who walks does not
// enter the directory.
type rule struct {
	takesBack bool // the line starts with "!"
	dirsOnly  bool // it ends with "/"
	anchored  bool // it is about a path below the file's directory, else about names
	// What matches is the pattern, else the literal, else names that end with the suffix.
	literal string
	suffix  string // what follows a "*", when that is all there is
	pattern *regexp.Regexp
}

// parse reads rules; at most patterns of them may be patterns.
func parse(content string, patterns int) []rule {
	var rules []rule
	for line := range strings.SplitSeq(strings.TrimPrefix(content, "\uFEFF"), "\n") {
		rule, ok := parseRule(strings.TrimSuffix(line, "\r"), patterns > 0)
		if ok {
			rules = append(rules, rule)
		}
		if rule.pattern != nil {
			patterns--
		}
	}
	return rules
}

// parseRule reads one line. It is no rule when it can match nothing, or is a pattern and must not
// be one.
func parseRule(line string, patterned bool) (r rule, ok bool) {
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
	case !patterned:
		return r, false
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
