package files

import (
	"path"
	"regexp"
	"strings"
)

// ignoreRule is one line of an ignore file, with the meaning that Git gives it. A path
// below a directory that a rule matches is not matched itself: who walks does not
// enter the directory.
type ignoreRule struct {
	takesBack bool // the line starts with "!"
	dirsOnly  bool // it ends with "/"
	anchored  bool // it is about a path below the file's directory, else about names
	// Exactly one of these says what matches; literal is the fallback.
	literal string
	suffix  string // what follows a "*", when that is all there is
	pattern *regexp.Regexp
}

// parseIgnoreRules reads an ignore file. Rules that can match nothing are left out.
func parseIgnoreRules(content string) []ignoreRule {
	var rules []ignoreRule
	for line := range strings.SplitSeq(strings.TrimPrefix(content, "\uFEFF"), "\n") {
		if rule, ok := parseIgnoreRule(strings.TrimSuffix(line, "\r")); ok {
			rules = append(rules, rule)
		}
	}
	return rules
}

func parseIgnoreRule(line string) (rule ignoreRule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return rule, false
	}
	line = trimSpaces(line)
	line, rule.takesBack = strings.CutPrefix(line, "!")
	line, rule.dirsOnly = strings.CutSuffix(line, "/")
	rule.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	switch {
	case line == "":
		return rule, false
	case !strings.ContainsAny(line, `*?[\`):
		rule.literal = line
		return rule, true
	case !rule.anchored && line[0] == '*' && !strings.ContainsAny(line[1:], `*?[\`):
		rule.suffix = line[1:]
		return rule, true
	}
	expression, ok := globExpression(line)
	if !ok {
		return rule, false
	}
	var err error
	rule.pattern, err = regexp.Compile(expression)
	return rule, err == nil
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
func (r *ignoreRule) matches(name string, isDir bool) bool {
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

// globExpression is a regular expression that matches what a rule's pattern does. ok
// is false when the pattern is malformed, and so matches nothing.
func globExpression(glob string) (_ string, ok bool) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(glob); {
		switch c := glob[i]; c {
		case '*':
			n := len(glob[i:]) - len(strings.TrimLeft(glob[i:], "*"))
			text, used := starsExpression(glob, i, n)
			b.WriteString(text)
			i += used
		case '?':
			b.WriteString(`[^/]`)
			i++
		case '[':
			class, used, ok := classExpression(glob[i:])
			if !ok {
				return "", false
			}
			b.WriteString(class)
			i += used
		case '\\':
			if i+1 == len(glob) {
				return "", false
			}
			b.WriteString(regexp.QuoteMeta(glob[i+1 : i+2]))
			i += 2
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
			i++
		}
	}
	b.WriteString(`\z`)
	return b.String(), true
}

// starsExpression is what n stars at an offset mean, and how much of the pattern that
// is: any directories when they are two and alone between slashes, else any text of one name.
func starsExpression(glob string, at, n int) (expression string, used int) {
	atStart := at == 0 || glob[at-1] == '/'
	rest := glob[at+n:]
	switch {
	case n < 2 || !atStart || rest != "" && rest[0] != '/':
		return `[^/]*`, n
	case rest == "":
		return `.*`, n
	default:
		return `(?:.*/)?`, n + 1
	}
}

// classExpression is the bracket expression at the start of a pattern, and its length.
// None matches a slash.
func classExpression(glob string) (expression string, used int, ok bool) {
	var b strings.Builder
	i := 1
	b.WriteByte('[')
	if i < len(glob) && (glob[i] == '!' || glob[i] == '^') {
		b.WriteString("^/")
		i++
	}
	for first := true; ; first = false {
		switch {
		case i >= len(glob):
			return "", 0, false
		case glob[i] == ']' && !first:
			b.WriteByte(']')
			return b.String(), i + 1, true
		case strings.HasPrefix(glob[i:], "[:"):
			end := strings.Index(glob[i:], ":]")
			if end < 0 {
				return "", 0, false
			}
			b.WriteString(glob[i : i+end+2])
			i += end + 2
		case glob[i] == '-' && !first && i+1 < len(glob) && glob[i+1] != ']':
			b.WriteByte('-')
			i++
		case glob[i] == '\\' && i+1 < len(glob):
			b.WriteString(classLiteral(glob[i+1]))
			i += 2
		default:
			b.WriteString(classLiteral(glob[i]))
			i++
		}
	}
}

func classLiteral(c byte) string {
	if strings.IndexByte(`\]^-[`, c) >= 0 {
		return `\` + string(c)
	}
	return string([]byte{c})
}
