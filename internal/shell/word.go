package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wordOf reads a word as the shell does before it starts the program.
func (v *values) wordOf(word *syntax.Word) Word {
	if word.Lit() == "[" { // the program, not a glob
		return Word{Text: "[", Known: true}
	}
	var b strings.Builder
	for i, part := range word.Parts {
		text, known := partOf(part)
		if !known || i > 0 && bracesBegin(word.Parts[:i]) {
			return Word{Text: source(word), Many: v.many(word.Parts), plain: !v.splits(word.Parts) && v.plain(word.Parts[0])}
		}
		b.WriteString(text)
	}
	return Word{Text: b.String(), Known: true}
}

// bracesBegin reports whether unquoted text has a brace, which may close in what follows.
func bracesBegin(parts []syntax.WordPart) bool {
	return slices.ContainsFunc(parts, func(part syntax.WordPart) bool {
		lit, is := part.(*syntax.Lit)
		return is && strings.Contains(lit.Value, "{")
	})
}

// many reports whether parts of a word may become any number of words.
func (v *values) many(parts []syntax.WordPart) bool {
	if v.splits(parts) || v.vanishes(parts) || len(parts) > 1 && bracesBegin(parts) {
		return true
	}
	for _, part := range parts {
		switch part := part.(type) {
		case *syntax.ExtGlob, *syntax.BraceExp:
			return true
		case *syntax.Lit:
			if _, known := literal(strings.TrimPrefix(part.Value, "~")); !known {
				return true
			}
		}
	}
	return false
}

// splits reports whether the value of a variable, or an output, may become any number of words.
func (v *values) splits(parts []syntax.WordPart) bool {
	for _, part := range parts {
		switch part := part.(type) {
		case *syntax.ParamExp:
			if !v.isNumber(part) {
				return true
			}
		case *syntax.CmdSubst:
			return true
		case *syntax.DblQuoted:
			for _, inner := range part.Parts {
				if p, is := inner.(*syntax.ParamExp); is && isList(p) {
					return true
				}
			}
		}
	}
	return false
}

// vanishes reports whether a word may be none: a number that is not quoted may be empty still.
func (v *values) vanishes(parts []syntax.WordPart) bool {
	return !slices.ContainsFunc(parts, func(part syntax.WordPart) bool {
		p, is := part.(*syntax.ParamExp)
		return !is || counts(p) && p.Param.Value != "!"
	})
}

// isList reports whether a parameter may stand for several words even in quotes.
func isList(p *syntax.ParamExp) bool {
	return p.Param != nil && p.Param.Value == "@" || isAll(p.Index) || p.Excl
}

// plain reports whether a word with this first part does not begin as an option does.
func (v *values) plain(first syntax.WordPart) bool {
	text := ""
	switch first := first.(type) {
	case *syntax.Lit:
		text = first.Value
	case *syntax.SglQuoted:
		text = first.Value
	case *syntax.DblQuoted:
		if len(first.Parts) == 0 {
			return false
		}
		return v.plain(first.Parts[0])
	case *syntax.ParamExp:
		return v.isNumber(first)
	case *syntax.ArithmExp:
		return false // it may be negative
	}
	return text != "" && !strings.ContainsRune("-+*?[{~\\!@(", rune(text[0]))
}

// partOf reads one part of a word; known is false for what the shell expands.
func partOf(part syntax.WordPart) (text string, known bool) {
	switch part := part.(type) {
	case *syntax.Lit:
		return literal(part.Value)
	case *syntax.SglQuoted:
		return part.Value, !part.Dollar
	case *syntax.DblQuoted:
		var b strings.Builder
		for _, inner := range part.Parts {
			lit, isLit := inner.(*syntax.Lit)
			if !isLit {
				return "", false
			}
			b.WriteString(quotedLiteral(lit.Value, true))
		}
		return b.String(), !part.Dollar
	default:
		return "", false
	}
}

// literal takes the backslashes out of unquoted text. Globs, braces and a tilde make it unknown.
func literal(value string) (text string, known bool) {
	if strings.HasPrefix(value, "~") {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		switch c := value[i]; c {
		case '\\':
			if i++; i < len(value) && value[i] != '\n' {
				b.WriteByte(value[i])
			}
		case '*', '?', '[':
			return "", false
		case '{':
			if strings.ContainsAny(value[i:], ",.") {
				return "", false
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// quotedLiteral takes the backslashes out of text in double quotes, or in a here document, where
// those before quotes stay.
func quotedLiteral(value string, inQuotes bool) string {
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			switch next := value[i+1]; {
			case next == '$', next == '`', next == '\\', next == '"' && inQuotes:
				i++
			case next == '\n':
				i++
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

// source is a node as it is written.
func source(node syntax.Node) string {
	if redirect, is := node.(*syntax.Redirect); is && redirect.Word != nil { // the printer has statements alone
		return redirect.Op.String() + source(redirect.Word)
	}
	var b strings.Builder
	if err := syntax.NewPrinter(syntax.SingleLine(true)).Print(&b, node); err != nil {
		return "?"
	}
	return b.String()
}
